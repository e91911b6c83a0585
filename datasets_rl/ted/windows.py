"""Windows of steps around given steps: the steps at some offsets, which are often consecutive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Values of the W steps at some offsets from each of B steps. A window stays within its trajectory.

    trajectory                   0 1 2 3 | 4 5 6        outside
    step 1, offsets -2 -1 0 1    0 0 1 2                x . . .
    step 6, offsets -2 -1 0 1              4 5 6 6      . . . x
    step 2, offsets -2 3         0 3                    . x
    """

    entries: list[Tensor]
    """The values of each key, [B, W, ...], in memory that the caller may modify."""
    outside: Tensor
    """Which steps repeat the first or the last step of the trajectory, bool [B, W]."""
    rows_at: Callable[[int | Tensor], Tensor]
    """Function of the number of a step in its window that returns the row of that step in each window, int64 [B]. The
    number is the same for all windows, or int64 [B], or int64 [B, K] for several steps of each window."""
    starts: Tensor | None = None
    """Row of the first step of each window, int64 [B], if the rows of its steps are consecutive from there, apart from
    steps outside of the trajectory. `None` if possibly not, as in a ring."""


def rows_in(window: Tensor) -> Callable[[int | Tensor], Tensor]:
    """Return `Windows.rows_at` for given rows of windows, int64 [B, W]."""

    def rows_at(step: int | Tensor) -> Tensor:
        if isinstance(step, int):
            return window[:, step].contiguous()
        return window.gather(1, step.view(len(window), -1)).view(step.shape)

    return rows_at


def steps_of(offsets: Sequence[int], device: torch.device) -> Tensor:
    """Return the offsets of a window on a device, int64 [W], for a range without a copy from main memory."""
    if isinstance(offsets, range):
        return torch.arange(offsets.start, offsets.stop, offsets.step, device=device)
    return torch.tensor(offsets, dtype=torch.int64, device=device)
