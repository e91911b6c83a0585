"""The sums and extremes of the episodes of a block, in compiled loops: one pass in place of a dozen passes of numpy."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.block import PARTS
from datasets_rl.loop_compiler import compile_for

_REALS = (numba.float32, numba.float64)
_INTEGERS = numba.int64[::1]


@compile_for(
    [
        numba.void(
            real[:, ::1],
            _INTEGERS,
            _INTEGERS,
            _INTEGERS,
            numba.float64[:, :, :, ::1],
            real[:, :, ::1],
            numba.int64[:, :, ::1],
            numba.int64[:, ::1],
        )
        for real in _REALS
    ]
)
def tally(
    values: NDArray[Any],
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    lengths: NDArray[np.int64],
    sums: NDArray[np.float64],
    extremes: NDArray[Any],
    counts: NDArray[np.int64],
    wrong: NDArray[np.int64],
) -> None:
    """Add up the values of the episodes of a block. Values that are not finite are left out of all but `wrong`.

    Args:
        values: The N rows of the block and the row after the block, [N + 1, D].
        starts: First row of each episode in the block, [E].
        times: Step of the first row of each episode in the block within the episode, [E].
        lengths: Number of steps of each whole episode, [E].
        sums: Of each part: the sum of the values, of their sizes, of the sizes of their changes, and of the sizes of the changes of
            their changes. 0 before, [E, 4, 4, D].
        extremes: Minimum and maximum, [E, 2, D].
        counts: Rows at the minimum, at the maximum, and equal to the row after. 0 before, [E, 3, D].
        wrong: Number of values that are not finite, the first row with such a value, or -1, and the row after the last, [E, 3].
    """
    rows, width = len(values) - 1, values.shape[1]
    for episode in range(len(starts)):
        stop = starts[episode + 1] if episode + 1 < len(starts) else rows
        extremes[episode, 0, :] = np.inf
        extremes[episode, 1, :] = -np.inf
        wrong[episode, 0] = 0
        wrong[episode, 1] = -1
        wrong[episode, 2] = -1
        for row in range(starts[episode], stop):
            time = times[episode] + row - starts[episode]
            part = time * PARTS // lengths[episode]
            inside = time + 1 < lengths[episode]
            for element in range(width):
                value = values[row, element]
                if not abs(value) < np.inf:
                    wrong[episode, 0] += 1
                    if wrong[episode, 1] < 0:
                        wrong[episode, 1] = row
                    wrong[episode, 2] = row + 1
                    continue
                sums[episode, part, 0, element] += value
                sums[episode, part, 1, element] += abs(value)
                if inside:
                    after = values[row + 1, element]
                    change = abs(after - value)
                    if change < np.inf:
                        sums[episode, part, 2, element] += change
                        if row > starts[episode]:
                            bend = abs(after - value - value + values[row - 1, element])
                            if bend < np.inf:
                                sums[episode, part, 3, element] += bend
                    if change == 0:
                        counts[episode, 2, element] += 1
                if value < extremes[episode, 0, element]:
                    extremes[episode, 0, element] = value
                    counts[episode, 0, element] = 0
                if value > extremes[episode, 1, element]:
                    extremes[episode, 1, element] = value
                    counts[episode, 1, element] = 0
                if value == extremes[episode, 0, element]:
                    counts[episode, 0, element] += 1
                if value == extremes[episode, 1, element]:
                    counts[episode, 1, element] += 1


@compile_for([numba.void(real[:, ::1], numba.int64, real[::1], real[::1]) for real in _REALS])
def add_ways(values: NDArray[Any], steps: int, weights: NDArray[Any], ways: NDArray[Any]) -> None:
    """Add the weighted sizes of the changes over so many steps to `ways`.

    Args:
        values: Values, [N, D].
        steps: Number of steps.
        weights: Weight of each element, [D].
        ways: The result is added to the first N - steps items, [N].
    """
    for row in range(len(values) - steps):
        way = ways[row]
        for element in range(values.shape[1]):
            way += weights[element] * abs(values[row + steps, element] - values[row, element])
        ways[row] = way
