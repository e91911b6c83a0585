"""A block of consecutive rows of an audited dataset, and the sums and maxima of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.data import Data
from datasets_rl.ted.keys import Key

Shared = TypeVar("Shared")

PARTS = 4
"""Parts of equal length of an episode, of which each has its own sums."""
AHEAD = 4
"""Rows of narrow fields after a block that are read with the block."""
_EDGES_EVERY = 8


@dataclass(frozen=True, slots=True)
class Tally:
    """What a pass over a field counts in each episode of a block. Values that are not finite are counted in `wrong` alone.

    Attributes:
        sums: Of four parts of the episode: the sum of the values, of their sizes, of the sizes of their changes, and of the sizes
            of the changes of their changes, float64 [E, 4, 4, D].
        steps: Number of rows of each part, int64 [E, 4].
        still: Number of rows with the value of the row after, int64 [E, D].
        extremes: Minimum and maximum, [E, 2, D].
        counts: Rows at the minimum and at the maximum, int64 [E, 2, D].
        wrong: Number of values that are not finite, the first row with such a value and the row after the last, or -1, int64
            [E, 3]. Row 0 is the first row of the block.
    """

    sums: NDArray[np.float64]
    steps: NDArray[np.int64]
    still: NDArray[np.int64]
    extremes: NDArray[Any]
    counts: NDArray[np.int64]
    wrong: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pixels:
    """What a pass over the images of a camera keeps of each image of a block.

    Attributes:
        grids: At most 24 x 24 pixels, uint8 [N, h, w, c]: see `Data.places`.
        dark: Share of values of the grid below 8, float32 [N].
        bright: Share of values of the grid above 250, float32 [N].
        apart: Mean difference between the grids of an image and of the next one of the block, float32 [N]. Infinite for the last.
        squares: Sum of the squares of the grid, float32 [N].
        grays: Sum over the pixels of the grid of the square of the sum of the channels, float32 [N].
    """

    grids: NDArray[np.uint8]
    dark: NDArray[np.float32]
    bright: NDArray[np.float32]
    apart: NDArray[np.float32]
    squares: NDArray[np.float32]
    grays: NDArray[np.float32]


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
        self._tallies: dict[Key, Tally] = {}
        self._pixels: dict[Key, Pixels] = {}
        self._same: dict[Key, NDArray[np.bool_]] = {}
        self._measured: dict[tuple[str, Key], Any] = {}

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
        return self._read(key)[1 : len(self) + 1]

    def ahead(self, key: Key) -> NDArray[Any]:
        """Return a narrow field of the rows and of the four rows after the block, [N + 4, D].

        After the end of the dataset, the last row is repeated.
        """
        return self._read(key)

    def pixels(self, key: Key) -> Pixels:
        """Return the grids and the counts of the images of the rows."""
        if key not in self._pixels:
            self._pixels[key] = self._count_pixels(key)
        return self._pixels[key]

    def _count_pixels(self, key: Key) -> Pixels:
        from datasets_rl.auditing._pixels import COUNTS, count_pixels

        places = self.data.places(key)
        grids, counts = np.empty((len(self), places.size), np.uint8), np.empty((len(self), COUNTS), np.float32)
        count_pixels(self.now(key), places.reshape(-1), places.shape[2], grids, counts)
        counts[:, :3] /= places.size
        return Pixels(grids.reshape(len(self), *places.shape), *counts.T)

    def edges(self, key: Key) -> NDArray[np.float32]:
        """Return the mean square, and the mean fourth power, of the differences of neighboring values of images, float32 [N, 2].

        All pixels of every eighth image of an episode are looked at. The numbers of the other images are 0.
        """
        from datasets_rl.auditing._pixels import measure_edges

        edges = np.zeros((len(self), 2), np.float32)
        measure_edges(self.now(key), np.flatnonzero(self.time % _EDGES_EVERY == 0), *self.data.lines(key), edges)
        return edges

    def image_changes(self, key: Key) -> NDArray[np.float32]:
        """Return the mean square difference between the images of each row and of the next row, float32 [N].

        At most 16,384 values of an image are looked at. NaN in the last row, and where the next row is of another episode.
        """
        from datasets_rl.auditing._pixels import measure_changes

        changes = np.empty(len(self), np.float32)
        measure_changes(self.now(key), changes)
        changes[-1] = np.nan
        changes[~self.has_after] = np.nan
        return changes

    def same_images(self, key: Key) -> NDArray[np.bool_]:
        """Return whether the next row shows the same image in a moving scene, bool [N].

        Either the images are equal, and a state or the action changes. Or the images are nearly equal, as in lossy video, and the
        states move at their usual speed: see `Data.still`. Lossy video of a calm scene has equal images, too.
        """
        if key not in self._same:
            apart = np.where(self.has_after, self.pixels(key).apart, np.inf)
            equal = self.changes if not self.data.states or self.data.never_equal(key) else self.moves
            self._same[key] = (apart == 0) & equal | (apart <= self.data.still(key)) & self.moves
        return self._same[key]

    @cached_property
    def changes(self) -> NDArray[np.bool_]:
        """Whether a state or the action of each row differs from that of the next row, bool [N]. True without such fields."""
        keys = [*self.data.states, *self.data.actions]
        changes = [(self.after(key) != self.now(key)).any(axis=1) for key in keys]
        result: NDArray[np.bool_] = np.any(changes or [np.ones(len(self), np.bool_)], axis=0)
        return result

    @cached_property
    def moves(self) -> NDArray[np.bool_]:
        """Whether the states of each row move at half their usual speed or more, bool [N]. False without states."""
        states = self.data.states
        if not states:
            return np.zeros(len(self), np.bool_)
        return self.data.moving([self.now(key) for key in states], [self.after(key) for key in states])

    def once(self, name: str, key: Key, measure: Callable[[], Shared]) -> Shared:
        """Return what a function measures in the block, for several checks: the function is called at the first call."""
        if (name, key) not in self._measured:
            self._measured[name, key] = measure()
        measured: Shared = self._measured[name, key]
        return measured

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

    def tally(self, key: Key) -> Tally:
        """Return the sums and extremes of a narrow field of numbers over the rows of each episode."""
        if key not in self._tallies:
            self._tallies[key] = self._count(key)
        return self._tallies[key]

    def _count(self, key: Key) -> Tally:
        from datasets_rl.auditing._tally import add_sums, find_extremes

        values = self._read(key)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
        number, width = len(self.starts), values.shape[1]
        edges, lengths = np.append(self.starts, len(self)), self.data.episodes.lengths[self.episodes]
        times = self.time[self.starts]
        sums, still = np.zeros((number, PARTS, 4, width)), np.zeros((number, width), np.int64)
        add_sums(values, edges, times, lengths, sums, still)
        extremes = np.full((number, 2, width), np.inf, values.dtype)
        extremes[:, 1] = -np.inf
        counts, wrong = np.zeros((number, 2, width), np.int64), np.tile(np.array([0, -1, -1]), (number, 1))
        find_extremes(values, edges, extremes, counts, wrong)
        # Step t belongs to the part t * PARTS // length: the first step of each part follows.
        firsts = -(-np.arange(PARTS + 1) * lengths[:, None] // PARTS)
        steps = np.diff(np.clip(firsts, times[:, None], (times + np.diff(edges))[:, None]), axis=1)
        return Tally(sums, steps, still, extremes, counts, wrong)

    def row_of(self, values: NDArray[Any], extremes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the first row of the dataset with the extreme value of each episode, int64 [E], of values [N]."""
        hits = np.flatnonzero(values == extremes[self.episode])
        rows = np.full(len(self.starts), -1, np.int64)
        episodes, first = np.unique(self.episode[hits], return_index=True)
        rows[episodes] = hits[first] + self.start
        return rows

    def longest_runs(self, flags: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the length of the longest run of set flags [N] in each episode, int64 [E], and its first row, int64 [E].

        The first row is -1 if no flag is set. A run across the edge of two blocks counts as two runs.
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
            ahead = 1 if self.data.field(key).wide else AHEAD
            stop = min(self.stop + ahead, len(self.data))
            values = self.data.steps.read(key, self.start, stop).reshape(stop - self.start, -1)
            missing = len(self) + ahead - len(values)
            if missing:
                values = np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
            # Fields lie interleaved on the disk: checks read the values many times.
            self._values[key] = np.ascontiguousarray(values)
        return self._values[key]


def products(grids: NDArray[np.uint8], patterns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scalar product of each grid, [N, h, w, c], with each pattern, [K, h * w * c], float32 [N, K]."""
    from datasets_rl.auditing._pixels import multiply

    result = np.empty((len(grids), len(patterns)), np.float32)
    multiply(grids.reshape(len(grids), -1), patterns, result)
    return result


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
        elif how.startswith("count of "):
            by = how.removeprefix("count of ")
            extreme = np.maximum(first[by], second[by]) if merges[by] == "max" else np.minimum(first[by], second[by])
            merged[name] = one * (first[by] == extreme) + two * (second[by] == extreme)
        else:
            by = how.removeprefix("with ")
            better = second[by] > first[by] if merges[by] == "max" else second[by] < first[by]
            merged[name] = np.where(better, two, one)
    return merged
