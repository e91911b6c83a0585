"""Sampler of trajectory slices with first steps that are drawn by priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.prioritized import PRIORITY_WEIGHT, PrioritizedSampler
from datasets_rl.samplers.slices import SliceOptions, SliceSampler, Span

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.trajectories import Slices

_MAX_ATTEMPTS = 4


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """Draw slices of consecutive steps, each within a trajectory, with first steps that are drawn by priority.

    The first step of a slice is drawn from all steps at which a slice may start, with probability proportional to its
    mass (see `PrioritizedSampler`). The priorities of the other steps are ignored. Every step of a slice has the weight
    of the first step.

        priority      1 1 4 1 9 9 9      3 5 2 1
        starts, T = 4 x x x x . . .      x . . .      probabilities 1 1 4 1 3 of 10, with alpha = 1

        >>> from datasets_rl import PrioritizedSliceSampler, load
        >>> sampler = PrioritizedSliceSampler(15_000, alpha=0.7, beta=0.9, slice_len=8)
        >>> rb = load("demo/pendulum", sampler=sampler, batch_size=32)
        >>> rb.sample().reshape(4, 8)["observation"].shape
        torch.Size([4, 8, 3])

    Args:
        max_capacity: Number of steps that the storage can hold. This argument and the next arguments, up to
            `max_priority_within_buffer`, are as for `PrioritizedSampler`.
        alpha: Exponent of the priorities.
        beta: Exponent of the importance weights.
        eps: Constant added to every priority.
        dtype: Dtype of the weights.
        reduction: Reduction of several priorities of a step to a single priority.
        max_priority_within_buffer: Whether new steps get the largest priority of the steps currently stored.
        span: Number of steps by which a slice may extend past the end of its trajectory. A slice cannot extend before
            the start: no step there has a priority.
        **options: Arguments of `SliceSampler`: either `num_slices` or `slice_len`, and others.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or out of range.
    """

    draws_ahead = False
    _start_rows: tuple[Slices, NDArray[np.int64]] | None = None
    """The slices, and all rows at which a slice may start."""

    def __init__(
        self,
        max_capacity: int,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        *,
        max_priority_within_buffer: bool = False,
        span: Span = False,
        **options: Unpack[SliceOptions],
    ) -> None:
        if not isinstance(span, int) and span[0]:
            raise InvalidArgumentError(
                f"span is {span}, expected 0 before the start: no slice can start before its trajectory, "
                "where no step has a priority"
            )
        SliceSampler.__init__(self, span=(False, span) if isinstance(span, int) else span, **options)
        PrioritizedSampler.__init__(
            self, max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer, generator=self.generator
        )

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        """Sample the slices of a batch.

        Raises:
            InvalidArgumentError: As for `SliceSampler` and `PrioritizedSampler`, and if all possible first steps have
                mass 0.
        """
        count, length = self._slice_count_and_length(batch_size)
        slices = self._slices(storage, length)
        self._synchronize(storage)
        rows = self._first_rows(slices, count)
        _, starts, lengths = slices.starting(rows)
        batch, info = self._batch_of_slices(storage, slices, starts, lengths)
        weights = self._importance_weights(self._tree.masses_of(rows))
        steps = length if lengths is None or self.pad_output else torch.from_numpy(lengths)
        info[PRIORITY_WEIGHT] = weights.repeat_interleave(steps)
        return batch, info

    def _first_rows(self, slices: Slices, count: int) -> NDArray[np.int64]:
        """Draw the first row of each slice.

        Rows at which no slice may start are rejected: if slices are shorter than trajectories, few rows are. After
        several attempts, the missing rows are drawn directly from all possible starts.
        """
        accepted: list[NDArray[np.int64]] = []
        missing = count
        for _ in range(_MAX_ATTEMPTS):
            rows, _ = self._tree.draw(self._random_points(2 * missing + 16))
            accepted.append(rows[slices.starting(rows)[0]][:missing])
            missing -= len(accepted[-1])
            if not missing:
                return np.concatenate(accepted)
        if self._start_rows is None or self._start_rows[0] is not slices:
            self._start_rows = slices, np.flatnonzero(slices.starting(np.arange(self._held))[0])
        starts = self._start_rows[1]
        starts = starts[self._tree.masses_of(starts) > 0]
        if not len(starts):
            raise InvalidArgumentError(
                f"all steps at which a slice of {slices.length} steps may start have priority 0",
                hint="update a priority, or pass eps > 0",
            )
        sums = self._tree.masses_of(starts).cumsum()
        chosen = sums.searchsorted(self._random_points(missing) * sums[-1], "right")
        return np.concatenate([*accepted, starts[chosen.clip(max=len(starts) - 1)]])

    def empty(self) -> None:
        """Forget all priorities and trajectories."""
        SliceSampler.empty(self)
        PrioritizedSampler.empty(self)
        self._start_rows = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_start_rows": None}

    def __repr__(self) -> str:
        arguments = SliceSampler.__repr__(self).removesuffix(")")
        return f"{arguments}, alpha={self.alpha}, beta={self.beta}, eps={self.eps})"
