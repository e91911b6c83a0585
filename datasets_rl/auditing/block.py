"""A block of consecutive rows of an audited dataset, and the sums and maxima of its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.data import Data, grid_of
from datasets_rl.ted.keys import Key


class Block:
    """Rows [start, stop) of a dataset, N in number, of E episodes. Values of a field are read once.

    The first and the last episode may be parts of episodes that are longer than a block.

    Args:
        data: The dataset.
        start: First row.
        stop: Row after the last row.
    """

    def __init__(self, data: Data, start: int, stop: int) -> None:
        self.data, self.start, self.stop = data, start, stop
        table = data.episodes
        first, last = (int(one) for one in table.episode_of(np.array([start, stop - 1])))
        self.episodes: NDArray[np.int64] = np.arange(first, last + 1)
        """Numbers of the episodes, int64 [E]."""
        stops = table.stops[first : last + 1]
        self.starts: NDArray[np.int64] = np.maximum(table.starts[first : last + 1], start) - start
        """First row of each episode within the block, int64 [E]."""
        self.episode: NDArray[np.int64] = np.repeat(
            np.arange(len(stops)), np.diff(np.append(self.starts, stop - start))
        )
        """Index of the episode of each row among the episodes of the block, int64 [N]."""
        rows = np.arange(start, stop)
        self.time: NDArray[np.int64] = rows - table.starts[first : last + 1][self.episode]
        """Step of each row within its episode, from 0, int64 [N]."""
        self.has_after: NDArray[np.bool_] = rows + 1 < stops[self.episode]
        """Whether the row after each row is in the same episode, bool [N]. The observation after the last action of an
        episode is not a row: see `finals`."""
        self.shared: dict[str, NDArray[Any]] = {}
        """What several checks compute of the block, by name."""
        self._values: dict[Key, NDArray[Any]] = {}
        self._ranges: dict[Key, tuple[NDArray[Any], NDArray[Any]]] = {}
        self._grids: dict[tuple[Key, int], NDArray[np.float32]] = {}

    def __len__(self) -> int:
        return self.stop - self.start

    def now(self, key: Key) -> NDArray[Any]:
        """Return a field of the rows, [N, D], in the stored dtype."""
        return self._read(key)[: len(self)]

    def values(self, key: Key) -> NDArray[Any]:
        """Return a field of the rows and of the row after the block, [N + 1, D], in the stored dtype."""
        return self._read(key)[: len(self) + 1]

    def after(self, key: Key) -> NDArray[Any]:
        """Return a field of the row after each row, [N, D]. Only the values with `has_after` are of the same episode."""
        return self._read(key)[1:]

    def images(self, key: Key) -> NDArray[np.uint8]:
        """Return the images of the rows, uint8 [N, ...], in the stored shape."""
        field = self.data.field(key)
        return self.now(key).reshape(len(self), *field.shape)

    def grids(self, key: Key, shift: int = 0) -> NDArray[np.float32]:
        """Return at most 24 x 24 pixels of each image, float32 [N, h, w, c], from 0 to 255: see `grid_of`."""
        if (key, shift) not in self._grids:
            self._grids[key, shift] = grid_of(self.images(key), shift)
        return self._grids[key, shift]

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over the rows of each episode, [E, ...], of values [N, ...]."""
        kind = np.float64 if values.dtype.kind == "f" else np.int64
        result: NDArray[Any] = np.add.reduceat(values, self.starts, axis=0, dtype=kind)
        return result

    def maxima(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the maximum over the rows of each episode, [E, ...], of values [N, ...]."""
        result: NDArray[Any] = np.maximum.reduceat(values, self.starts, axis=0)
        return result

    def minima(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the minimum over the rows of each episode, [E, ...], of values [N, ...]."""
        result: NDArray[Any] = np.minimum.reduceat(values, self.starts, axis=0)
        return result

    def ranges(self, key: Key) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the minimum and the maximum of each element of a field over the rows of each episode, [E, D] each."""
        if key not in self._ranges:
            values = self.now(key)
            self._ranges[key] = self.minima(values), self.maxima(values)
        return self._ranges[key]

    def row_of(self, values: NDArray[Any], extremes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the first row of the dataset with the extreme value of each episode, int64 [E], of values [N]."""
        hits = np.flatnonzero(values == extremes[self.episode])
        rows = np.full(len(self.starts), -1, np.int64)
        episodes, first = np.unique(self.episode[hits], return_index=True)
        rows[episodes] = hits[first] + self.start
        return rows

    def longest_runs(self, flags: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the length of the longest run of set flags [N] in each episode, int64 [E], and its first row, int64 [E].

        The first row is -1 if no flag is set.
        """
        counts = np.arange(len(self))
        breaks = ~flags
        breaks[self.starts] |= True
        # Rows since the last break: a break is an unset flag, or the first row of an episode.
        base = np.maximum.accumulate(np.where(breaks, counts, 0))
        runs = np.where(flags, counts - base + (flags[base]), 0)
        longest = self.maxima(runs)
        last = self.row_of(runs, longest)
        return longest, np.where(longest > 0, last - longest + 1, -1)

    def _read(self, key: Key) -> NDArray[Any]:
        if key not in self._values:
            stop = min(self.stop + 1, len(self.data))
            values = self.data.steps.read(key, self.start, stop).reshape(stop - self.start, -1)
            if stop == self.stop:
                values = np.concatenate([values, values[-1:]])
            self._values[key] = values
        return self._values[key]


def merge(merges: Mapping[str, str], first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measures of an episode from the measures of its two parts, in the order of time."""
    merged: dict[str, Any] = {}
    for name, how in merges.items():
        one, two = np.asarray(first[name]), np.asarray(second[name])
        if how == "sum":
            merged[name] = one + two
        elif how == "max":
            merged[name] = np.maximum(one, two)
        elif how == "min":
            merged[name] = np.minimum(one, two)
        else:
            by = how.removeprefix("with ")
            better = second[by] > first[by] if merges[by] == "max" else second[by] < first[by]
            merged[name] = np.where(better, two, one)
    return merged
