"""Discounted sums of windows, in a compiled loop."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from datasets_rl.compiled import compile_for

__all__ = ["discounted_sums"]

Floats = NDArray[Any]


def _signature(real: Any) -> Any:
    mask = types.Array(types.boolean, 2, "C")
    return types.void(types.Array(real, 3, "A"), real[::1], mask, real[:, ::1], types.int64[::1])


@compile_for([_signature(numba.float32), _signature(numba.float64)])
def discounted_sums(
    rewards: Floats, powers: Floats, outside: NDArray[np.bool_], sums: Floats, steps: NDArray[np.int64]
) -> None:
    """Sum up the rewards of windows, from the first step to the last one that is inside of the trajectory.

    Args:
        rewards: Rewards of each window, [B, n, K], float32 or float64.
        powers: Powers of the discount factor, [n], of the same dtype.
        outside: Which steps of each window are after the end of its trajectory, [B, n].
        sums: The sums are written here, [B, K].
        steps: The number of steps inside is written here, [B].
    """
    for number in range(len(rewards)):
        count = 0
        sums[number] = 0
        for step in range(rewards.shape[1]):
            if outside[number, step]:
                break
            count += 1
            for component in range(rewards.shape[2]):
                sums[number, component] += powers[step] * rewards[number, step, component]
        steps[number] = count
