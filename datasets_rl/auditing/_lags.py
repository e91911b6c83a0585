"""Errors of the actions at several lags, in a compiled loop."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

_FURTHEST = 16.0


@compile_for(
    numba.void(
        numba.float32[:, ::1],
        numba.float32[:, ::1],
        numba.int64[::1],
        numba.int64[::1],
        numba.int64[::1],
        numba.float32[::1],
        numba.float64[:, :, :, ::1],
        numba.int64[:, ::1],
    )
)
def add_errors(
    predicted: NDArray[np.float32],
    stored: NDArray[np.float32],
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    lengths: NDArray[np.int64],
    scales: NDArray[np.float32],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """Add the squared differences between predicted values and the stored values of nearby steps to `sums`.

    Args:
        predicted: Predicted value of each row, [N, A].
        stored: Values of the rows and of as many rows before and after as the lags reach, [N + L - 1, A].
        starts: First row of each episode in the block, [E].
        times: Step of this row within the episode, [E].
        lengths: Number of steps of each whole episode, [E].
        scales: Factor of the squares, [A].
        sums: By half of the episode and lag, [E, 2, L, A].
        counts: Number of steps, [E, 2].
    """
    rows, width, lags = len(predicted), predicted.shape[1], sums.shape[2]
    reach = lags // 2
    for episode in range(len(starts)):
        stop = starts[episode + 1] if episode + 1 < len(starts) else rows
        for row in range(starts[episode], stop):
            time = times[episode] + row - starts[episode]
            if time < reach or time + reach >= lengths[episode]:
                continue
            total = np.float32(0)
            for element in range(width):
                total += predicted[row, element]
                for lag in range(lags):
                    total += stored[row + lag, element]
            if not abs(total) < np.inf:
                continue
            half = 2 * time // lengths[episode]
            counts[episode, half] += 1
            for lag in range(lags):
                for element in range(width):
                    error = stored[row + lag, element] - predicted[row, element]
                    sums[episode, half, lag, element] += min(error * error * scales[element], _FURTHEST)
