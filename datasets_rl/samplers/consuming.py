"""Uniform sampler that draws each step a limited number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.arguments import check, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import empty_storage_error

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage


class ConsumingSampler(Sampler):
    """Draw each step a limited number of times. Then the slot is free for a new step.

    A batch contains each step at most once, and is smaller if fewer steps remain. `ran_out` is True after the last
    batch. A buffer with this sampler has as many steps as can still be drawn, and writes to the slots of consumed steps
    first.

        draws left   1 1 1 1      a batch of 3      0 1 0 0      `extend` of 2 steps      1 1 1 0

    Args:
        max_sample_count: Number of batches in which a step occurs, at least 1.
        generator: Random generator. By default torch's global generator.

    Raises:
        InvalidArgumentError: If the number is not an integer >= 1.
    """

    consumes = True

    draws_at_random = True

    def __init__(self, max_sample_count: int = 1, *, generator: Generator | None = None) -> None:
        check(size_problems(max_sample_count=max_sample_count))
        self.max_sample_count = max_sample_count
        self.generator = generator
        self.empty()

    @override
    def empty(self) -> None:
        self._left = torch.zeros(0, dtype=torch.int64)
        """Number of draws left of each row."""
        self._consumed = torch.zeros(0, dtype=torch.int64)
        """The rows without draws left, in the order of consumption."""
        self.ran_out = False

    @override
    def attach(self, storage: Storage) -> None:
        if storage.ndim > 1:
            raise InvalidArgumentError(
                f"a {type(self).__name__} only supports 1-dimensional storages, and ndim is {storage.ndim}",
                hint="write each environment separately",
            )

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw up to `batch_size` of the steps that have draws left.

        Raises:
            InvalidArgumentError: If no step has draws left.
        """
        rows = self._available(storage)
        if not len(rows):
            raise empty_storage_error()
        rows = rows[torch.randperm(len(rows), generator=self.generator)[:batch_size]]
        self._left[rows] -= 1
        self._consumed = torch.cat([self._consumed, rows[self._left[rows] == 0]])
        self.ran_out = not bool((self._left > 0).any())
        return rows, {}

    def available_count(self, storage: Storage) -> int:
        """Return the number of steps that have draws left."""
        return len(self._available(storage))

    def _available(self, storage: Storage) -> Tensor:
        """Return the rows that have draws left. Rows that were written without notice have all draws left."""
        held = len(storage)
        if held != len(self._left):
            new = torch.full((max(held - len(self._left), 0),), self.max_sample_count)
            self._left = torch.cat([self._left[:held], new])
            self._consumed = self._consumed[self._consumed < held]
        rows = self._left.nonzero().flatten()
        return rows[~torch.isin(rows, storage.torn_rows())] if storage.torn else rows

    def slots_for(self, storage: Storage, count: int) -> Tensor:
        """Return slots of consumed steps to write `count` new steps to, the first consumed first, int64 [n].

        The writer takes the other ``count - n`` slots in ring order, of which none is returned here.
        """
        self._available(storage)
        slots, chosen = storage.slot_count, self._consumed[:count]
        while len(chosen):
            ahead = (chosen - storage.write_count) % slots
            apart = chosen[ahead >= count - len(chosen)]
            if len(apart) == len(chosen):
                break
            chosen = apart
        return chosen

    @override
    def extend(self, index: Tensor) -> None:
        if not len(index):
            return
        stop = int(index.max()) + 1
        if stop > len(self._left):
            new = torch.full((stop - len(self._left),), self.max_sample_count)
            self._left = torch.cat([self._left, new])
        self._left[index] = self.max_sample_count
        self._consumed = self._consumed[~torch.isin(self._consumed, index)]
        self.ran_out = False

    @override
    def state_dict(self) -> dict[str, Any]:
        state = {"left": self._left.clone(), "consumed": self._consumed.clone(), "ran_out": self.ran_out}
        return {**super().state_dict(), **state, "max_sample_count": self.max_sample_count}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        reasons = super().state_problems(state_dict)
        if state_dict.get("max_sample_count") != self.max_sample_count:
            found = state_dict.get("max_sample_count")
            reasons.append(f"max_sample_count is {found!r}, expected {self.max_sample_count}")
        for name in ("left", "consumed"):
            value = state_dict.get(name)
            if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.ndim != 1:
                reasons.append(f"{name} is not an int64 tensor [n]")
        if not reasons and set(state_dict["consumed"].tolist()) != set(
            (state_dict["left"] <= 0).nonzero().flatten().tolist()
        ):
            reasons.append("consumed does not have the rows without draws left")
        return reasons

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._left, self._consumed = state_dict["left"].clone(), state_dict["consumed"].clone()
        self.ran_out = bool(state_dict.get("ran_out"))

    @override
    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        if self.state_problems(state_dict):
            return state_dict  # unchanged: load_state_dict rejects this state
        consumed = (state_dict["consumed"] - shift) % slots
        return {**state_dict, "left": state_dict["left"].roll(-shift), "consumed": consumed}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_sample_count={self.max_sample_count})"
