"""Which rows follow each other in time, and the slices that can be cut from them: all index arithmetic of slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key
from datasets_rl.ted.table import EpisodeTable

__all__ = ["Slices", "Trajectories", "TrajectoryMarkers", "spans"]

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TrajectoryMarkers:
    """What the data says of n rows, given in the order of time, by which they fall into trajectories."""

    ids: tuple[Index, ...]
    """Rows belong together where all of these are the same, [n] each; at least one."""

    ends: Mask | None = None
    """Whether a row is the last of its trajectory, [n]."""

    steps: Index | None = None
    """The number of each row in its trajectory, [n]; where it is not one more than before, another one begins."""

    def ending(self, ends: Mask) -> TrajectoryMarkers:
        """Return these signs with further rows that are the last of their trajectory, [n]."""
        return replace(self, ends=ends if self.ends is None else self.ends | ends)

    def cut(self, *, by_step: bool = False) -> tuple[Index, Mask]:
        """Bring the rows together by trajectory.

        Args:
            by_step: Whether rows of the same ids are taken in the order of their steps, not of time.

        Returns:
            The order in which to take them, int64 [n], and whether a trajectory begins at each, [n].
        """
        keys = self.ids if self.steps is None or not by_step else (self.steps, *self.ids)
        # Most rows lie together already; a sort costs as much as all the rest.
        sorted_already = len(keys) == 1 and bool((keys[0][1:] >= keys[0][:-1]).all())
        order = np.arange(len(keys[0])) if sorted_already else np.lexsort(keys)
        opens = np.ones(len(order), np.bool_)
        opens[1:] = False
        for array in self.ids:
            there = array[order]
            opens[1:] |= there[1:] != there[:-1]
        if self.ends is not None:
            opens[1:] |= self.ends[order[:-1]]
        if self.steps is not None:
            there = self.steps[order]
            opens[1:] |= there[1:] != there[:-1] + 1
        return order, opens


@dataclass(frozen=True, eq=False)
class Trajectories:
    """E trajectories, each a run of places; a place stands for a row.

    Rows that lie in the order of time need no map: place and row are the same. Where a ring wraps, or environments
    take turns, `order` says which row is at a place.

        row           0  1  2  3  4  5        environments 0 and 1 took turns, 1 ended at row 3
        trajectory    0  1  0  1  0  2

        place         0  1  2  3  4  5
        order         0  2  4  1  3  5        firsts [0, 3, 5], lengths [3, 2, 1]

    Valid until the next write to the storage that it describes.
    """

    firsts: Index
    """The place of the first step of each trajectory, [E]."""

    lengths: Index
    """Steps of each trajectory, [E]; at least 1."""

    order: Index | None = None
    """The row at each place, [P]; None where place and row are the same."""

    places: Index | None = None
    """The place of each row; None where place and row are the same."""

    ended_by: frozenset[Key] = frozenset()
    """The flags that no step has but the last of its trajectory."""

    @classmethod
    def of(cls, episodes: EpisodeTable) -> Trajectories:
        """Return the episodes of a table."""
        ended_by = frozenset({NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED})
        return cls(episodes.starts.copy(), episodes.lengths.copy(), ended_by=ended_by)

    @classmethod
    def scan(cls, signs: TrajectoryMarkers, rows: Index, ended_by: frozenset[Key] = frozenset()) -> Trajectories:
        """Find the trajectories of rows that are given in the order of time, [N]."""
        order, opens = signs.cut(by_step=True)
        firsts = np.flatnonzero(opens)
        lengths = np.diff(firsts, append=len(rows))
        order = rows[order]
        if (order == np.arange(len(rows))).all():
            return cls(firsts, lengths, ended_by=ended_by)
        places = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)  # some rows may be left out
        places[order] = np.arange(len(rows))
        return cls(firsts, lengths, order, places, ended_by)

    def __len__(self) -> int:
        """Return E."""
        return len(self.firsts)

    @property
    def longest(self) -> int:
        """Steps of the longest trajectory; 0 if there is none."""
        return int(self.lengths.max(initial=0))

    def rows(self, places: Index) -> Index:
        """Return the rows at these places, in the same shape."""
        return places if self.order is None else self.order[places]

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return the trajectory and the place of these rows, [n] each."""
        places = rows if self.places is None else self.places[rows]
        by_place, firsts = self._by_place
        return by_place[firsts.searchsorted(places, "right") - 1], places

    def around(self, rows: Index, before: int, after: int) -> tuple[Index, Mask]:
        """Return the rows from `before` steps before these to `after` steps after them, within their trajectories.

        The first and the last step of a trajectory stand in for what would lie outside.

            trajectory                   0 1 2 3 | 4 5 6        outside
            row 1, before 2, after 1     0 0 1 2                x . . .
            row 6, before 2, after 1               4 5 6 6      . . . x

        Args:
            rows: Of some steps, [n].
            before: Steps before each, from 0.
            after: Steps after it, from 0.

        Returns:
            Rows, int64 [n, before + 1 + after], and whether another one stands in, in the same shape.
        """
        owner, places = self.locate(rows)
        wanted = places[:, None] + np.arange(-before, after + 1)
        firsts = self.firsts[owner]
        there = np.clip(wanted, firsts[:, None], (firsts + self.lengths[owner] - 1)[:, None])
        return self.rows(there), there != wanted

    @cached_property
    def _by_place(self) -> tuple[Index, Index]:
        by_place = np.argsort(self.firsts, kind="stable")
        return by_place, self.firsts[by_place]

    def share(self, rank: int, world_size: int) -> Trajectories:
        """Return every `world_size`-th trajectory from `rank` on: all ranks together have each of them once."""
        mine = slice(rank, None, world_size)
        return replace(self, firsts=self.firsts[mine], lengths=self.lengths[mine])

    def slices(
        self, length: int, *, short: bool = False, before: int = 0, after: int = 0, at_start: bool = False
    ) -> Slices:
        """Return all slices of `length` steps, T, within one trajectory each.

        Args:
            length: T, at least 1.
            short: Whether trajectories of fewer steps count, each as one slice of its own length.
            before: Steps by which a slice may begin before its trajectory; those are left out of it.
            after: Steps by which it may go on after the end; the same.
            at_start: Whether only those count that start with the first step of a trajectory.
        """
        full = np.minimum(self.lengths, length)
        left, right = np.minimum(before, full - 1), np.minimum(after, full - 1)
        counts = self.lengths - full + 1 + left + right
        if at_start:
            counts = np.ones_like(full)
        if not short:
            counts[self.lengths < length] = 0
        ends = np.cumsum(counts)
        whole = not before and not after and (not short or bool((full == length).all()))
        return Slices(self, length, counts, ends, self.firsts - left - (ends - counts), whole, int(counts.sum()))


