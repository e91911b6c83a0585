"""Index of the trajectories in a storage, updated with each write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import compress
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, EndKey, Key, dotted_name
from datasets_rl.ted.table import concatenated_ranges
from datasets_rl.ted.trajectories import Trajectories, TrajectoryMarkers

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

_all: WeakSet[TrajectoryIndex] = WeakSet()
_TRAJECTORY_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), EPISODE)


class _Rows(Protocol):
    """What the index reads of a storage, see `Storage`."""

    @property
    def envs(self) -> int: ...

    @property
    def slot_count(self) -> int: ...

    @property
    def write_count(self) -> int: ...

    @property
    def rewrite_count(self) -> int: ...

    @property
    def torn(self) -> int: ...

    @property
    def read_only(self) -> bool: ...

    def __len__(self) -> int: ...

    def column(self, key: Key) -> Tensor: ...

    def has_field(self, key: Key) -> bool: ...

    def chronological_rows(self) -> Tensor: ...

    def before_torn(self, rows: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class _Keys:
    """Keys of the fields that mark trajectories in the data."""

    ends: tuple[Key, ...]
    traj: Key | None
    step: Key | None

    @classmethod
    def from_storage(cls, storage: _Rows, end_key: EndKey | None, traj_key: Key | None, step_key: Key | None) -> _Keys:
        """Resolve the keys against the data.

        Of the end keys that were named, at least one must exist. Without end keys, the trajectory key must exist.
        """
        if end_key is None:
            traj_key = traj_key or default_trajectory_key(storage)
        elif traj_key is not None and not storage.has_field(traj_key):
            traj_key = None
        requested: EndKey = end_key or NEXT_DONE
        named = (requested,) if isinstance(requested[0], str) else requested
        ends = tuple(key for key in named if storage.has_field(key))
        if not ends and (end_key is not None or traj_key is None):
            raise InvalidArgumentError(
                f"the data has no {' or '.join(dotted_name(key) for key in named)}, so the ends of trajectories are unknown",
                hint="name the key that marks the ends: end_key=..., or traj_key=... for a trajectory id",
            )
        return cls(ends, traj_key, step_key)

    def read(self, storage: _Rows, rows: Index) -> TrajectoryMarkers:
        """Return the trajectory markers of these rows [n]."""
        envs = storage.envs
        ids = () if self.traj is None else (_read_numbers(storage, self.traj, rows),)
        ends = [_read_scalars(storage, key, rows).bool().numpy() for key in self.ends]
        return TrajectoryMarkers(
            ids=(*ids, rows % envs) if envs > 1 or not ids else ids,
            ends=np.logical_or.reduce(ends) if ends else None,
            steps=None if self.step is None else _read_numbers(storage, self.step, rows),
        )


def default_trajectory_key(storage: _Rows) -> Key | None:
    """Return the key of the trajectory id that is used if no key is named, or None if the data has no such key."""
    return next((key for key in _TRAJECTORY_KEYS if storage.has_field(key)), None)


def _read_scalars(storage: _Rows, key: Key, rows: Index) -> Tensor:
    values = storage.column(key)
    first, stop = int(rows[0]), int(rows[-1]) + 1
    index = slice(first, stop) if stop - first == len(rows) else torch.from_numpy(rows).to(values.device)
    values = values[index].cpu().reshape(len(rows), -1)
    if values.shape[1] != 1:
        raise InvalidArgumentError(f"{dotted_name(key)} has {values.shape[1]} values per step, expected 1")
    return values[:, 0]


def _read_numbers(storage: _Rows, key: Key, rows: Index) -> Index:
    values = _read_scalars(storage, key, rows)
    if not values.is_floating_point():
        return values.to(torch.int64).numpy()
    integers = values.to(torch.int64)
    if not torch.equal(integers.to(values.dtype), values):
        raise InvalidArgumentError(
            f"{dotted_name(key)} holds values that are not integers, expected the id of a trajectory or the index of a step"
        )
    return integers.numpy()


def _rows_of_slots(slots: Index, envs: int) -> Index:
    return slots if envs == 1 else (slots[:, None] * envs + np.arange(envs)).reshape(-1)


class TrajectoryIndex:
    """The trajectories of a storage, for a choice of keys.

    A trajectory is a list of rows in the order in which they were written. All lists are stored in a single array, each
    in a segment with room to grow. A list that outgrows its segment moves to a segment of twice its length at the end
    of the array. When the array is full, the remaining lists are compacted. A write reads only the rows that it wrote.

        ring, 6 slots     6  7  2  3  4  5          steps 6 and 7 have replaced steps 0 and 1
        episodes          B  C  A  A  B  B          step 6 was the last of its episode

        order             .  .  2  3 |  4  5  0  . |  1  .       a segment for A, B and C
        firsts, lengths         2, 2    4, 3           8, 1

    A trajectory ends at a True end flag, and where the step index does not increase by one. The rows that a write
    replaces are the oldest of the storage, so they are at the heads of their lists. The newest row is never followed by
    the oldest.

    Args:
        end_key: Key of the flag that marks the last row. With several keys, one of the flags must be True.
        traj_key: Key of the trajectory id. Rows with the same id form a trajectory.
        step_key: Key of the step index.
    """

    def __init__(self, end_key: EndKey | None, traj_key: Key | None, step_key: Key | None) -> None:
        self._requested_keys = (end_key, traj_key, step_key)
        self._indexed_counts: tuple[int, int] | None = None
        self._lock = Lock()
        _all.add(self)

    def trajectories(self, storage: _Rows) -> Trajectories:
        """Return the current trajectories.

        Raises:
            InvalidArgumentError: If no key of the data marks where trajectories end.
            UnknownKeyError: If a key that was named does not exist.
        """
        counts = (storage.write_count, storage.rewrite_count)
        # Prefetching threads call this without the buffer's lock, at times when no write is in progress.
        with self._lock:
            if counts != self._indexed_counts:
                self._update_trajectories(storage, counts)
                self._indexed_counts = counts if len(self._trajectories) else None
            return self._trajectories

    def _update_trajectories(self, storage: _Rows, counts: tuple[int, int]) -> None:
        new_slots = (
            counts[0] - self._indexed_counts[0]
            if self._indexed_counts is not None and self._indexed_counts[1] == counts[1]
            else -1
        )
        if storage.torn == len(storage):
            self._trajectories = Trajectories(np.empty(0, np.int64), np.empty(0, np.int64))
        elif storage.read_only:
            rows, keys = storage.chronological_rows().numpy(), _Keys.from_storage(storage, *self._requested_keys)
            self._trajectories = Trajectories.from_markers(keys.read(storage, rows), rows, frozenset(keys.ends))
        else:
            if 0 <= new_slots <= storage.slot_count:
                rows = _rows_of_slots(np.arange(counts[0] - new_slots, counts[0]) % storage.slot_count, storage.envs)
                self._evict(rows)
            else:
                rows = storage.chronological_rows().numpy()
                self._keys = _Keys.from_storage(storage, *self._requested_keys)
                self._clear(storage.slot_count * storage.envs)
            markers = self._keys.read(storage, rows)
            if storage.torn:
                markers = markers.with_ends(storage.before_torn(torch.from_numpy(rows)).numpy())
            self._append(rows, markers)
            live = self._rows_by_age(counts[0] % storage.slot_count * storage.envs)
            firsts, lengths = self._firsts[live], self._lengths[live]
            self._trajectories = Trajectories(firsts, lengths, self._order, self._places, frozenset(self._keys.ends))

    def _rows_by_age(self, oldest: int) -> Index:
        """Return the non-empty lists by the age of their first rows, as a restored storage would number them."""
        live = np.flatnonzero(self._lengths)
        heads = self._order[self._firsts[live]]
        return live[np.argsort((heads - oldest) % len(self._places), kind="stable")]

    def _clear(self, capacity: int) -> None:
        self._order = np.empty(4 * capacity, np.int64)
        self._used = 0
        self._places = np.full(capacity, -1, np.int64)
        self._owners = np.full(capacity, -1, np.int64)
        self._firsts, self._lengths, self._limits, self._steps = (np.zeros(0, np.int64) for _ in range(4))
        self._open: dict[tuple[int, ...], int] = {}  # the list that the next row with these ids may extend
        self._groups: dict[int, tuple[int, ...]] = {}  # the ids of lists that are open or were open
        self._free: Index = np.zeros(0, np.int64)

    def _evict(self, rows: Index) -> None:
        """Remove overwritten rows, which are always the first of their trajectories."""
        owners = self._owners[rows]
        removed = np.bincount(owners[owners >= 0], minlength=len(self._lengths))
        self._firsts += removed
        self._lengths -= removed
        emptied = np.flatnonzero((removed > 0) & (self._lengths == 0))
        for owner in emptied.tolist():
            group = self._groups.pop(owner, None)
            if group is not None and self._open.get(group) == owner:
                del self._open[group]
        self._free = np.append(self._free, emptied)

    def _append(self, rows: Index, markers: TrajectoryMarkers) -> None:
        order, starts_list = markers.group_rows()
        rows = rows[order]
        heads = np.flatnonzero(starts_list)
        counts = np.diff(heads, append=len(rows))
        tails = heads + counts - 1
        ids = [array[order] for array in markers.ids]
        # The first run of rows of a group may extend the group's open list. The last run may leave its list open.
        first = np.zeros(len(heads), np.bool_)
        first[0] = True
        for array in ids:
            first[1:] |= array[heads[1:]] != array[tails[:-1]]
        last = np.append(first[1:], [True])
        groups = list(zip(*(array[heads[first]].tolist() for array in ids), strict=True))
        owners = np.full(len(heads), -1, np.int64)
        owners[first] = [self._open.pop(group, -1) for group in groups]
        steps = markers.steps[order] if markers.steps is not None else None
        if steps is not None:
            joined = np.flatnonzero(owners >= 0)
            owners[joined[self._steps[owners[joined]] + 1 != steps[heads[joined]]]] = -1
        stays_open = last if markers.ends is None else last & ~markers.ends[order[tails]]

        is_new = owners < 0
        owners[is_new] = self._allocate(int(is_new.sum()))
        starts = self._reserve(owners, counts, stays_open)
        for group, owner in zip(compress(groups, stays_open[last]), owners[stays_open].tolist(), strict=True):
            self._open[group] = owner
            self._groups[owner] = group
        if steps is not None:
            self._steps[owners] = steps[tails]

        places = concatenated_ranges(starts, counts)
        self._order[places] = rows
        self._places[rows] = places
        self._owners[rows] = np.repeat(owners, counts)
        self._lengths[owners] += counts

    def _allocate(self, count: int) -> Index:
        """Return ids for new lists. Ids of emptied lists are reused first."""
        reused, self._free = self._free[:count], self._free[count:]
        missing = count - len(reused)
        start = len(self._lengths)
        if missing:
            zeros = np.zeros(missing, np.int64)
            self._firsts = np.append(self._firsts, zeros)
            self._lengths = np.append(self._lengths, zeros)
            self._limits = np.append(self._limits, zeros)
            self._steps = np.append(self._steps, zeros)
        return np.append(reused, np.arange(start, start + missing))

    def _reserve(self, owners: Index, counts: Index, stays_open: Mask) -> Index:
        """Reserve space for `counts` more rows in each list, and return the places of the new rows."""
        lengths = self._lengths[owners]
        ends = self._firsts[owners] + lengths
        full = (lengths == 0) | (ends + counts > self._limits[owners])
        sizes = ((lengths + counts) * np.where(stays_open, 2, 1))[full]
        if self._used + sizes.sum() > len(self._order):
            self._compact(int(sizes.sum()))
            return self._reserve(owners, counts, stays_open)
        self._move(owners[full], sizes, self._order)
        return self._firsts[owners] + lengths

    def _compact(self, spare: int) -> None:
        """Compact all lists, and leave at least `spare` free places at the end of the array."""
        live = np.flatnonzero(self._lengths)
        grows = self._firsts[live] + self._lengths[live] < self._limits[live]
        sizes = self._lengths[live] * np.where(grows, 2, 1)
        source, self._used = self._order, 0
        self._order = np.empty(max(4 * len(self._places), int(sizes.sum()) + spare), np.int64)
        self._move(live, sizes, source)

    def _move(self, lists: Index, sizes: Index, source: Index) -> None:
        """Move lists to new segments of these sizes at the end of the used part of the array."""
        starts = self._used + np.cumsum(sizes) - sizes
        places = concatenated_ranges(starts, self._lengths[lists])
        rows = source[concatenated_ranges(self._firsts[lists], self._lengths[lists])]
        self._order[places] = rows
        self._places[rows] = places
        self._firsts[lists] = starts
        self._limits[lists] = starts + sizes
        self._used += int(sizes.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process builds its own index from the same memory.
        return type(self), self._requested_keys


def _reset_after_fork() -> None:
    """Reset every locked index in a forked process: the parent's thread that held the lock does not exist here."""
    for index in list(_all):
        if index._lock.locked():  # noqa: SLF001 - of this file
            index._lock, index._indexed_counts = Lock(), None  # noqa: SLF001 - of this file


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
