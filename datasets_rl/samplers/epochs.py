"""Epochs that ranks share: a permutation of the episodes, divided among ranks, with a position that any rank can save.

items      4 0 6 2 5 1 3         whole episodes (of a stream: ranges of episodes), permuted by the seed and the epoch
rank 0     4   6   5   3         every second item
pools      |4 6|  |5 3|          until a pool has enough units: steps, or slices
units      6 4 4 6 6 4|3 5 5     shuffled in each pool

The units of a rank follow from the seed, the epoch, the ranks and the lengths of the items. So a state is a few numbers, which are
the same for all ranks that drew as many units. If other ranks load the state, the units that all previous ranks drew
are computed again. The remainder of the epoch is divided among the new ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from datasets_rl.arguments import check, choice_problems, unless
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.share import Share

Index = NDArray[np.int64]
Uneven = Literal["keep", "drop", "pad"]

_UNKNOWN = -1
SEEDS = 1 << 62
LISTED_MAX = 1 << 20
"""Largest number of elements whose random order is that of `torch.randperm`, which takes 20 ms for these."""


def seeded(*parts: object) -> Generator:
    """Return a generator with a seed that follows from all parts, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little"))


@dataclass(frozen=True)
class Order:
    """An order of the numbers below `count` that is computed and not listed."""

    count: int
    seed: int | None
    """Seed of a random permutation. None for ascending numbers."""
    first: int = 0
    """The first of ascending numbers. The last number is followed by 0."""

    @classmethod
    def random(cls, count: int, generator: Generator | None) -> Order:
        """Return a random order."""
        return cls(count, int(torch.randint(SEEDS, (), generator=generator)))

    def numbers(self, start: int, stop: int) -> Index:
        """Return the numbers at the positions [start, stop), int64 [n]."""
        if self.seed is None:
            return np.arange(start + self.first, stop + self.first) % self.count
        from datasets_rl.samplers.permutation import permuted  # deferred: imports numba

        return permuted(range(start, stop), self.count, self.seed)


def shuffled(count: int, generator: Generator | None) -> Index:
    """Return the numbers below `count` in random order, int64 [count]."""
    if count <= LISTED_MAX:
        order: Index = torch.randperm(count, generator=generator).numpy()
        return order
    return Order.random(count, generator).numbers(0, count)


@dataclass(eq=False)
class Items:
    """The items that ranks divide among themselves: episodes, or ranges of whole episodes.

    Args:
        dataset: A text that differs for other items.
        lengths: The number of units of each item, int64 [n], -1 where the number is unknown until the item is opened.
        open_item: Opens an item, before its units are drawn, and returns the number of units. An open item stays open.
        follow: Receives the items of an epoch that this rank draws next, in order, before the first item is opened.
    """

    dataset: str
    lengths: Index
    open_item: Callable[[int], int] | None = None
    follow: Callable[[Index], None] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def known(self) -> bool:
        """Whether all lengths are known."""
        return not (self.lengths == _UNKNOWN).any()

    def lengths_of(self, items: Index) -> Index:
        """Return the lengths of some items, which are opened if that is necessary."""
        if self.open_item is not None:
            for item in items[self.lengths[items] == _UNKNOWN].tolist():
                self.lengths[item] = self.open_item(item)
        return self.lengths[items]


_NO_ITEMS = Items("", np.empty(0, np.int64))


@dataclass(frozen=True)
class _Remainder:
    """What remains of an epoch."""

    items: Index
    """The items that have units left, in the order of the epoch."""
    parts: Mapping[int, Index] = field(default_factory=dict)
    """The units that are left of items of which some were drawn, in ascending order."""

    def lengths(self, items: Index, all_items: Items) -> Index:
        if not self.parts:
            return all_items.lengths_of(items)
        sizes = np.empty(len(items), np.int64)
        begun = np.isin(items, list(self.parts))
        sizes[begun] = [len(self.parts[item]) for item in items[begun].tolist()]
        sizes[~begun] = all_items.lengths_of(items[~begun])
        return sizes


@dataclass(frozen=True)
class _Pool:
    """Units that are shuffled together. `start` is the number of the first unit among the units of the rank."""

    start: int
    items: Index
    """The item of each unit."""
    units: Index
    """The number of each unit in its item."""