@dataclass(frozen=True, eq=False)
class Slices:
    """The slices that can be cut from trajectories, numbered through.

    T = 3            trajectory 0 . . . .    trajectory 1 . .    trajectory 2 . . .
    slices           |0---|                  none, or with       |2---|
                       |1---|                `short` number 2
    """

    trajectories: Trajectories
    length: int
    """Steps of a whole slice, T."""
    counts: Index
    """Slices of each trajectory, [E]."""
    ends: Index
    """The number after that of the last slice of each trajectory, [E]."""
    shift: Index
    """What makes the number of a slice the place where it starts, for each trajectory, [E]."""
    whole: bool
    """Whether every slice has T steps."""
    total: int
    """How many slices there are."""

    def at(self, numbers: Index) -> tuple[Index, Index | None]:
        """Return where the slices of these numbers start, and their steps: places [n], lengths [n] or None for T."""
        owner = self.ends.searchsorted(numbers, "right")
        starts = numbers + self.shift[owner]
        if self.whole:
            return starts, None
        firsts, lengths = self.trajectories.firsts[owner], self.trajectories.lengths[owner]
        stops = np.minimum(starts + np.minimum(lengths, self.length), firsts + lengths)
        starts = np.maximum(starts, firsts)
        return starts, stops - starts

    def starting(self, rows: Index) -> tuple[Mask, Index, Index | None]:
        """Return the slices that start at these rows: whether there is one, its place and its steps, [n] each."""
        owner, starts = self.trajectories.locate(rows)
        numbers, ends = starts - self.shift[owner], self.ends[owner]
        admitted = (numbers >= ends - self.counts[owner]) & (numbers < ends)
        lengths = self.trajectories.lengths[owner]
        left = self.trajectories.firsts[owner] + lengths - starts
        return admitted, starts, None if self.whole else np.minimum(left, np.minimum(lengths, self.length))

    def rows(self, starts: Index, lengths: Index | None, *, pad: bool = False) -> Index:
        """Return the rows of slices, one slice after the other, int64 [B].

        Args:
            starts: Their first places, [n].
            lengths: Their steps, [n]; None for T.
            pad: Whether shorter slices are filled up to T with their last row.
        """
        if lengths is None:
            places = (starts[:, None] + self._steps).reshape(-1)
        elif pad:
            places = (starts[:, None] + np.minimum(self._steps, lengths[:, None] - 1)).reshape(-1)
        else:
            places = spans(starts, lengths)
        return self.trajectories.rows(places)

    @cached_property
    def _steps(self) -> Index:
        return np.arange(self.length)

    def check_any_left(self) -> None:
        """Raise if there is no slice.

        Raises:
            InvalidArgumentError: If no trajectory is long enough, or there is none.
        """
        if not len(self.trajectories):
            raise InvalidArgumentError("the storage holds no step to sample", hint="extend the buffer first")
        if not self.total:
            raise InvalidArgumentError(
                f"no trajectory has {self.length} steps; the longest of {len(self.trajectories)} has "
                f"{self.trajectories.longest}",
                hint="ask for shorter slices, or give strict_length=False to take short trajectories whole",
            )


def spans(starts: Index, lengths: Index) -> Index:
    """Return ``start, start + 1, ...`` for each start, one after the other: spans of these lengths, [sum]."""
    stops = np.cumsum(lengths)
    return np.repeat(starts - (stops - lengths), lengths) + np.arange(lengths.sum())
