"""Trajectories among the rows of a storage, and slices of a fixed length in trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key
from datasets_rl.ted.table import EpisodeTable, concatenated_ranges

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MAX_LOOKUPS = 4
"""Number of trajectories after the start of a block of places that are tried before a bisection."""


@dataclass(frozen=True)
class TrajectoryMarkers:
    """Columns of n rows, in chronological order, that determine how the rows are divided into trajectories."""

    ids: tuple[Index, ...]
    """Ids, [n] each, at least one array: rows of a trajectory agree in all arrays."""

    ends: Mask | None = None
    """Whether each row is the last row of its trajectory, [n]."""

    steps: Index | None = None
    """Step number of each row within its trajectory, [n]. A number that is not the previous number plus 1 starts a
    trajectory."""

    def with_ends(self, ends: Mask) -> TrajectoryMarkers:
        """Return these markers with additional last rows of trajectories, a mask [n]."""
        return replace(self, ends=ends if self.ends is None else self.ends | ends)

    def group_rows(self, *, by_step: bool = False) -> tuple[Index, Mask]:
        """Group the rows by trajectory.

        Args:
            by_step: Whether to sort rows with the same ids by `steps` instead of by time.

        Returns:
            The order that groups the rows, int64 [n], and whether a trajectory starts at each position, [n].
        """
        keys = self.ids if self.steps is None or not by_step else (self.steps, *self.ids)
        # Most rows are already grouped, and a sort costs as much as the rest of this function.
        sorted_already = len(keys) == 1 and bool((keys[0][1:] >= keys[0][:-1]).all())
        order = np.arange(len(keys[0])) if sorted_already else np.lexsort(keys)
        opens = np.ones(len(order), np.bool_)
        opens[1:] = False
        for ids in self.ids:
            ordered = ids[order]
            opens[1:] |= ordered[1:] != ordered[:-1]
        if self.ends is not None:
            opens[1:] |= self.ends[order[:-1]]
        if self.steps is not None:
            ordered = self.steps[order]
            opens[1:] |= ordered[1:] != ordered[:-1] + 1
        return order, opens


@dataclass(frozen=True, eq=False)
class Trajectories:
    """E trajectories, each a range of places. `order` maps places to rows.

    Places number the rows so that each trajectory is contiguous. If the rows are in chronological order, place and row
    are equal, and `order` is None. If a ring buffer wraps, or several environments alternate, `order` has the row at
    each place.

        row           0  1  2  3  4  5        environments 0 and 1 alternated, 1 ended at row 3
        trajectory    0  1  0  1  0  2

        place         0  1  2  3  4  5
        order         0  2  4  1  3  5        firsts [0, 3, 5], lengths [3, 2, 1]

    An instance is valid until the next write to the described storage.
    """

    firsts: Index
    """Place of the first step of each trajectory, [E]."""

    lengths: Index
    """Number of steps of each trajectory, [E], at least 1."""

    order: Index | None = None
    """Row at each place, [P], or None if place and row are equal."""

    places: Index | None = None
    """Place of each row, or None if place and row are equal."""

    ended_by: frozenset[Key] = frozenset()
    """Keys of the flags that only the last step of a trajectory can have."""

    permanent: bool = False
    """Whether the trajectories are of a dataset, which never changes, so that an index is worth its time."""

    @classmethod
    def from_table(cls, episodes: EpisodeTable) -> Trajectories:
        """Return the trajectories of an episode table."""
        ended_by = frozenset({NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED})
        return cls(episodes.starts, episodes.lengths, ended_by=ended_by, permanent=True)

    @classmethod
    def from_markers(
        cls, markers: TrajectoryMarkers, rows: Index, ended_by: frozenset[Key] = frozenset()
    ) -> Trajectories:
        """Return the trajectories of rows in chronological order.

        Args:
            markers: Markers of the rows.
            rows: Row number of each marked row, [N].
            ended_by: Keys of the flags that only the last step of a trajectory can have.
        """
        order, opens = markers.group_rows(by_step=True)
        firsts = np.flatnonzero(opens)
        lengths = np.diff(firsts, append=len(rows))
        order = rows[order]
        if (order == np.arange(len(rows))).all():
            return cls(firsts, lengths, ended_by=ended_by)
        places = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)  # rows may be missing
        places[order] = np.arange(len(rows))
        return cls(firsts, lengths, order, places, ended_by)

    def __len__(self) -> int:
        """Return the number of trajectories, E."""
        return len(self.firsts)

    @property
    def longest(self) -> int:
        """Number of steps of the longest trajectory, 0 without trajectories."""
        return int(self.lengths.max(initial=0))

    def rows(self, places: Index) -> Index:
        """Return the rows at places, in the same shape."""
        return places if self.order is None else self.order[places]

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return the trajectory and the place of each row, [n] each."""
        places = rows if self.places is None else self.places[rows]
        by_place, firsts = self._by_place
        owners = self._owners(places) if self.permanent else firsts.searchsorted(places, "right") - 1
        return owners if firsts is self.firsts else by_place[owners], places

    def _owners(self, places: Index) -> Index:
        """Return the number of the last of the ascending first places that is at most each place, [n].

        A bisection of unordered places costs ten times as much as to look up the trajectory at the start of a block of
        places, and to go on by a few trajectories from there.
        """
        shift, owners_of_blocks, firsts = self.blocks
        blocks = places >> shift
        if blocks.min(initial=0) >= 0 and blocks.max(initial=-1) < len(owners_of_blocks):
            owners: Index = owners_of_blocks[blocks]
            for _ in range(_MAX_LOOKUPS):
                following = firsts[owners + 1] <= places
                if not following.any():
                    return owners
                owners += following
        return firsts.searchsorted(places, "right") - 1

    @cached_property
    def blocks(self) -> tuple[int, Index, Index]:
        """The logarithm of the number of places in a block, the trajectory at the start of each block, and first places.

        A block is about as long as a trajectory. The first places end with the largest number, which no place reaches.
        """
        firsts = self._by_place[1]
        end = int(firsts[-1] + self.lengths.max()) if len(firsts) else 0
        shift = max(end // max(len(firsts), 1), 1).bit_length() - 1
        starts = np.arange(0, end + 1, 1 << shift)
        return shift, firsts.searchsorted(starts, "right") - 1, np.append(firsts, np.iinfo(np.int64).max)

    def windows_around(self, rows: Index, offsets: Sequence[int]) -> tuple[Index, Mask]:
        """Return windows of rows: the rows at `offsets` steps from each row, negative before the row.

        A window stays within its trajectory: positions outside are filled with the first or the last step.

            trajectory                   0 1 2 3 | 4 5 6        filled
            row 1, offsets -2 -1 0 1     0 0 1 2                x . . .
            row 6, offsets -2 -1 0 1               4 5 6 6      . . . x

        Args:
            rows: Row of each window, [n].
            offsets: Steps of a window, relative to its row, [W].

        Returns:
            Rows, int64 [n, W], and whether each position is filled, in the same shape.
        """
        owner, places = self.locate(rows)
        firsts = self.firsts[owner]
        return windows_within(places, firsts, firsts + self.lengths[owner] - 1, offsets, self.order)

    @cached_property
    def _by_place(self) -> tuple[Index, Index]:
        by_place = np.argsort(self.firsts, kind="stable")
        sorted_already = bool((self.firsts[1:] >= self.firsts[:-1]).all())
        return by_place, self.firsts if sorted_already else self.firsts[by_place]

    def share(self, rank: int, world_size: int) -> Trajectories:
        """Return every `world_size`-th trajectory, starting with number `rank`.

        Each trajectory has exactly one rank.
        """
        selected = slice(rank, None, world_size)
        return replace(self, firsts=self.firsts[selected], lengths=self.lengths[selected])

    def slices(
        self, length: int, *, short: bool = False, before: int = 0, after: int = 0, at_start: bool = False
    ) -> Slices:
        """Return all slices of `length` steps, T, each within a trajectory.

        Args:
            length: Number of steps, T, at least 1.
            short: Whether a trajectory with fewer steps counts as a slice, with all steps.
            before: Maximum number of steps by which a slice can start before its trajectory. The slice does not contain
                these steps.
            after: Maximum number of steps by which a slice can end after its trajectory, likewise.
            at_start: Whether to admit only slices that start with the first step of a trajectory.
        """
        fits_all = len(self) > 0 and int(self.lengths.min()) >= length
        whole = not before and not after and (not short or fits_all)
        return Slices(self, length, before, after, short, at_start, whole, short or fits_all)


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices of T steps within trajectories, numbered consecutively.

    The numbers are only computed when needed: an epoch over the trajectories needs the number of slices of a few.

    T = 3            trajectory 0 . . . .    trajectory 1 . .    trajectory 2 . . .
    slices           |0---|                  none, or with       |2---|
                       |1---|                `short` number 2
    """

    trajectories: Trajectories
    length: int
    """Number of steps of a full slice, T."""
    before: int
    """Maximum number of steps by which a slice can start before its trajectory."""
    after: int
    """Maximum number of steps by which a slice can end after its trajectory."""
    short: bool
    """Whether a trajectory with fewer steps counts as a slice."""
    at_start: bool
    """Whether slices start with the first step of a trajectory."""
    whole: bool
    """Whether every slice has T steps."""
    of_all: bool
    """Whether every trajectory has a slice."""

    def counts_of(self, owners: Index | slice) -> Index:
        """Return the number of slices of some trajectories, [n]."""
        lengths = self.trajectories.lengths[owners]
        if self.at_start:
            counts = np.ones_like(lengths)
        elif not self.before and not self.after:
            counts = np.maximum(lengths - (self.length - 1), int(self.short))
        else:
            full = np.minimum(lengths, self.length)
            counts = lengths - full + 1 + np.minimum(self.before, full - 1) + np.minimum(self.after, full - 1)
        if not self.of_all:
            counts[lengths < self.length] = 0
        return counts

    @cached_property
    def counts(self) -> Index:
        """Number of slices of each trajectory, [E]."""
        return self.counts_of(slice(None))

    @cached_property
    def ends(self) -> Index:
        """Number of the slice after the last slice of each trajectory, [E]."""
        ends: Index = np.cumsum(self.counts)
        return ends

    @cached_property
    def shift(self) -> Index:
        """Difference between the first place and the number of a slice, for each trajectory, [E]."""
        return self._starts_of(slice(None)) - (self.ends - self.counts)

    @property
    def total(self) -> int:
        """Number of slices."""
        return int(self.ends[-1]) if len(self.trajectories) else 0

    def _starts_of(self, owners: Index | slice) -> Index:
        """Return the first place of the first slice of some trajectories, [n]."""
        starts: Index = self.trajectories.firsts[owners]
        if self.before:
            starts = starts - np.minimum(self.before, np.minimum(self.trajectories.lengths[owners], self.length) - 1)
        return starts

    def at(self, numbers: Index) -> tuple[Index, Index | None]:
        """Return the first places and the numbers of steps of slices, [n] each, by number.

        Returns:
            First places, and numbers of steps. None for the steps if all slices have T.
        """
        owner = self.ends.searchsorted(numbers, "right")
        return self._within(owner, numbers + self.shift[owner])

    def of(self, owner: Index, numbers: Index) -> tuple[Index, Index | None]:
        """Return the first places and the numbers of steps of slices, as `at` does.

        Args:
            owner: The trajectory of each slice, [n].
            numbers: The number of each slice among the slices of the trajectory, [n].
        """
        return self._within(owner, self._starts_of(owner) + numbers)

    def _within(self, owner: Index, starts: Index) -> tuple[Index, Index | None]:
        """Return the parts of slices within their trajectories, from the places at which whole slices would start."""
        if self.whole:
            return starts, None
        firsts, lengths = self.trajectories.firsts[owner], self.trajectories.lengths[owner]
        stops = np.minimum(starts + np.minimum(lengths, self.length), firsts + lengths)
        starts = np.maximum(starts, firsts)
        return starts, stops - starts

    def starting(self, rows: Index) -> tuple[Mask, Index, Index | None]:
        """Return the slices that start at rows.

        Returns:
            Whether an admissible slice starts at each row, its first place, and its number of steps, [n] each. None for
            the steps if all slices have T.
        """
        owner, starts = self.trajectories.locate(rows)
        numbers, ends = starts - self.shift[owner], self.ends[owner]
        admitted = (numbers >= ends - self.counts[owner]) & (numbers < ends)
        lengths = self.trajectories.lengths[owner]
        remaining = self.trajectories.firsts[owner] + lengths - starts
        return admitted, starts, None if self.whole else np.minimum(remaining, np.minimum(lengths, self.length))

    def rows(self, starts: Index, lengths: Index | None, *, pad: bool = False) -> Index:
        """Return the rows of slices, concatenated, int64 [B].

        Args:
            starts: First place of each slice, [n].
            lengths: Number of steps of each slice, [n], or None if all have T.
            pad: Whether to pad shorter slices to T steps with the last row.
        """
        if lengths is None:
            places = (starts[:, None] + self._steps).reshape(-1)
        elif pad:
            places = (starts[:, None] + np.minimum(self._steps, lengths[:, None] - 1)).reshape(-1)
        else:
            places = concatenated_ranges(starts, lengths)
        return self.trajectories.rows(places)

    @cached_property
    def _steps(self) -> Index:
        return np.arange(self.length)

    def check_any_left(self) -> None:
        """Check that a slice exists.

        Raises:
            InvalidArgumentError: If the storage is empty, or no trajectory is long enough.
        """
        if not len(self.trajectories):
            raise InvalidArgumentError("Cannot sample from an empty storage", hint="extend the buffer first")
        if not self.of_all and not self.total:
            raise InvalidArgumentError(
                f"no trajectory has {self.length} steps, and the longest of {len(self.trajectories)} has "
                f"{self.trajectories.longest}",
                hint="request shorter slices, or pass strict_length=False to return short trajectories whole",
            )


def windows_within(
    places: Index, firsts: Index, lasts: Index, offsets: Sequence[int], order: Index | None = None
) -> tuple[Index, Mask]:
    """Return the rows of windows that stay within ranges of places, see `Trajectories.windows_around`.

    Args:
        places: Place of each window, [n].
        firsts: First place of its range, [n].
        lasts: Last place of its range, [n].
        offsets: Steps of a window, relative to the place, [W].
        order: Row at each place, or None if equal to the place.
    """
    from datasets_rl.ted.window_loops import fill_windows  # deferred: imports numba

    window = np.empty((len(places), len(offsets)), np.int64)
    outside = np.empty(window.shape, np.bool_)
    places, firsts, lasts, steps, order = (
        np.ascontiguousarray(numbers, np.int64)
        for numbers in (places, firsts, lasts, offsets, () if order is None else order)
    )
    fill_windows(places, firsts, lasts, steps, order, window, outside)
    return window, outside