class _Lane:
    """The units of a rank in the remainder of an epoch, in the order of the draws."""

    def __init__(
        self, remainder: _Remainder, all_items: Items, share: Share, order: _Order, key: tuple[object, ...]
    ) -> None:
        self.items = remainder.items[share.rank :: share.world_size]
        self._remainder, self._of, self._order, self._key = remainder, all_items, order, key
        self._stops = np.zeros(1, np.int64)  # after the units of the first 0, 1, ... items
        self._firsts = [0]  # the first item of each pool
        self._pool: _Pool | None = None
        self._single: bool | None = None
        if all_items.known:
            self._extend(len(self.items))

    def _extend(self, count: int) -> None:
        """Find the lengths of the next items."""
        known = len(self._stops) - 1
        sizes = self._remainder.lengths(self.items[known : known + count], self._of)
        self._stops = np.append(self._stops, self._stops[-1] + np.cumsum(sizes))

    def _is_whole(self) -> bool:
        return len(self._stops) > len(self.items)

    def has(self, unit: int) -> bool:
        """Return whether the rank has a unit of this number."""
        while self._stops[-1] <= unit and not self._is_whole():
            self._extend(1)
        return bool(unit < self._stops[-1])

    @property
    def total(self) -> int:
        """The number of units."""
        if not self._is_whole():
            self._extend(len(self.items))
        return int(self._stops[-1])

    def _stop_of_pool(self, first: int) -> int:
        """Return the item after the pool that starts with an item."""
        target = int(self._stops[first]) + self._order.pool
        last = min(first + self._order.pool_items, len(self.items))
        while self._stops[-1] < target and len(self._stops) <= last:
            self._extend(1)
        return min(int(self._stops.searchsorted(target)), last)

    def items_from(self, unit: int) -> tuple[int, int]:
        """Return the items of the pool that has a unit: the first item, and the item after the last."""
        while True:
            first = self._firsts[-1]
            if unit < self._stops[first]:  # an earlier pool
                self._firsts.pop()
                continue
            if first >= len(self.items):
                return first, first
            stop = self._stop_of_pool(first)
            if unit < self._stops[stop]:
                return first, stop
            self._firsts.append(stop)

    def pool(self, unit: int) -> _Pool:
        """Return the pool that has a unit."""
        first, stop = self.items_from(unit)
        start = int(self._stops[first])
        if self._pool is None or self._pool.start != start:
            self._pool = None  # before another is made
            items, sizes = self.items[first:stop], np.diff(self._stops[first : stop + 1])
            owners = np.repeat(items, sizes)
            units = np.arange(len(owners)) - np.repeat(self._stops[first:stop] - start, sizes)
            if self._remainder.parts:
                begun = [self._remainder.parts.get(item) for item in items.tolist()]
                for begin, left in zip(self._stops[first:stop] - start, begun, strict=True):
                    if left is not None:
                        units[begin : begin + len(left)] = left
            if self._order.shuffle:
                generator = seeded(*self._key, int(items[0]), self._order.seed)
                mixed = torch.randperm(len(units), generator=generator).numpy()
                owners, units = owners[mixed], units[mixed]
            self._pool = _Pool(start, owners, units)
        return self._pool

    def _is_of_single_units(self) -> bool:
        """Return whether all pools have one item of one unit, as of slices, so that no pool has an order."""
        if self._single is None and self._is_whole():
            are_whole = self._order.pool == 1 and not self._remainder.parts
            self._single = are_whole and bool((np.diff(self._stops) == 1).all())
        return bool(self._single)

    def take(self, start: int, stop: int) -> tuple[Index, Index]:
        """Return the items and the numbers of the units [start, stop), as far as the rank has such units."""
        if self._is_of_single_units():
            owners = self.items[start:stop]
            return owners, np.zeros(len(owners), np.int64)
        pieces = []
        while start < stop and self.has(start):
            pool = self.pool(start)
            end = min(stop, pool.start + len(pool.items))
            pieces.append(
                (pool.items[start - pool.start : end - pool.start], pool.units[start - pool.start : end - pool.start])
            )
            start = end
        if len(pieces) == 1:
            return pieces[0]
        empty = np.empty(0, np.int64)
        items, units = zip(*pieces, strict=True) if pieces else ([empty], [empty])
        return np.concatenate(items), np.concatenate(units)


@dataclass(frozen=True)
class _Order:
    """What determines the order of the units of an epoch, apart from its number and the ranks."""

    seed: int
    shuffle: bool
    pool: int
    pool_items: int


