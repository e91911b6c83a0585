"""Uniform, every step once in an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import Share, expect_valid

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

__all__ = ["SamplerWithoutReplacement"]


class SamplerWithoutReplacement(Sampler):
    """Draw every step once before any comes again.

    The last batch of an epoch is short where the batch size does not divide the steps; `ran_out` says that it was the
    last. Steps that come to a growing storage join the epoch that is under way. Steps that replace others in a full one
    take their place: they come in this epoch if those had not come yet, else in the next.

    Args:
        drop_last: Whether a last batch that would be short is left out.
        shuffle: Whether the order is random. If not, it is that of the storage, in a full ring from the oldest.
        generator: Where the randomness comes from; by default torch's global generator, so that `torch.manual_seed`
            alone reproduces a run.
        rank: With `world_size`: draw only every `world_size`-th row, starting with this one, so that processes started
            by torchrun draw disjoint rows. The shares differ by one row where they cannot be equal.
        world_size: How many processes there are.

    Raises:
        InvalidArgumentError: If only one of `rank` and `world_size` is given, or there is no such rank.
    """

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
        self._share = Share.of(rank, world_size)
        self.empty()

    def empty(self) -> None:
        """Start anew."""
        self._deck = torch.empty(0, dtype=torch.int64)
        self._at = self._stop = 0
        self._held = 0
        self._rewritten = -1
        self._lanes = 1
        self.ran_out = False

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw up to `batch_size` steps that have not come in this epoch.

        Raises:
            InvalidArgumentError: If the storage holds no step, or with `drop_last` less than a batch.
        """
        held = len(storage)
        if held != self._held or self._stop - self._at < batch_size:
            self._prepare(storage, held, batch_size)
        if storage.torn and storage.rewritten != self._rewritten:
            self._leave_out_torn(storage, batch_size)
        rows = self._deck[self._at : min(self._at + batch_size, self._stop)].clone()
        self._at += len(rows)
        self.ran_out = self._stop - self._at < (batch_size if self.drop_last else 1)
        if self.ran_out:
            self._at = self._stop
        return rows, {}

    def _prepare(self, storage: Storage, held: int, batch_size: int) -> None:
        """Take in what was written, and begin an epoch if one is over."""
        count = self._share.size(held)
        if not count:
            raise InvalidArgumentError("the storage holds no step to sample", hint="extend the buffer first")
        if self.drop_last and count < batch_size:
            raise InvalidArgumentError(
                f"the batch size is {batch_size}, and there are {count} steps to sample: every batch would be dropped",
                hint="take a smaller batch, or drop_last=False",
            )
        if self._stop - self._at < (batch_size if self.drop_last else 1) or held < self._held:
            self._begin(storage, count)
        elif held > self._held:
            self._join(self._rows(self._held, held))
        self._held, self._lanes = held, storage.envs

    def _leave_out_torn(self, storage: Storage, batch_size: int) -> None:
        """Take the torn rows out of the epoch; once written again, they come in the next one."""
        if not self._keep(storage, batch_size):
            self._begin(storage, self._share.size(len(storage)))
            expect_valid(storage, self._keep(storage, batch_size))
        self._rewritten = storage.rewritten

    def _keep(self, storage: Storage, batch_size: int) -> int:
        """Keep the valid rows of the epoch, and return how many there are; 0 if they are too few for a batch."""
        left = self._left()
        valid = left[~torch.isin(left, storage.torn_rows())]
        self._stop = self._at + len(valid)
        self._left().copy_(valid)
        return len(valid) if len(valid) >= batch_size or not self.drop_last else 0

    def _left(self) -> Tensor:
        return self._deck[self._at : self._stop]

    def _join(self, rows: Tensor) -> None:
        stop = self._stop + len(rows)
        if stop > len(self._deck):
            # Room for as many again: a storage that grows step by step has its rows copied seldom.
            self._deck = torch.cat([self._left(), rows, torch.empty_like(self._deck)])
            self._at, self._stop = 0, stop - self._at
        else:
            self._deck[self._stop : stop] = rows
            self._stop = stop
        if self.shuffle:
            self._mix(len(rows))

    def _mix(self, count: int) -> None:
        """Bring the last rows to random places, so that every order of all that are left is equally likely.

        What lay there takes their places; the rest stays, because it is in random order already.

            left   d b c a | e f        places 1 and 5        left   d f c a b e
        """
        left = self._left()
        start = len(left) - count
        if start < 4 * count:
            left.copy_(left[torch.randperm(len(left), generator=self.generator)])
            return
        places = torch.empty(0, dtype=torch.int64)
        while len(places) < count:
            more = torch.randint(len(left), (count - len(places),), generator=self.generator)
            places = torch.unique(torch.cat([places, more]))
        fresh = left[start:][torch.randperm(count, generator=self.generator)]
        free = torch.ones(count, dtype=torch.bool)
        free[places[places >= start] - start] = False
        left[start:][free] = left[places[places < start]]
        left[places] = fresh

    def _begin(self, storage: Storage, count: int) -> None:
        if len(self._deck) < count:
            self._deck = torch.empty(count, dtype=torch.int64)
        self._at, self._stop = 0, count
        self._rewritten = -1
        if self.shuffle:
            # Into the memory of the last epoch: new pages would take most of the time.
            self._share.rows(torch.randperm(count, generator=self.generator, out=self._left()))
        else:
            oldest = storage.written % storage.slots * storage.envs
            self._left().copy_(self._rows(0, len(storage)).roll(-self._share.size(oldest)))

    def _rows(self, start: int, stop: int) -> Tensor:
        return self._share.rows(torch.arange(self._share.size(start), self._share.size(stop)))

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the epoch, and which rows join it when the state is taken over."""
        return {
            **super().state_dict(),
            "left": self._left().clone(),
            "joining": self._deck[:0].clone(),
            "held": self._held,
            "lanes": self._lanes,
            "ran_out": self.ran_out,
        }

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say whether what is left are rows."""
        reasons = super().misfits(state_dict)
        for name in ("held", "lanes", "ran_out"):
            if not isinstance(state_dict.get(name), int):
                reasons.append(f"{name} is {state_dict.get(name)!r}")
        for name in ("left", "joining"):
            rows = state_dict.get(name)
            if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
                reasons.append(f"{name} is not rows, int64 [n]")
            elif not reasons and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < state_dict["held"]:
                reasons.append(f"{name} has rows from {rows.min()} to {rows.max()}; {state_dict['held']} were held")
        return reasons

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with an epoch."""
        super().load_state_dict(state_dict)
        self._deck = state_dict["left"].clone()
        self._at, self._stop = 0, len(self._deck)
        self._rewritten = -1
        self._held, self._lanes = state_dict["held"], state_dict["lanes"]
        self.ran_out = state_dict["ran_out"]
        if len(state_dict["joining"]):
            self._join(state_dict["joining"])

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Follow the rows that are left to their new places."""
        if self.misfits(state_dict):
            return state_dict  # to be refused as it is
        envs, left, held = state_dict["lanes"], state_dict["left"], slots * state_dict["lanes"]
        # Between two epochs nothing is left to join.
        since = self._rows(state_dict["held"], held) if len(left) else left
        moved = {"left": left, "joining": torch.cat([state_dict["joining"], since])}
        return {**state_dict, **{name: (rows - shift * envs) % held for name, rows in moved.items()}, "held": held}

    def __repr__(self) -> str:
        share = f", {self._share}" if self._share else ""
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle}{share})"
