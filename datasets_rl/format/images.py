"""Pictures that lie encoded in a file: decoded as they are asked for, read as an array would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.read.images import decode
from datasets_rl.ted.episode import EncodedImages

__all__ = ["EncodedColumn", "ImageColumn"]


class ImageColumn:
    """N pictures of one shape, encoded back to back.

        data    | picture 0 | picture 1    | picture 2 |
        ends                ^ ends[0]      ^ ends[1]   ^ ends[2]

    One without bytes, a final state that is not known, reads as zeros.

    Args:
        data: Their bytes, uint8 [B].
        ends: Behind which byte each ends, int64 [N].
        shape: Of one picture: rows, columns, channels.
        path: The file, for messages.

    Raises:
        IntegrityError: If the ends do not go up from 0 to B.
    """

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64], shape: tuple[int, ...], path: Path) -> None:
        self._data = data
        self._starts = np.concatenate([np.zeros(1, np.int64), ends])
        if (np.diff(self._starts) < 0).any() or self._starts[-1] != len(data):
            raise IntegrityError(str(path), [f"the ends of its {len(ends):,} pictures do not go up to {len(data):,}"])
        self._path = path
        self.shape = (len(ends), *shape)
        self.dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        """Return N."""
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Return the pictures of a slice or of row numbers, [n, rows, columns, channels]."""
        return self.take(np.arange(len(self))[index])

    def take(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Return the pictures of these rows, [n, rows, columns, channels]; each is decoded once.

        Raises:
            IntegrityError: If one does not decode.
        """
        wanted, places = np.unique(rows, return_inverse=True)
        found = _decoded(self._encoded(wanted), self.shape[1:], self._path, wanted.tolist())
        if len(wanted) == len(rows) and (places[1:] > places[:-1]).all():
            return found
        taken: NDArray[np.uint8] = found[places]
        return taken

    def undecoded(self, start: int, stop: int) -> EncodedColumn:
        """Return the pictures of consecutive rows as they are."""
        return EncodedColumn(self._encoded(np.arange(start, stop)), self.shape[1:], self._path)

    def _encoded(self, rows: NDArray[np.integer[Any]]) -> list[memoryview]:
        starts, stops = self._starts[rows].tolist(), self._starts[rows + 1].tolist()
        data = self._data.data
        return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]


@dataclass(frozen=True, eq=False)
class EncodedColumn(EncodedImages):
    """Pictures of a dataset that nobody has looked at: bytes to who copies them, an array to who reads them as one."""

    shape_of_each: tuple[int, ...]
    path: Path
    """The file, for messages."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, rows, columns, channels]."""
        return (len(self), *self.shape_of_each)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Decode them, once.

        Raises:
            IntegrityError: If one does not decode.
        """
        return np.array(self._pixels, dtype, copy=copy)

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        found = _decoded(self.images, self.shape_of_each, self.path, range(len(self)))
        found.flags.writeable = False
        return found


def _decoded(
    encoded: Sequence[bytes | bytearray | memoryview], shape: tuple[int, ...], path: Path, numbers: Sequence[int]
) -> NDArray[np.uint8]:
    """Decode pictures of these numbers, [n, rows, columns, channels]; those without bytes are zeros."""
    there = [place for place, one in enumerate(encoded) if len(one)]
    found = np.empty((len(there), *shape), np.uint8)
    wanted = [encoded[place] for place in there]
    try:
        decode(wanted, found)
    except ConversionError as error:
        problems = []
        for place, one in zip(there, wanted, strict=True):
            try:
                decode([one], found[:1])
            except ConversionError as fault:
                problems.append(fault.problems[0].replace("image 0", f"picture {numbers[place]:,}", 1))
        raise IntegrityError(str(path), problems) from error
    if len(there) == len(encoded):
        return found
    full = np.zeros((len(encoded), *shape), np.uint8)
    full[there] = found
    return full