def _after(
    remainder: _Remainder, all_items: Items, order: _Order, key: tuple[object, ...], ranks: int, drawn: int
) -> _Remainder:
    """Return what remains after each of some ranks drew a number of units."""
    left = np.ones(len(remainder.items), np.bool_)
    parts = dict(remainder.parts)
    for rank in range(min(ranks, len(left))):
        lane = _Lane(remainder, all_items, Share(rank, ranks), order, key)
        first, stop = lane.items_from(drawn) if lane.has(drawn) else (len(lane.items),) * 2
        mine = left[rank::ranks]
        mine[:first] = False
        if first == stop or (pool := lane.pool(drawn)).start == drawn:
            continue
        owners, units = pool.items[drawn - pool.start :], pool.units[drawn - pool.start :]
        ascending = np.lexsort((units, owners))
        owners, units = owners[ascending], units[ascending]
        items = lane.items[first:stop]
        begins, ends = owners.searchsorted(items), owners.searchsorted(items, "right")
        mine[first:stop] = ends > begins
        parts |= {
            int(item): units[begin:end] for item, begin, end in zip(items, begins, ends, strict=True) if end > begin
        }
    items = remainder.items[left]
    present = set(items.tolist())
    return _Remainder(items, {item: units for item, units in parts.items() if item in present})


