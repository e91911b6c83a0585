"""Images that are stored compressed, each alone, with one dictionary for all of a field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.images import PixelsOnAccess, SeparateImageColumn
from datasets_rl.read.compressed_frames import FrameDictionary, decompress
from datasets_rl.ted.episode import StoredImages

if TYPE_CHECKING:
    from typing_extensions import Self


class CompressedImageColumn(SeparateImageColumn):
    """Images of any shape, each a patch or a zstd frame; see `SeparateImageColumn`.

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
    """Compressed images of some rows, which a writer with the same dictionary appends unchanged; see `PixelsOnAccess`."""

    form: ClassVar[Literal["encoded", "compressed", "video"]] = "compressed"
    data: NDArray[np.uint8]
    """Bytes of these images and maybe others, [B]."""
    starts: NDArray[np.int64]
    """First byte of each image in `data`, [n]."""
    stops: NDArray[np.int64]
    """Byte after the last one of each image, [n]; an image without bytes is unknown."""
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
        """Return the bytes of the images one after the other, [B], and the end of each, [n].

        Images that are consecutive in `data` are one view of it, so that whole episodes take no loop over images.
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
    """Decompress images; an error names the file and the rows."""
    try:
        decompress(data, starts, stops, dictionary, out, positions, numbers=numbers)
    except ConversionError as error:
        raise IntegrityError(str(path), error.problems) from error
