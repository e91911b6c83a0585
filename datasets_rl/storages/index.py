"""The trajectories of a storage, kept up to date with its writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import compress
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key, dotted
from datasets_rl.ted.trajectories import Trajectories, TrajectoryMarkers, spans

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

__all__ = ["EndKey", "TrajectoryIndex"]

EndKey = Key | tuple[Key, ...]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

_all: WeakSet[TrajectoryIndex] = WeakSet()
_TRAJECTORY_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), EPISODE)


@dataclass(frozen=True)
class _Keys:
    """Where the signs stand in the data."""

    ends: tuple[Key, ...]
    traj: Key | None
    step: Key | None

    @classmethod
    def of(cls, storage: Storage, end_key: EndKey | None, traj_key: Key | None, step_key: Key | None) -> _Keys:
        """Find what there is. A key that was named must be there; of several end keys, one."""
        if traj_key is None and end_key is None:
            traj_key = next((key for key in _TRAJECTORY_KEYS if _has(storage, key)), None)
        asked: EndKey = end_key or NEXT_DONE
        named = (asked,) if isinstance(asked[0], str) else asked
        ends = tuple(key for key in named if _has(storage, key))
        if not ends and (end_key is not None or traj_key is None):
            raise InvalidArgumentError(
                f"the data has no {' or '.join(dotted(key) for key in named)}, so nothing says where a trajectory ends",
                hint="name what does: end_key=..., or traj_key=... for a number of the trajectory",
            )
        return cls(ends, traj_key, step_key)

    def read(self, storage: Storage, rows: Index) -> TrajectoryMarkers:
        """Return the signs of these rows, [n]."""
        envs = storage.envs
        ids = () if self.traj is None else (_numbers(storage, self.traj, rows),)
        ends = [_one_each(storage, key, rows).bool().numpy() for key in self.ends]
        return TrajectoryMarkers(
            ids=(*ids, rows % envs) if envs > 1 or not ids else ids,
            ends=np.logical_or.reduce(ends) if ends else None,
            steps=None if self.step is None else _numbers(storage, self.step, rows),
        )


def _has(storage: Storage, key: Key) -> bool:
    try:
        storage.column(key)
    except UnknownKeyError:
        return False
    return True


def _one_each(storage: Storage, key: Key, rows: Index) -> Tensor:
    values = storage.column(key)
    first, stop = int(rows[0]), int(rows[-1]) + 1
    at = slice(first, stop) if stop - first == len(rows) else torch.from_numpy(rows).to(values.device)
    values = values[at].cpu().reshape(len(rows), -1)
    if values.shape[1] != 1:
        raise InvalidArgumentError(f"{dotted(key)} has {values.shape[1]} values a step; expected one")
    return values[:, 0]


def _numbers(storage: Storage, key: Key, rows: Index) -> Index:
    values = _one_each(storage, key, rows)
    if not values.is_floating_point():
        return values.to(torch.int64).numpy()
    whole = values.to(torch.int64)
    if not torch.equal(whole.to(values.dtype), values):
        raise InvalidArgumentError(
            f"{dotted(key)} holds numbers that are not whole; expected a number of the trajectory or step"
        )
    return whole.numpy()


def _rows(slots: Index, envs: int) -> Index:
    return slots if envs == 1 else (slots[:, None] * envs + np.arange(envs)).reshape(-1)


class TrajectoryIndex:
    """Where the trajectories of a storage lie, for one choice of keys.

    A trajectory is a list of rows in the order in which they were written. All lists lie in one array, each in a
    segment with room to grow; a list that outgrows its segment moves to one twice as long behind the others, and when
    the array is full, the lists that are left are moved together. A write reads the rows that it wrote, no others.

        ring, 6 slots     6  7  2  3  4  5          steps 6 and 7 have taken the place of 0 and 1
        episodes          B  C  A  A  B  B          step 6 was the last of its episode

        order             .  .  2  3 |  4  5  0  . |  1  .       a segment for A, B and C
        firsts, lengths         2, 2    4, 3           8, 1

    A trajectory ends at a True end flag, and where the step is not one more than before. Rows that are overwritten are
    the oldest of the storage, so the first ones of their lists; the newest row is never followed by the oldest.

    Args:
        end_key: Where it stands that a row is the last one; several keys: where one of them is True.
        traj_key: Where the number of the trajectory stands: rows with the same one belong together.
        step_key: Where the number of the step stands.
    """

    def __init__(self, end_key: EndKey | None, traj_key: Key | None, step_key: Key | None) -> None:
        self._asked = (end_key, traj_key, step_key)
        self._seen: tuple[int, int] | None = None
        self._lock = Lock()
        _all.add(self)

    def current(self, storage: Storage) -> Trajectories:
        """Return the trajectories as they are now.

        Raises:
            InvalidArgumentError: If the data does not say where trajectories end.
            UnknownKeyError: If a key that was named is not there.
        """
        now = (storage.written, storage.rewritten)
        # Threads that make batches ahead ask outside the gate, while nothing is written.
        with self._lock:
            if now != self._seen:
                self._follow(storage, now)
                self._seen = now if len(self._trajectories) else None
            return self._trajectories

    def _follow(self, storage: Storage, now: tuple[int, int]) -> None:
        fresh = now[0] - self._seen[0] if self._seen is not None and self._seen[1] == now[1] else -1
        if storage.torn == len(storage):
            self._trajectories = Trajectories(np.empty(0, np.int64), np.empty(0, np.int64))
        elif storage.read_only:
            rows, keys = storage.chronological_rows().numpy(), _Keys.of(storage, *self._asked)
            self._trajectories = Trajectories.scan(keys.read(storage, rows), rows, frozenset(keys.ends))
        else:
            if 0 <= fresh <= storage.slots:
                rows = _rows(np.arange(now[0] - fresh, now[0]) % storage.slots, storage.envs)
                self._evict(rows)
            else:
                rows = storage.chronological_rows().numpy()
                self._keys = _Keys.of(storage, *self._asked)
                self._clear(storage.slots * storage.envs)
            signs = self._keys.read(storage, rows)
            if storage.torn:
                signs = signs.ending(storage.before_torn(torch.from_numpy(rows)).numpy())
            self._append(rows, signs)
            live = self._by_age(now[0] % storage.slots * storage.envs)
            firsts, lengths = self._firsts[live], self._lengths[live]
            self._trajectories = Trajectories(firsts, lengths, self._order, self._places, frozenset(self._keys.ends))

    def _by_age(self, oldest: int) -> Index:
        """Return the lists that hold something by the time of their first rows: a restored storage counts the same."""
        live = np.flatnonzero(self._lengths)
        heads = self._order[self._firsts[live]]
        return live[np.argsort((heads - oldest) % len(self._places), kind="stable")]

    def _clear(self, capacity: int) -> None:
        self._order = np.empty(4 * capacity, np.int64)
        self._used = 0
        self._places = np.full(capacity, -1, np.int64)
        self._owners = np.full(capacity, -1, np.int64)
        self._firsts, self._lengths, self._limits, self._steps = (np.zeros(0, np.int64) for _ in range(4))
        self._open: dict[tuple[int, ...], int] = {}  # the list that the next row of these ids may go on with
        self._groups: dict[int, tuple[int, ...]] = {}  # the ids of lists that are open, or were
        self._free: Index = np.zeros(0, np.int64)

    def _evict(self, rows: Index) -> None:
        """Take rows that were overwritten off the heads of their lists."""
        owners = self._owners[rows]
        gone = np.bincount(owners[owners >= 0], minlength=len(self._lengths))
        self._firsts += gone
        self._lengths -= gone
        dead = np.flatnonzero((gone > 0) & (self._lengths == 0))
        for one in dead.tolist():
            group = self._groups.pop(one, None)
            if group is not None and self._open.get(group) == one:
                del self._open[group]
        self._free = np.append(self._free, dead)

    def _append(self, rows: Index, signs: TrajectoryMarkers) -> None:
        order, opens = signs.cut()
        rows = rows[order]
        heads = np.flatnonzero(opens)
        counts = np.diff(heads, append=len(rows))
        tails = heads + counts - 1
        ids = [array[order] for array in signs.ids]
        # The first piece of a group may go on with what is open of it; the last one may stay open.
        first = np.zeros(len(heads), np.bool_)
        first[0] = True
        for array in ids:
            first[1:] |= array[heads[1:]] != array[tails[:-1]]
        last = np.append(first[1:], [True])
        groups = list(zip(*(array[heads[first]].tolist() for array in ids), strict=True))
        owners = np.full(len(heads), -1, np.int64)
        owners[first] = [self._open.pop(group, -1) for group in groups]
        steps = signs.steps[order] if signs.steps is not None else None
        if steps is not None:
            joined = np.flatnonzero(owners >= 0)
            owners[joined[self._steps[owners[joined]] + 1 != steps[heads[joined]]]] = -1
        stays = last if signs.ends is None else last & ~signs.ends[order[tails]]

        fresh = owners < 0
        owners[fresh] = self._take(int(fresh.sum()))
        starts = self._room(owners, counts, stays)
        for group, owner in zip(compress(groups, stays[last]), owners[stays].tolist(), strict=True):
            self._open[group] = owner
            self._groups[owner] = group
        if steps is not None:
            self._steps[owners] = steps[tails]

        places = spans(starts, counts)
        self._order[places] = rows
        self._places[rows] = places
        self._owners[rows] = np.repeat(owners, counts)
        self._lengths[owners] += counts

    def _take(self, count: int) -> Index:
        """Return numbers for new lists, those of lists that are gone first."""
        reused, self._free = self._free[:count], self._free[count:]
        missing = count - len(reused)
        start = len(self._lengths)
        if missing:
            more = np.zeros(missing, np.int64)
            self._firsts = np.append(self._firsts, more)
            self._lengths = np.append(self._lengths, more)
            self._limits = np.append(self._limits, more)
            self._steps = np.append(self._steps, more)
        return np.append(reused, np.arange(start, start + missing))

    def _room(self, owners: Index, counts: Index, stays: Mask) -> Index:
        """Make room for so many more rows in each list, and return the places where they go."""
        lengths = self._lengths[owners]
        ends = self._firsts[owners] + lengths
        full = (lengths == 0) | (ends + counts > self._limits[owners])
        rooms = ((lengths + counts) * np.where(stays, 2, 1))[full]
        if self._used + rooms.sum() > len(self._order):
            self._close_up(int(rooms.sum()))
            return self._room(owners, counts, stays)
        self._move(owners[full], rooms, self._order)
        return self._firsts[owners] + lengths

    def _close_up(self, spare: int) -> None:
        """Move all lists together, and leave at least so many places behind them."""
        live = np.flatnonzero(self._lengths)
        grows = self._firsts[live] + self._lengths[live] < self._limits[live]
        rooms = self._lengths[live] * np.where(grows, 2, 1)
        before, self._used = self._order, 0
        self._order = np.empty(max(4 * len(self._places), int(rooms.sum()) + spare), np.int64)
        self._move(live, rooms, before)

    def _move(self, lists: Index, rooms: Index, source: Index) -> None:
        """Give lists new segments of this many places behind all others."""
        starts = self._used + np.cumsum(rooms) - rooms
        places = spans(starts, self._lengths[lists])
        rows = source[spans(self._firsts[lists], self._lengths[lists])]
        self._order[places] = rows
        self._places[rows] = places
        self._firsts[lists] = starts
        self._limits[lists] = starts + rooms
        self._used += int(rooms.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process makes its own from the same memory.
        return type(self), self._asked


def _after_fork() -> None:
    """Free every index in a forked process: the thread of its parent that was at work does not exist here."""
    for index in list(_all):
        if index._lock.locked():  # noqa: SLF001 - of this file
            index._lock, index._seen = Lock(), None  # noqa: SLF001 - of this file


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)