class Epochs:
    """The epochs of a rank over items, with a position that can be saved and restored with any number of ranks.

    Args:
        seed: The seed, the same for all ranks. By default a single process draws a seed from the generator of the
            sampler, and several ranks use 0.
        shuffle: Whether items, and the units of a pool, are in random order.
        pool: The number of units that are shuffled together, at least. A pool has whole items.
        pool_items: The maximum number of items of a pool.
        rank: The number of this process. By default, the rank in `torch.distributed` if initialized, else in the
            environment variables ``RANK`` and ``WORLD_SIZE``, else 0 of 1.
        world_size: The number of processes.
        uneven: "keep": every unit once, so that some ranks may have a batch more than others. "drop": all ranks have as many
            full batches as the rank with the fewest. "pad": all ranks have as many full batches as the rank with the
            most. A rank without units draws its first units again.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        shuffle: bool = True,
        pool: int = 1,
        pool_items: int = 1 << 62,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "keep",
    ) -> None:
        is_seed = seed is None or (type(seed) is int and 0 <= seed < SEEDS)
        check(
            unless(is_seed, f"seed is {seed!r}, expected None or an integer >= 0"),
            choice_problems("keep", "drop", "pad", uneven=uneven),
        )
        self.share = Share.of_process(rank, world_size)
        self.given_seed, self.seed, self.shuffle, self.uneven = seed, seed, shuffle, uneven
        self._pool, self._pool_items = pool, pool_items
        self.epoch = 0
        """The number of the present epoch."""
        self.drawn = 0
        """The number of units that each rank drew since `history`."""
        self.history: tuple[tuple[int, int], ...] = ()
        """The numbers of ranks that drew in this epoch before, with the number of units that each rank drew."""
        self.ran_out = False
        self._restored = False
        self._items = _NO_ITEMS
        self._dataset: str | None = None
        self._lane: _Lane | None = None
        self._remainder: _Remainder | None = None
        self._totals: list[int] | None = None

    # --- what the epochs are over

    def bind(self, items: Items) -> None:
        """Set the items to draw from. Other items than before start a new epoch.

        Raises:
            InvalidArgumentError: If there are fewer items than ranks, or a restored state is of others.
        """
        if items is self._items:
            return
        count = len(items.lengths.nonzero()[0])
        if count < self.share.world_size:
            raise InvalidArgumentError(
                f"{count:,} episodes, or ranges of episodes, cannot be divided among {self.share.world_size:,} ranks",
                hint="start fewer processes, or pass rank=0, world_size=1 to draw from all episodes in every process",
            )
        if self._dataset not in {None, items.dataset}:
            if self._items is _NO_ITEMS:
                raise InvalidArgumentError(
                    f"the restored position is in the episodes {self._dataset}, expected the episodes {items.dataset}",
                    hint="load the state into a sampler of the same dataset, selection and slices",
                )
            self.set_epoch(self.epoch + 1)
        self._items, self._dataset = items, items.dataset
        self._forget()

    def _forget(self) -> None:
        self._lane = self._remainder = self._totals = None

    @property
    def _order(self) -> _Order:
        return _Order(self.seed or 0, self.shuffle, self._pool, self._pool_items)

    def _key(self) -> tuple[object, ...]:
        return self.epoch, *self.history

    def _left(self) -> tuple[_Remainder, Items]:
        """Return the remainder of the epoch from which these ranks began to draw."""
        items = self._items
        if self._remainder is None:
            order, count = self._order, len(items)
            numbers = np.arange(count)
            if self.shuffle:
                numbers = shuffled(count, seeded(self.epoch, "items", order.seed))
            remainder = _Remainder(numbers if items.lengths.all() else numbers[items.lengths[numbers] != 0])
            for number, (ranks, drawn) in enumerate(self.history):
                key = (self.epoch, *self.history[:number])
                remainder = _after(remainder, items, order, key, ranks, drawn)
            self._remainder = remainder
        return self._remainder, items

    def lane(self) -> _Lane:
        """The units of this rank in what remains of the epoch."""
        if self._lane is None:
            self._lane = lane = self._lane_of(self.share)
            if self._items.follow is not None:
                first = lane.items_from(self.drawn)[0] if self._items.known else 0
                self._items.follow(lane.items[first:])
        return self._lane

    def _lane_of(self, share: Share) -> _Lane:
        remainder, items = self._left()
        return _Lane(remainder, items, share, self._order, self._key())

    def _all_totals(self) -> list[int]:
        """The numbers of units of all ranks."""
        if self._totals is None:
            remainder, items = self._left()
            sizes = remainder.lengths(remainder.items, items)
            self._totals = [int(sizes[rank :: self.share.world_size].sum()) for rank in range(self.share.world_size)]
        return self._totals

    def _stop(self, count: int) -> int | None:
        """Return after how many units this rank ends the epoch, in batches of `count`, or None after the last batch."""
        if self.uneven == "keep" or not self.share:
            return None
        totals = self._all_totals()
        return min(totals) // count * count if self.uneven == "drop" else -(-max(totals) // count) * count

    # --- drawing

    def next(self, count: int, generator: Generator | None = None) -> tuple[Index, Index]:
        """Return the items and the numbers of the next units, at most `count`, and fewer at the end of an epoch.

        After an error, the next call returns the same units.

        Args:
            count: The number of units.
            generator: The generator of the sampler, from which the seed may be drawn.

        Raises:
            InvalidArgumentError: If this rank has no batch in an epoch.
        """
        self.draw_seed(generator)
        if self._is_over(count):
            self.set_epoch(self.epoch + 1)
            if self._is_over(count):
                raise InvalidArgumentError(
                    f"rank {self.share.rank} of {self.share.world_size} has no batch of {count:,} in an epoch"
                    + (": uneven='drop' drops all units" if self.uneven == "drop" else ""),
                    hint="use a smaller batch size, or fewer processes",
                )
        stop = self._stop(count)
        lane = self.lane()
        items, units = (
            lane.take(self.drawn, self.drawn + count) if stop is None else self._take_even(self.drawn, stop, count)
        )
        if self._items.open_item is not None:
            for item in np.unique(items).tolist():
                self._items.open_item(item)
        self.drawn += count
        try:
            self.ran_out = self._is_over(count)
        except BaseException:
            self.drawn -= count
            raise
        self._restored = False
        return items, units

    def draw_seed(self, generator: Generator | None) -> None:
        """Draw the seed, unless the seed is known."""
        if self.seed is None:
            self.seed = 0 if self.share else int(torch.randint(SEEDS, (), generator=generator))

    def _is_over(self, count: int) -> bool:
        stop = self._stop(count)
        return (
            not self.lane().has(self.drawn)
            if stop is None
            else self.drawn + (count if self.uneven == "drop" else 1) > stop
        )

    def _take_even(self, start: int, stop: int, count: int) -> tuple[Index, Index]:
        """Return the next units; after its last unit, a rank begins with its first unit again."""
        totals = self._all_totals()
        lane, total = self.lane(), totals[self.share.rank]
        if not total:  # near the end of a restored epoch: another rank's units
            rank = int(np.argmax(totals))
            lane, total = self._lane_of(Share(rank, self.share.world_size)), totals[rank]
        pieces = []
        stop = min(stop, start + count)
        while start < stop:
            first = start % total
            size = min(stop - start, total - first)
            pieces.append(lane.take(first, first + size))
            start += size
        items, units = zip(*pieces, strict=True)
        return np.concatenate(items), np.concatenate(units)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch by its number.

        Raises:
            InvalidArgumentError: If the epoch is not an integer >= 0.
        """
        if type(epoch) is not int or epoch < 0:
            raise InvalidArgumentError(f"epoch is {epoch!r}, expected an integer >= 0")
        self.epoch, self.drawn, self.history, self.ran_out, self._restored = epoch, 0, (), False, False
        self._forget()

    def reset(self) -> None:
        """Begin the first epoch, of these or other items."""
        self.set_epoch(0)
        self._dataset = None

    def start(self) -> None:
        """Drop the rest of the present epoch, unless the epoch was just restored or has not begun."""
        if not self._restored and (self.drawn or self.history):
            self.set_epoch(self.epoch + 1)

    def skip_epoch(self, count: int) -> bool:
        """Return whether this rank has nothing left of a restored epoch, and continue with the next epoch."""
        if self._restored and (self.drawn or self.history) and self._is_over(count):
            self.set_epoch(self.epoch + 1)
            return True
        return False

    def divided(self, worker: int, workers: int) -> Epochs:
        """Return the rest of the present epoch, and the following ones, for a worker of this rank."""
        share = self.share
        part = Epochs(
            seed=self.seed,
            shuffle=self.shuffle,
            pool=self._pool,
            pool_items=self._pool_items,
            rank=worker * share.world_size + share.rank,
            world_size=workers * share.world_size,
            uneven=self.uneven,
        )
        part.load_state(self.state_at(self.position))
        return part

    # --- the state

    @property
    def position(self) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """The epoch, the number of units drawn, and the history, for `state_at`.

        After the end of all ranks, the next epoch.
        """
        if self.ran_out and self._all_ended():
            return self.epoch + 1, 0, ()
        return self.epoch, self.drawn, self.history

    def _all_ended(self) -> bool:
        if not self.share or self.uneven != "keep":
            return True
        # Ranks of other lengths may have units left. If lengths are unknown, only the next process finds out.
        return self._items.known and self.drawn >= max(self._all_totals())

    def state_at(self, position: tuple[int, int, tuple[tuple[int, int], ...]]) -> dict[str, Any]:
        """Return the state with a previous position."""
        epoch, drawn, history = position
        return {
            "seed": self.seed,
            "epoch": epoch,
            "drawn": drawn,
            "world_size": self.share.world_size,
            "history": [list(entry) for entry in history],
            "dataset": self._dataset,
            **self._fixed,
        }

    @property
    def _fixed(self) -> dict[str, Any]:
        """The arguments that a state must agree with."""
        return {"shuffle": self.shuffle, "pool": self._pool}

    def state_problems(self, state: Mapping[str, Any]) -> list[str]:
        """Return all reasons why a state cannot be restored."""
        problems = [
            f"{name} is {state.get(name)!r}, expected an integer >= {least}"
            for name, least in (("epoch", 0), ("drawn", 0), ("world_size", 1))
            if type(state.get(name)) is not int or state[name] < least
        ]
        history = state.get("history")
        if not isinstance(history, list) or not all(
            isinstance(entry, (list, tuple))
            and len(entry) == 2
            and all(type(number) is int for number in entry)
            and entry[0] >= 1
            and entry[1] >= 0
            for entry in history
        ):
            problems.append(f"history is {history!r}, expected a list of pairs: a number of ranks, a number of units")
        seed, dataset = state.get("seed"), state.get("dataset")
        if seed is not None and (type(seed) is not int or not 0 <= seed < SEEDS):
            problems.append(f"seed is {seed!r}, expected an integer >= 0")
        elif self.given_seed is not None and seed not in {None, self.given_seed}:
            problems.append(f"seed is {seed!r}, expected {self.given_seed}, the seed of this sampler")
        if self._items is not _NO_ITEMS and dataset not in {None, self._items.dataset}:
            problems.append(f"dataset is {dataset!r}, expected {self._items.dataset!r}: the state is of other episodes")
        problems += [
            f"{name} is {state.get(name)!r}, expected {value!r}"
            for name, value in self._fixed.items()
            if state.get(name) != value
        ]
        return problems

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state without problems: the rest of its epoch is divided among the present ranks."""
        self.set_epoch(state["epoch"])
        self.seed = self.given_seed if state["seed"] is None else state["seed"]
        self._dataset = state["dataset"]
        self.history = tuple((ranks, drawn) for ranks, drawn in state["history"])
        if state["world_size"] == self.share.world_size:
            self.drawn = state["drawn"]
        elif state["drawn"]:
            self.history += ((state["world_size"], state["drawn"]),)
        self._restored = True

    def __getstate__(self) -> dict[str, Any]:
        # The items are from a storage, and the units follow from the rest.
        return {**self.__dict__, "_items": _NO_ITEMS, "_lane": None, "_remainder": None, "_totals": None}

    def __str__(self) -> str:
        """Return the arguments that differ from the defaults."""
        values = {"seed": (self.given_seed, None), "shuffle": (self.shuffle, True), "uneven": (self.uneven, "keep")}
        texts = [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]
        return ", ".join([*texts, *filter(None, [str(self.share)])])
