"""Discounted sums and padding of windows, in compiled loops: each would be about ten calls of torch."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Floats = NDArray[Any]
Mask = NDArray[np.bool_]

_REALS = (numba.float32, numba.float64)
_MASK = types.Array(types.boolean, 2, "C")
_FLAGS = types.Array(types.boolean, 3, "A")


def _values(dtype: Any) -> Any:
    return types.Array(dtype, 3, "A")


@compile_for([types.void(_values(real), real[::1], _MASK, real[:, ::1], types.int64[::1]) for real in _REALS])
def discounted_sums(rewards: Floats, powers: Floats, outside: Mask, sums: Floats, steps: NDArray[np.int64]) -> None:
    """Sum up the rewards of windows, from the first step to the last step that is inside of the trajectory.

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


@compile_for(
    [
        types.void(
            _values(real), _FLAGS, _FLAGS, real[::1], _MASK, real[:, ::1], real[:, ::1], _MASK, _MASK, types.int64[::1]
        )
        for real in _REALS
    ]
)
def chunk_sums(
    rewards: Floats,
    done: Mask,
    terminated: Mask,
    powers: Floats,
    outside: Mask,
    sums: Floats,
    alive: Floats,
    ended: Mask,
    valid: Mask,
    steps: NDArray[np.int64],
) -> None:
    """Compute the entries of the chunks of `QChunkTransform` that follow from rewards and flags.

    Args:
        rewards: Rewards of each window, [B, W, 1], float32 or float64, W >= H.
        done: Whether the trajectory ends at each step, [B, W, 1].
        terminated: Whether it terminates there, [B, W, 1].
        powers: Powers of the discount factor, [H + 1], of the dtype of the rewards.
        outside: Which steps are after the end of the trajectory, [B, W].
        sums: Discounted sum of the rewards up to each step is written here, [B, H].
        alive: 0 from a termination on, else 1, is written here, [B, H].
        ended: True from the end of the trajectory on is written here, [B, H].
        valid: True for steps of the trajectory is written here, [B, H].
        steps: The number of these steps is written here, [B].
    """
    for number in range(len(sums)):
        total, over, terminal, count = sums.dtype.type(0), False, False, 0
        for step in range(sums.shape[1]):
            inside = not outside[number, step]
            if inside:
                total += powers[step] * rewards[number, step, 0]
                count += 1
            over |= done[number, step, 0]
            terminal |= terminated[number, step, 0]
            sums[number, step] = total
            alive[number, step] = 0 if terminal else 1
            ended[number, step] = over
            valid[number, step] = inside
        steps[number] = count


@compile_for(
    [
        types.void(_values(dtype), types.Array(types.boolean, 2, "A"), types.float64)
        for dtype in (*_REALS, types.int64, types.int32, types.uint8, types.boolean)
    ]
)
def fill_padding(values: NDArray[Any], outside: Mask, value: float) -> None:
    """Set the padding of windows to a value, in place.

    Args:
        values: Windows, [B, W, K].
        outside: Which steps are padding, at the ends of a window, [B, W].
        value: Value of the padding.
    """
    last = outside.shape[1] - 1
    for number in range(len(values)):
        if not (outside[number, 0] or outside[number, last]):
            continue
        for step in range(last + 1):
            if outside[number, step]:
                for component in range(values.shape[2]):
                    values[number, step, component] = value
