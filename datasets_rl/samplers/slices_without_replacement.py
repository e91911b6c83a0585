"""Sampler of trajectory slices that draws every trajectory once per epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.epochs import LISTED_MAX, Order, shuffled
from datasets_rl.samplers.slices import SliceOptions, SliceSampler
from datasets_rl.ted.trajectories import Slices

Index = NDArray[np.int64]


class SliceSamplerWithoutReplacement(SliceSampler):
    """Draw a slice of every trajectory per epoch, without replacement.

    An epoch draws every trajectory that has a slice once, in random order and at a random start: all its possible
    starts are equally likely. The last batch of an epoch contains the remaining slices. A write to the storage starts a
    new epoch.

        epoch      |<------ 0 ------>|<------ 1 ------>|
        batch       2 0 4 | 1 5 | 3   5 2 1 | ...           trajectories, num_slices=3

        >>> from datasets_rl import SliceSamplerWithoutReplacement, load
        >>> rb = load("demo/pendulum", sampler=SliceSamplerWithoutReplacement(slice_len=8), batch_size=32)
        >>> rb.sample().reshape(4, 8)["action"].shape
        torch.Size([4, 8, 1])

    Args:
        drop_last: Whether a last batch with fewer slices is dropped.
        shuffle: Whether the trajectories are drawn in random order. If False, from the first to the last.
        **options: Arguments of `SliceSampler`: either `num_slices` or `slice_len`, and others.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or out of range. The message lists all problems.
    """

    has_epochs = True

    def __init__(self, *, drop_last: bool = False, shuffle: bool = True, **options: Unpack[SliceOptions]) -> None:
        super().__init__(**options)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._forget_epoch()

    def _forget_epoch(self) -> None:
        self._remaining: Index = np.empty(0, np.int64)
        """The trajectories that remain, in order. With `_order`, all trajectories that have slices, if not all do."""
        self._order: Order | None = None
        """The order of an epoch over many trajectories, which is computed."""
        self._position = 0
        """The number of trajectories that were drawn of `_order`."""
        self._epoch_of: Slices | list[int] | None = None  # an outline, if the epoch was restored

    def _next(self, count: int) -> Index:
        """Return the next trajectories of the epoch, at most `count`, without a change."""
        if self._order is None:
            return self._remaining[:count]
        numbers = self._order.numbers(self._position, self._position + min(count, self._left))
        return self._remaining[numbers] if len(self._remaining) else numbers

    @property
    def _left(self) -> int:
        """The number of trajectories that remain of the epoch."""
        return len(self._remaining) if self._order is None else self._order.count - self._position

    def _begin_epoch(self, slices: Slices) -> None:
        """Start a new epoch, unless the current epoch has slices left and is over the same slices."""
        current = self._epoch_of
        is_same = (
            current is slices if current is None or isinstance(current, Slices) else current == _slices_identity(slices)
        )
        if not (is_same and self._left):
            self._forget_epoch()
            eligible = self._remaining if slices.of_all else np.flatnonzero(slices.counts)
            count = len(slices.trajectories) if slices.of_all else len(eligible)
            if self.shuffle and count <= LISTED_MAX:
                order = shuffled(count, self.generator)
                self._remaining = order if slices.of_all else eligible[order]
            else:
                self._order = Order.random(count, self.generator) if self.shuffle else Order(count, None)
                self._remaining = eligible
        self._epoch_of = slices

    def _choose_slices(self, slices: Slices, count: int) -> tuple[Index, Index | None]:
        self._begin_epoch(slices)
        if self.drop_last and self._left < count:
            raise InvalidArgumentError(
                f"a batch needs {count} slices, but there are {self._left} trajectories: drop_last drops every batch",
                hint="use a smaller batch size, or drop_last=False",
            )
        drawn = self._next(count)
        if self._order is None:
            self._remaining = self._remaining[count:]
        else:
            self._position += len(drawn)
        self.ran_out = self._left < (count if self.drop_last else 1)
        if self.ran_out:
            self._remaining, self._order = self._remaining[:0], None
        counts = slices.counts_of(drawn)
        offsets = torch.rand(len(drawn), dtype=torch.float64, generator=self.generator).numpy() * counts
        return slices.of(drawn, offsets.astype(np.int64))

    def empty(self) -> None:
        """Forget the epoch and the trajectories of the storage."""
        super().empty()
        self._forget_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the slice sampler and the remaining trajectories of the epoch."""
        slices = self._epoch_of
        outline = _slices_identity(slices) if isinstance(slices, Slices) else slices
        return {**super().state_dict(), "left": torch.from_numpy(self._next(self._left)), "of": outline}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        remaining, outline = state_dict.get("left"), state_dict.get("of")
        reasons = super().state_problems(state_dict)
        if not isinstance(remaining, Tensor) or remaining.dtype != torch.int64 or remaining.ndim != 1:
            reasons.append(
                "left is not an int64 tensor [n], expected the numbers of the epoch's remaining trajectories"
            )
        elif "of" not in state_dict:
            reasons.append("of is missing, expected the outline of the slices of the epoch, or None")
        elif outline is not None and not _are_slices_of(outline, remaining):
            reasons.append(f"left has trajectory numbers outside the slices of the epoch, {outline}")
        return reasons

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._forget_epoch()
        self._remaining, self._epoch_of = state_dict["left"].numpy().copy(), state_dict["of"]

    def __getstate__(self) -> dict[str, Any]:
        slices = self._epoch_of
        return {
            **super().__getstate__(),
            "_epoch_of": _slices_identity(slices) if isinstance(slices, Slices) else slices,
        }


SliceSampler.without_replacement = SliceSamplerWithoutReplacement
SliceSamplerWithoutReplacement.without_replacement = SliceSamplerWithoutReplacement


def _slices_identity(slices: Slices) -> list[int]:
    """Return values that identify slices after a restart: numbers of trajectories, slices, and steps per slice."""
    return [len(slices.trajectories), slices.total, slices.length]


def _are_slices_of(identity: Any, remaining: Tensor) -> bool:
    is_outline = isinstance(identity, list) and len(identity) == 3 and all(isinstance(value, int) for value in identity)
    return is_outline and (not len(remaining) or 0 <= int(remaining.min()) <= int(remaining.max()) < identity[0])
