"""Images that are stored as PNG or JPEG files, encoded once and decoded on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.fingerprints.canonical import RowDigests, digest_spans
from datasets_rl.format.images.base import FieldWriter, Form, Items
from datasets_rl.format.images.columns import PixelsOnAccess, SeparateImageColumn
from datasets_rl.format.images.separate import SeparateForm, SeparateWriter
from datasets_rl.read.images import decode, read_header
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.ted.episode import EncodedImages

if TYPE_CHECKING:
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.format.schema import Field
    from datasets_rl.read.compressed_frames import FrameDictionary

_IMAGES_PER_TASK: Final = 8
_IMAGE_AXES: Final = 3


def encode(pixels: NDArray[np.uint8], quality: int | None = None) -> list[bytes]:
    """Return images as PNG files, without loss, or as JPEG files, with loss, encoded in threads.

    Args:
        pixels: Pixels, uint8 [n, rows, columns, channels], of 1 or 3 channels, or for PNG also 4 channels.
        quality: The quality of JPEG images, 1 to 100, or None for PNG.
    """
    from PIL import Image

    form, options = ("png", {"compress_level": 1}) if quality is None else ("jpeg", {"quality": quality})
    files = [b""] * len(pixels)

    def encode_range(first: int, last: int) -> None:
        for number in range(first, last):
            image, stream = pixels[number], BytesIO()
            Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, form, **options)
            files[number] = stream.getvalue()

    run_on_all_cores(encode_range, len(pixels), _IMAGES_PER_TASK)
    return files


class EncodedForm(SeparateForm):
    """Images of rows, columns and channels, each in the PNG or JPEG file of the source. See `ImageForm`."""

    name: ClassVar[Form] = "encoded"
    noun: ClassVar[str] = EncodedImages.noun
    summary: ClassVar[str] = "PNG or JPEG"
    holds_files: ClassVar[bool] = True

    @property
    @override
    def buffered_bytes(self) -> int:
        return self.column.step_bytes // 8  # measured: a tenth (JPEG) to a half (PNG) of the bytes of the pixels

    @override
    def field_problems(self, field: Field) -> Iterator[str]:
        if not (field.wide and field.dtype.str == "|u1" and len(field.shape) == _IMAGE_AXES):
            yield (
                f"{field.name} is a field of encoded images, {field.dtype.str} {list(field.shape)}, expected |u1 with "
                "three axes"
            )

    @override
    def value_problems(self, values: Any, min_rows: int, max_rows: int) -> Iterator[str]:
        column = self.column
        if not isinstance(values, EncodedImages):
            yield f"{self.key} holds {type(values).__name__}, expected {self.noun}"
        elif not min_rows <= len(values) <= max_rows:
            yield f"{self.key} has {len(values)} images, expected {min_rows}"
        else:
            for number, encoded in enumerate(values.images):
                try:
                    image = read_header(encoded)
                except ConversionError as error:
                    yield f"{self.key}: image {number} {error.problems[0]}"
                    continue
                if (image.shape, image.dtype) != (column.shape, column.dtype):
                    expected = f"{column.dtype.name} {list(column.shape)}"
                    yield f"{self.key}: image {number} is {image.dtype.name} {list(image.shape)}, expected {expected}"

    @override
    def open(self, stored: StoredDataset, *, final: bool) -> Items:
        return EncodedImageColumn(*self.stored_arrays(stored, final=final))

    @override
    def writer(self, folder: Path, dictionary: FrameDictionary | None) -> FieldWriter:
        return EncodedWriter(self, folder)


class EncodedWriter(SeparateWriter):
    """Writer of images that are encoded already. See `FieldWriter`."""

    @override
    def stored_values(self, values: Any) -> Any:
        return values.images if isinstance(values, EncodedImages) else values

    @override
    def new_buffer(self, capacity: int) -> list[bytes]:
        return [b""] * capacity

    @override
    def digests(self, buffer: Any, count: int) -> RowDigests:
        return _digests(buffer[:count])

    @override
    def append(self, buffer: Any, count: int, *, final: bool, deferred: Sequence[int] = ()) -> None:
        data = np.frombuffer(b"".join(buffer[:count]), np.uint8)
        self.append_images(data, np.cumsum([len(image) for image in buffer[:count]], dtype=np.int64), final=final)


class EncodedImageColumn(SeparateImageColumn):
    """Images of rows, columns and channels, each stored as a PNG or JPEG file. See `SeparateImageColumn`."""

    @override
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        _decode_images(self._encoded_images(rows), out, self._path, rows.tolist(), positions.tolist())

    @override
    def read_stored(self, start: int, stop: int) -> EncodedColumn:
        return EncodedColumn(self._encoded_images(np.arange(start, stop)), self.shape[1:], self._path)

    @override
    def read_comparable(self, start: int, stop: int) -> NDArray[Any]:
        bounds = [int(self._ends[start - 1]) if start else 0, *self._ends[start:stop].tolist()]
        images = np.empty(stop - start, object)
        images[:] = [self._data[first:last].tobytes() for first, last in pairwise(bounds)]
        return images

    @override
    def digests(self, start: int, stop: int) -> RowDigests:
        return _digests(self._encoded_images(np.arange(start, stop)))

    @override
    def read_file(self, row: int) -> bytes:
        return bytes(self._encoded_images(np.array([row]))[0])

    def _encoded_images(self, rows: NDArray[np.integer[Any]]) -> list[memoryview]:
        starts, stops = self.extents(rows)
        data = self._data.data
        return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class EncodedColumn(EncodedImages, PixelsOnAccess):
    """Encoded images of some rows. See `PixelsOnAccess`."""

    shape_of_each: tuple[int, ...]
    path: Path
    """The file, for messages."""

    @override
    def _decode(self, out: NDArray[np.uint8]) -> None:
        _decode_images(self.images, out, self.path, range(len(self)), range(len(self)))


def _digests(images: Sequence[bytes | bytearray | memoryview]) -> RowDigests:
    ends = np.cumsum([len(image) for image in images], dtype=np.int64)
    return digest_spans(np.frombuffer(b"".join(images), np.uint8), ends)


def _decode_images(
    encoded: Sequence[bytes | bytearray | memoryview],
    out: NDArray[np.uint8],
    path: Path,
    numbers: Sequence[int],
    positions: Sequence[int],
) -> None:
    """Decode images into some positions of `out`. Images without bytes become zeros.

    Args:
        encoded: Bytes of each image, [n].
        out: Output, [N, rows, columns, channels].
        path: The file, for messages.
        numbers: Row number of each image, [n], for messages.
        positions: Position of each image in `out`, [n].
    """
    present = [at for at, image in enumerate(encoded) if len(image)]
    if len(present) < len(encoded):
        out[[position for position, image in zip(positions, encoded, strict=True) if not len(image)]] = 0
        encoded, positions = [encoded[at] for at in present], [positions[at] for at in present]
        numbers = [numbers[at] for at in present]
    try:
        decode(encoded, out, positions=positions)
    except ConversionError as error:
        problems = []
        for number, image in zip(numbers, encoded, strict=True):
            try:
                decode([image], out[:1])
            except ConversionError as problem:
                problems.append(problem.problems[0].replace("image 0", f"image {number:,}", 1))
        raise IntegrityError(str(path), problems) from error
