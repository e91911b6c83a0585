"""Uniform sampler that draws every step once per epoch."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.epochs import LISTED_MAX, SEEDS, Order
from datasets_rl.samplers.share import Share, check_any_valid, empty_storage_error

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage


class SamplerWithoutReplacement(Sampler):
    """Draw every step once per epoch, without replacement.

        >>> from datasets_rl import SamplerWithoutReplacement, load
        >>> dataset = load("demo/pendulum", batch_size=4000, sampler=SamplerWithoutReplacement())
        >>> [len(batch) for batch in dataset]     # an epoch
        [4000, 4000, 4000, 3000]

    If the batch size does not divide the number of steps, the last batch of an epoch is short. `ran_out` is True after
    the last batch. Steps added to a growing storage join the current epoch. Steps that replace others in a full storage
    inherit the positions in the epoch: they are drawn in this epoch if the replaced steps had not been drawn yet,
    else in the next epoch.

    An epoch begins at once, whatever the number of steps. Up to 2**20 steps, the random order is that of
    `torch.randperm`. A longer order is a permutation that is computed position by position, in constant memory, and its
    state is a few numbers. If steps are added during such an epoch, the remaining steps are listed, 8 bytes each.

    Args:
        drop_last: Whether a short last batch is dropped.
        shuffle: Whether the order is random. If False, the order of the storage, in a full ring from the oldest
            step.
        generator: Random generator. By default torch's global generator, so that `torch.manual_seed` alone reproduces a
            run.
        rank: With `world_size`: draw only every `world_size`-th row, starting with this row, so that processes started
            by torchrun draw disjoint rows. The shares differ by at most 1 row.
        world_size: Number of processes.

    Raises:
        InvalidArgumentError: If `rank` or `world_size` is given alone, or the rank is out of range.
    """

    draws_ahead = True
    has_epochs = True

    def __init__(
        self,
        drop_last: bool = False,
        shuffle: bool = True,
        *,
        generator: Generator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.generator = generator
        self._share = Share.from_rank(rank, world_size)
        self.empty()

    def empty(self) -> None:
        """Forget all rows. The next batch starts a new epoch."""
        self._order: Order | None = None
        """The order of an epoch with computed rows, or None if `_epoch_rows` lists the rows."""
        self._epoch_rows = torch.empty(0, dtype=torch.int64)
        self._position = self._stop = 0
        self._held = 0
        self._rewritten = -1
        self._envs = 1
        self.ran_out = False

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw up to `batch_size` steps that have not been drawn in this epoch.

        Raises:
            InvalidArgumentError: If the storage has no steps, or with `drop_last` fewer steps than a batch.
        """
        held = len(storage)
        if held != self._held or self._stop - self._position < batch_size:
            self._update_epoch(storage, held, batch_size)
        if storage.torn and storage.rewrite_count != self._rewritten:
            self._drop_torn_rows(storage, batch_size)
        stop = min(self._position + batch_size, self._stop)
        rows = self._rows_up_to(stop)
        self._position = stop
        self.ran_out = self._stop - self._position < (batch_size if self.drop_last else 1)
        if self.ran_out:
            self._position = self._stop
        return rows, {}

    def _update_epoch(self, storage: Storage, row_count: int, batch_size: int) -> None:
        """Add the rows written since the last batch, and start a new epoch if the current epoch has ended."""
        count = self._share.size(row_count)
        if not count:
            raise empty_storage_error()
        if self.drop_last and count < batch_size:
            raise InvalidArgumentError(
                f"the batch size is {batch_size}, but there are {count} steps to sample: drop_last drops every batch",
                hint="use a smaller batch size, or drop_last=False",
            )
        if self._stop - self._position < (batch_size if self.drop_last else 1) or row_count < self._held:
            self._begin_epoch(storage, count)
        elif row_count > self._held:
            self._add_rows(self._rows(self._held, row_count))
        self._held, self._envs = row_count, storage.envs

    def _drop_torn_rows(self, storage: Storage, batch_size: int) -> None:
        """Remove the torn rows from the epoch. Once rewritten, the next epoch draws them."""
        if not self._keep_valid(storage, batch_size):
            self._begin_epoch(storage, self._share.size(len(storage)))
            check_any_valid(storage, self._keep_valid(storage, batch_size))
        self._rewritten = storage.rewrite_count

    def _keep_valid(self, storage: Storage, batch_size: int) -> int:
        """Keep the valid rows of the epoch, and return the number of such rows, or 0 if too few for a batch."""
        self._list_rows()
        remaining = self._remaining()
        valid = remaining[~torch.isin(remaining, storage.torn_rows())]
        self._stop = self._position + len(valid)
        self._remaining().copy_(valid)
        return len(valid) if len(valid) >= batch_size or not self.drop_last else 0

    def _remaining(self) -> Tensor:
        return self._epoch_rows[self._position : self._stop]

    def _rows_up_to(self, stop: int) -> Tensor:
        """Return the rows of the epoch from the present position to another position, a copy."""
        if self._order is None:
            return self._epoch_rows[self._position : stop].clone()
        return self._share.rows(torch.from_numpy(self._order.numbers(self._position, stop)))

    def _list_rows(self) -> None:
        """List the rows that remain of the epoch, so that these rows can be changed."""
        if self._order is not None:
            self._epoch_rows = self._rows_up_to(self._stop)
            self._position, self._stop, self._order = 0, len(self._epoch_rows), None

    def _add_rows(self, rows: Tensor) -> None:
        self._list_rows()
        stop = self._stop + len(rows)
        if stop > len(self._epoch_rows):
            # Space for as many rows again, so that a storage that grows step by step rarely copies its rows.
            self._epoch_rows = torch.cat([self._remaining(), rows, torch.empty_like(self._epoch_rows)])
            self._position, self._stop = 0, stop - self._position
        else:
            self._epoch_rows[self._stop : stop] = rows
            self._stop = stop
        if self.shuffle:
            self._shuffle_last(len(rows))

    def _shuffle_last(self, count: int) -> None:
        """Move the last rows to random places, so that all orders of the remaining rows are equally likely.

        The rows at these places move to the end. The other rows stay, because they are in random order already.

            remaining   d b c a | e f        places 1 and 5        remaining   d f c a b e
        """
        remaining = self._remaining()
        start = len(remaining) - count
        if start < 4 * count:
            remaining.copy_(remaining[torch.randperm(len(remaining), generator=self.generator)])
            return
        places = torch.empty(0, dtype=torch.int64)
        while len(places) < count:
            candidates = torch.randint(len(remaining), (count - len(places),), generator=self.generator)
            places = torch.unique(torch.cat([places, candidates]))
        new_rows = remaining[start:][torch.randperm(count, generator=self.generator)]
        free = torch.ones(count, dtype=torch.bool)
        free[places[places >= start] - start] = False
        remaining[start:][free] = remaining[places[places < start]]
        remaining[places] = new_rows

    def _begin_epoch(self, storage: Storage, count: int) -> None:
        self._position, self._stop = 0, count
        self._rewritten = -1
        self._order = None
        if not self.shuffle:
            oldest = storage.write_count % storage.slot_count * storage.envs
            self._order = Order(count, None, self._share.size(oldest))
        elif count > LISTED_MAX:
            self._order = Order.random(count, self.generator)
        if self._order:
            self._epoch_rows = self._epoch_rows[:0].clone()
            return
        if len(self._epoch_rows) < count:
            self._epoch_rows = torch.empty(count, dtype=torch.int64)
        # Reuses the memory of the last epoch: new pages would take most of the time.
        self._share.rows(torch.randperm(count, generator=self.generator, out=self._remaining()))

    def _rows(self, start: int, stop: int) -> Tensor:
        return self._share.rows(torch.arange(self._share.size(start), self._share.size(stop)))

    @property
    @override
    def draws_from_global(self) -> bool:
        return self.shuffle and self.generator is None

    def state_dict(self) -> dict[str, Any]:
        """Return the remaining rows of the epoch, or their computation, and the rows that join after a restart."""
        order = self._order
        return {
            **super().state_dict(),
            "order": None if order is None else {**asdict(order), "position": self._position},
            "left": self._epoch_rows[:0].clone() if order else self._remaining().clone(),
            "joining": self._epoch_rows[:0].clone(),
            "held": self._held,
            "envs": self._envs,
            "ran_out": self.ran_out,
        }

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        reasons = super().state_problems(state_dict)
        for name in ("held", "envs", "ran_out"):
            if not isinstance(state_dict.get(name), int):
                expected = "a boolean" if name == "ran_out" else "an integer"
                reasons.append(f"{name} is {state_dict.get(name)!r}, expected {expected}")
        order = state_dict.get("order")
        if not _is_order(order):
            reasons.append(f"order is {order!r}, expected None, or how the rows are computed")
        elif order and not reasons and order["count"] != (own := self._share.size(state_dict["held"])):
            reasons.append(f"order has {order['count']:,} rows, expected {own:,}, the rows of this rank")
        for name in ("left", "joining"):
            rows = state_dict.get(name)
            if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
                reasons.append(f"{name} is not an int64 tensor [n] of rows")
            elif not reasons and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < state_dict["held"]:
                reasons.append(
                    f"{name} has rows from {rows.min()} to {rows.max()}, expected 0 to {state_dict['held'] - 1}"
                )
        return reasons

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._epoch_rows = state_dict["left"].clone()
        self._position, self._stop, self._order = 0, len(self._epoch_rows), None
        if state_dict.get("order"):
            self._order, self._position = _order_of(state_dict["order"])
            self._stop = self._order.count
        self._rewritten = -1
        self._held, self._envs = state_dict["held"], state_dict["envs"]
        self.ran_out = state_dict["ran_out"]
        if len(state_dict["joining"]):
            self._add_rows(state_dict["joining"])

    @override
    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        if self.state_problems(state_dict):
            return state_dict  # unchanged: load_state_dict rejects this state
        envs, remaining, held = state_dict["envs"], state_dict["left"], slots * state_dict["envs"]
        if state_dict.get("order"):
            order, position = _order_of(state_dict["order"])
            remaining = self._share.rows(torch.from_numpy(order.numbers(position, order.count)))
        # Between two epochs, new rows have no epoch to join.
        new_rows = self._rows(state_dict["held"], held) if len(remaining) else remaining
        moved = {"left": remaining, "joining": torch.cat([state_dict["joining"], new_rows])}
        return {
            **state_dict,
            "order": None,
            **{name: (rows - shift * envs) % held for name, rows in moved.items()},
            "held": held,
        }

    def __repr__(self) -> str:
        share = f", {self._share}" if self._share else ""
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle}{share})"


def _order_of(state: dict[str, Any]) -> tuple[Order, int]:
    """Return an order and the position from a valid part of a state."""
    return Order(state["count"], state["seed"], state["first"]), state["position"]


def _is_order(state: Any) -> bool:
    """Return whether a part of a state is None, or an order with a position."""
    if state is None:
        return True
    names = ("count", "first", "position", "seed")
    if not isinstance(state, dict) or sorted(state) != [*names]:
        return False
    count, first, position, seed = (state[name] for name in names)
    return (
        all(type(number) is int for number in (count, first, position))
        and 0 <= position <= count
        and 0 <= first <= count
        and (seed is None or (type(seed) is int and 0 <= seed < SEEDS))
    )


SamplerWithoutReplacement.without_replacement = SamplerWithoutReplacement
