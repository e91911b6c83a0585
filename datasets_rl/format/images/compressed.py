"""Images that are stored compressed, each alone, with a dictionary for all images of a field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import disk
from datasets_rl.errors import ConversionError, IntegrityError, InvalidArgumentError
from datasets_rl.fingerprints.canonical import RowDigests, digest_bytes
from datasets_rl.format.images.base import CopiedRows, FieldWriter, Form, Items, WholeFile
from datasets_rl.format.images.columns import PixelsOnAccess, SeparateImageColumn
from datasets_rl.format.images.separate import SeparateForm, SeparateWriter, ends_of
from datasets_rl.read.compressed_frames import FrameDictionary, compress, decompress, padded, reserved
from datasets_rl.ted.episode import StoredImages
from datasets_rl.ted.keys import Key, dotted_name

if TYPE_CHECKING:
    from typing_extensions import Self

    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.format.schema import Field

_DICTIONARY_MAX: Final = 16 << 20  # a dictionary is read into memory


class CompressedForm(SeparateForm):
    """Bytes of any shape, each image compressed without loss, with a dictionary of all images. See `ImageForm`."""

    name: ClassVar[Form] = "compressed"
    noun: ClassVar[str] = "compressed images"
    summary: ClassVar[str] = "compressed without loss"
    takes_pixels: ClassVar[bool] = True
    has_dictionary: ClassVar[bool] = True

    @override
    def whole_files(self) -> list[WholeFile]:
        return [WholeFile(dictionary_file(self.column.key), 0, _DICTIONARY_MAX)]

    @override
    def scattered_files(self) -> list[str]:
        return [self.file, ends_of(self.file)]

    @override
    def field_problems(self, field: Field) -> Iterator[str]:
        if not (field.wide and field.dtype.str == "|u1"):
            yield f"{field.name} is compressed, {field.dtype.str} in {field.file}, expected |u1 in a separate file"

    @override
    def open(self, stored: StoredDataset, *, final: bool) -> Items:
        arrays = self.stored_arrays(stored, final=final)
        return CompressedImageColumn(*arrays, stored.read_whole(dictionary_file(self.column.key), read_dictionary))

    @override
    def writer(self, folder: Path, dictionary: FrameDictionary | None) -> FieldWriter:
        path = folder / dictionary_file(self.column.key)
        if dictionary is not None:
            disk.write_bytes(path, dictionary.data)
        return CompressedWriter(self, folder, FrameDictionary(path.read_bytes()))


def dictionary_file(key: Key) -> str:
    """Return the name of the file with the dictionary of a field of compressed images."""
    return f"{dotted_name(key)}.dictionary"


def read_dictionary(path: Path) -> FrameDictionary:
    """Return the dictionary of a field of compressed images.

    Raises:
        IntegrityError: If the file is not a dictionary.
    """
    data = path.read_bytes()
    try:
        return FrameDictionary(data)
    except InvalidArgumentError as error:
        raise IntegrityError(str(path), [str(error)]) from error


class CompressedWriter(SeparateWriter):
    """Writer that compresses pixels, and appends images with the same dictionary unchanged. See `FieldWriter`.

    Args:
        form: As in `FieldWriter`.
        folder: As in `FieldWriter`.
        dictionary: The dictionary of the images.
    """

    def __init__(self, form: SeparateForm, folder: Path, dictionary: FrameDictionary) -> None:
        super().__init__(form, folder)
        self._dictionary = dictionary
        self._reserved = (-1, 0)
        """The last deferred row, and the first byte of the image of this row."""

    @override
    def unknown(self) -> Any:
        return np.zeros((1, *self.form.column.shape), np.uint8)

    @override
    def new_buffer(self, capacity: int) -> CompressedBuffer:
        return CompressedBuffer(self.form.column.shape, capacity, self._dictionary)

    @override
    def digests(self, buffer: Any, count: int) -> RowDigests:
        digests: RowDigests = buffer.digests(count)
        return digests

    @override
    def copied(self, buffer: Any) -> Sequence[CopiedRows]:
        return list(buffer.copied())

    @override
    def append(self, buffer: Any, count: int, *, final: bool, deferred: Sequence[int] = ()) -> None:
        patched = () if final or not self.form.column.shared else deferred
        data, ends = buffer.joined(count, patched)
        if patched:
            last = patched[-1]
            images, offsets = self.streams[self.form.file], self.streams[ends_of(self.form.file)]
            self._reserved = offsets.rows + last, images.rows + (int(ends[last - 1]) if last else 0)
        self.append_images(data, ends, final=final)

    @override
    def clear(self, buffer: Any) -> None:
        buffer.clear()

    @override
    def patch(self, row: int, values: NDArray[Any]) -> None:
        deferred, start = self._reserved
        if deferred != row:
            raise ValueError(f"{self.form.key}: row {row:,} is patched, expected the deferred row {deferred:,}")
        compressed, _ = compress(values, self._dictionary.without_patches)
        place = len(reserved(self.form.column.step_bytes))
        self.streams[self.form.file].patch(start, padded(compressed, place))

    @override
    def files(self) -> dict[str, int]:
        return {dictionary_file(self.form.column.key): len(self._dictionary.data)}


class CompressedBuffer:
    """Buffer for images of a field that is stored compressed: pixels, and runs of images that are compressed already.

    rows    |  pixels  |  compressed  |  pixels  |

    A deferred image gets bytes that any image of the same size can replace.

    Args:
        shape: Shape of the pixels of one image.
        capacity: Maximum number of images.
        dictionary: The dictionary of the images.
    """

    def __init__(self, shape: tuple[int, ...], capacity: int, dictionary: FrameDictionary) -> None:
        self._pixels = np.empty((capacity, *shape), np.uint8)  # the system gives memory only to written pages
        self._runs: list[tuple[int, CompressedImages]] = []
        self._dictionary = dictionary
        self._image_bytes = math.prod(shape)

    def __setitem__(self, rows: slice, images: Any) -> None:
        if not isinstance(images, CompressedImages) or images.dictionary.data != self._dictionary.data:
            self._pixels[rows] = images
        elif len(images):
            self._runs.append((rows.start, images))

    def joined(self, count: int, deferred: Sequence[int] = ()) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the bytes of the first `count` images, joined in order, [B], and the end of each image, [n]."""
        data, ends = self._joined(count)
        if not deferred:
            return data, ends
        images = np.split(data, ends[:-1])
        for deferred_row in deferred:
            images[deferred_row] = reserved(self._image_bytes)
        return np.concatenate(images), np.cumsum([len(image) for image in images], dtype=np.int64)

    def _joined(self, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        pieces = []
        stop = 0
        for start, images in self._runs:
            pieces += [*self._compress(stop, start), images.joined()]
            stop = start + len(images)
        pieces += self._compress(stop, count)
        shifts = np.cumsum([0, *(len(data) for data, _ in pieces)])
        ends = [stops + shift for (_, stops), shift in zip(pieces, shifts, strict=False)]
        no_ends = np.empty(0, np.int64)
        return np.concatenate([no_ends.astype(np.uint8), *(data for data, _ in pieces)]), np.concatenate(
            [no_ends, *ends]
        )

    def digests(self, count: int) -> RowDigests:
        """Return the digests of the pixels of the first `count` images, [n], zero for images that are copied."""
        digests = np.zeros(count, np.uint64)
        stop = 0
        for start, images in self._runs:
            digests[stop:start] = digest_bytes(self._pixels[stop:start])
            stop = start + len(images)
            if (unknown := images.starts == images.stops).any():
                digests[start:stop][unknown] = digest_bytes(np.zeros((1, self._image_bytes), np.uint8))
        digests[stop:] = digest_bytes(self._pixels[stop:count])
        return digests

    def copied(self) -> list[CopiedRows]:
        """Return the rows of the images that are copied: those that are compressed already, but for unknown images."""
        copied = []
        for start, images in self._runs:
            bytes_of = images.stops > images.starts
            edges = np.flatnonzero(np.diff(np.concatenate([[0], bytes_of.astype(np.int8), [0]])))
            for first, last in edges.reshape(-1, 2).tolist():
                copied.append(CopiedRows(start + first, images.path, images.numbers[first:last]))
        return copied

    def clear(self) -> None:
        """Remove all images."""
        self._runs.clear()

    def _compress(self, start: int, stop: int) -> list[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        return [compress(self._pixels[start:stop], self._dictionary)] if start < stop else []


class CompressedImageColumn(SeparateImageColumn):
    """Images of any shape, each a patch or a zstd frame. See `SeparateImageColumn`.

    Args:
        data: As in `SeparateImageColumn`.
        ends: As in `SeparateImageColumn`.
        shape: As in `SeparateImageColumn`.
        path: As in `SeparateImageColumn`.
        dictionary: The dictionary that the images were compressed with.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        shape: tuple[int, ...],
        path: Path,
        dictionary: FrameDictionary,
    ) -> None:
        super().__init__(data, ends, shape, path)
        self.dictionary = dictionary

    @override
    def read_stored(self, start: int, stop: int) -> CompressedImages:
        rows = np.arange(start, stop)
        return CompressedImages(self._data, *self.extents(rows), rows, self.dictionary, self.shape[1:], self._path)

    @override
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        _decompress(self._data, *self.extents(rows), self.dictionary, out, positions, rows, self._path)


@dataclass(frozen=True, eq=False)
class CompressedImages(StoredImages, PixelsOnAccess):
    """Compressed images of some rows, which a writer with the same dictionary appends unchanged.

    See `PixelsOnAccess`.
    """

    form: ClassVar[Literal["encoded", "compressed", "video"]] = "compressed"
    noun: ClassVar[str] = CompressedForm.noun
    data: NDArray[np.uint8]
    """Bytes of these images and maybe others, [B]."""
    starts: NDArray[np.int64]
    """First byte of each image in `data`, [n]."""
    stops: NDArray[np.int64]
    """Byte after the last byte of each image, [n]. An image without bytes is unknown."""
    numbers: NDArray[np.int64]
    """Row of each image, [n], for messages."""
    dictionary: FrameDictionary
    """The dictionary that the images were compressed with."""
    shape_of_each: tuple[int, ...]
    path: Path
    """The file, for messages."""

    @override
    def __len__(self) -> int:
        return len(self.starts)

    @override
    def __getitem__(self, rows: slice | NDArray[Any]) -> Self:
        return replace(self, starts=self.starts[rows], stops=self.stops[rows], numbers=self.numbers[rows])

    @property
    @override
    def nbytes(self) -> int:
        return int((self.stops - self.starts).sum())

    @override
    def without(self, rows: NDArray[np.bool_]) -> Self:
        return replace(self, stops=np.where(rows, self.starts, self.stops))

    @override
    def followed_by(self, others: Sequence[Any]) -> Self | None:
        if not all(map(self.is_compressed_like, others)):
            return None
        columns: list[CompressedImages] = [self, *others]
        joined = [column.joined() for column in columns]
        shifts = np.cumsum([0, *(len(data) for data, _ in joined)])
        stops = np.concatenate([ends + shift for (_, ends), shift in zip(joined, shifts, strict=False)])
        return replace(
            self,
            data=np.concatenate([data for data, _ in joined]),
            starts=np.append(np.zeros(1, np.int64), stops)[:-1],
            stops=stops,
            numbers=np.concatenate([column.numbers for column in columns]),
        )

    def is_compressed_like(self, other: Any) -> bool:
        """Return whether another column holds images of the same shape, compressed with the same dictionary."""
        return (
            isinstance(other, CompressedImages)
            and other.shape_of_each == self.shape_of_each
            and other.dictionary.data == self.dictionary.data
        )

    def joined(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the bytes of the images in order, [B], and the end of each, [n].

        Images that are consecutive in `data` are a single view, so that whole episodes take no loop over images.
        """
        edges = [0, *(np.flatnonzero(self.starts[1:] != self.stops[:-1]) + 1).tolist(), len(self)]
        runs = [self.data[self.starts[first] : self.stops[last - 1]] for first, last in pairwise(edges) if first < last]
        data = runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, np.uint8), *runs])
        return data, np.cumsum(self.stops - self.starts)

    @override
    def _decode(self, out: NDArray[np.uint8]) -> None:
        _decompress(self.data, self.starts, self.stops, self.dictionary, out, None, self.numbers, self.path)


def _decompress(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    dictionary: FrameDictionary,
    out: NDArray[np.uint8],
    positions: NDArray[np.int64] | None,
    numbers: NDArray[np.int64],
    path: Path,
) -> None:
    """Decompress images. An error names the file and the rows."""
    try:
        decompress(data, starts, stops, dictionary, out, positions, numbers=numbers)
    except ConversionError as error:
        raise IntegrityError(str(path), error.problems) from error
