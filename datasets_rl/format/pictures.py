"""Pictures that lie encoded in a file: decoded as they are asked for, read as an array would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionFailed, IntegrityFailed
from datasets_rl.read.images import decode

__all__ = ["Pictures"]


class Pictures:
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
        IntegrityFailed: If the ends do not go up from 0 to B.
    """

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64], shape: tuple[int, ...], path: Path) -> None:
        self._data = data
        self._starts = np.concatenate([np.zeros(1, np.int64), ends])
        if (np.diff(self._starts) < 0).any() or self._starts[-1] != len(data):
            raise IntegrityFailed(str(path), [f"the ends of its {len(ends):,} pictures do not go up to {len(data):,}"])
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
            IntegrityFailed: If one does not decode.
        """
        wanted, places = np.unique(rows, return_inverse=True)
        starts, stops = self._starts[wanted].tolist(), self._starts[wanted + 1].tolist()
        there = [place for place in range(len(wanted)) if stops[place] > starts[place]]
        found = np.empty((len(there), *self.shape[1:]), np.uint8)
        encoded = [self._data[starts[place] : stops[place]].data for place in there]
        try:
            decode(encoded, found)
        except ConversionFailed as error:
            problems = list(self._problems(wanted[there].tolist(), encoded))
            raise IntegrityFailed(str(self._path), problems) from error
        if len(there) == len(wanted) == len(rows) and (places[1:] > places[:-1]).all():
            return found
        full = found
        if len(there) < len(wanted):
            full = np.zeros((len(wanted), *self.shape[1:]), np.uint8)
            full[there] = found
        return full[places]

    def _problems(self, rows: list[int], encoded: list[memoryview]) -> Iterator[str]:
        out = np.empty((1, *self.shape[1:]), np.uint8)
        for row, one in zip(rows, encoded, strict=True):
            try:
                decode([one], out)
            except ConversionFailed as error:
                yield error.problems[0].replace("image 0", f"picture {row:,}", 1)
