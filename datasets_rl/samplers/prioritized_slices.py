"""Slices of trajectories that start where priorities are high."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.prioritized import PRIORITY_WEIGHT, PrioritizedSampler
from datasets_rl.samplers.slices import AnyKey, SliceSampler, Span

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.trajectories import Slices

__all__ = ["PrioritizedSliceSampler"]

_TRIES = 4


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """Draw slices of consecutive steps, each within one trajectory, whose first steps are drawn by priority.

    Of all steps at which a slice may start, one is drawn with a chance in proportion to its mass (see
    `PrioritizedSampler`); the priorities of the other steps have no part in it. Every step of a slice has the weight of
    its first one.

        priority      1 1 4 1 9 9 9      3 5 2 1
        starts, T = 4 x x x x . . .      x . . .      chances 1 1 4 1 3 of 10, with alpha = 1

    Args:
        max_capacity: Steps that the storage holds at most.
        alpha: How much priorities count, see `PrioritizedSampler`, as for all up to `reduction`.
        beta: How much of the bias the weights undo.
        eps: Added to every priority.
        dtype: Of the weights.
        reduction: How several priorities of one step become one.
        num_slices: Slices of a batch, see `SliceSampler`, as for all that follows.
        slice_len: Steps of a slice.
        end_key: The flag that ends a trajectory.
        end_keys: Several such flags.
        traj_key: The number of the trajectory.
        ends: The end flags of all steps.
        trajectories: The numbers of the trajectories of all steps.
        cache_values: Without effect.
        truncated_key: Where the ends of slices are marked.
        init_key: Where the starts of slices are marked.
        strict_length: Whether short trajectories are left out.
        compile: Without effect.
        span: Steps by which a slice may reach over the end of its trajectory. None may reach over the start: there is
            no step there whose priority would count.
        max_priority_within_buffer: See `PrioritizedSampler`.
        generator: Where the randomness comes from.

    Raises:
        InvalidArgumentError: If arguments exclude each other or are outside their range.
    """

    _admitted: tuple[Slices, NDArray[np.int64]] | None = None
    """Every row at which a slice may start, for these slices."""

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: AnyKey | None = None,
        end_keys: Sequence[AnyKey] | None = None,
        traj_key: AnyKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: AnyKey | None = ("next", "truncated"),
        init_key: AnyKey | None = "is_init",
        strict_length: bool = True,
        compile: bool | dict[str, Any] = False,  # noqa: A002 - the name in the reference
        span: Span = False,
        max_priority_within_buffer: bool = False,
        generator: Generator | None = None,
    ) -> None:
        if isinstance(span, tuple) and span[0]:
            raise InvalidArgumentError(
                f"span is {span}; no slice can start before its trajectory, where no step has a priority"
            )
        SliceSampler.__init__(
            self,
            num_slices=num_slices,
            slice_len=slice_len,
            end_key=end_key,
            end_keys=end_keys,
            traj_key=traj_key,
            ends=ends,
            trajectories=trajectories,
            cache_values=cache_values,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
            compile=compile,
            span=span if isinstance(span, tuple) else (False, span),
        )
        PrioritizedSampler.__init__(
            self,
            max_capacity,
            alpha,
            beta,
            eps,
            dtype,
            reduction,
            max_priority_within_buffer,
            generator=generator,
        )

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        """Draw the slices of a batch.

        Raises:
            InvalidArgumentError: As `SliceSampler` and `PrioritizedSampler` say, and if no step at which a slice may start has
                mass.
        """
        count, length = self._cut(batch_size)
        slices = self._slices(storage, length)
        self._follow(storage)
        rows = self._first_rows(slices, count)
        _, starts, lengths = slices.starting(rows)
        batch, info = self._batch(storage, slices, starts, lengths)
        weights = self._weights(torch.from_numpy(self._tree.masses[rows]))
        steps = length if lengths is None else torch.from_numpy(lengths)
        info[PRIORITY_WEIGHT] = weights.repeat_interleave(steps)
        return batch, info

    def _first_rows(self, slices: Slices, count: int) -> NDArray[np.int64]:
        """Draw the first row of each slice.

        Rows at which no slice starts are drawn and thrown away: nearly all are starts, if slices are shorter than
        trajectories. If not, or if the mass lies elsewhere, all starts are looked at.
        """
        found: list[NDArray[np.int64]] = []
        missing = count
        for _ in range(_TRIES):
            rows, _ = self._tree.draw(self._points(2 * missing + 16))
            found.append(rows[slices.starting(rows)[0]][:missing])
            missing -= len(found[-1])
            if not missing:
                return np.concatenate(found)
        if self._admitted is None or self._admitted[0] is not slices:
            self._admitted = slices, np.flatnonzero(slices.starting(np.arange(self._held))[0])
        starts = self._admitted[1]
        starts = starts[self._tree.masses[starts] > 0]
        if not len(starts):
            raise InvalidArgumentError(
                f"all steps at which a slice of {slices.length} steps may start have priority 0",
                hint="update a priority, or give eps",
            )
        sums = self._tree.masses[starts].cumsum()
        chosen = sums.searchsorted(self._points(missing) * sums[-1], "right")
        return np.concatenate([*found, starts[chosen.clip(max=len(starts) - 1)]])

    def empty(self) -> None:
        """Forget all priorities, and what is known of the storage."""
        SliceSampler.empty(self)
        PrioritizedSampler.empty(self)
        self._admitted = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_admitted": None}

    def __repr__(self) -> str:
        said = SliceSampler.__repr__(self).removesuffix(")")
        return f"{said}, alpha={self.alpha}, beta={self.beta}, eps={self.eps})"
