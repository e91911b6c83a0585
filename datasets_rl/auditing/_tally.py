"""The sums and extremes of the episodes of a block, in compiled loops: two passes in place of a dozen passes of numpy.

Values that are not finite are left out of all but the counts of such values.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

_REALS = (numba.float32, numba.float64)
_INTEGERS = numba.int64[::1]


@compile_for(
    [
        numba.void(real[:, ::1], _INTEGERS, _INTEGERS, _INTEGERS, numba.float64[:, :, :, ::1], numba.int64[:, ::1])
        for real in _REALS
    ]
)
def add_sums(
    values: NDArray[Any],
    edges: NDArray[np.int64],
    times: NDArray[np.int64],
    lengths: NDArray[np.int64],
    sums: NDArray[np.float64],
    still: NDArray[np.int64],
) -> None:
    """Add up the values of the parts of episodes.

    Args:
        values: The N rows of the block and at least two rows after the block, [N + 2, D].
        edges: First row of each episode in the block, and N, [E + 1].
        times: Step of the first row of each episode in the block within the episode, [E].
        lengths: Number of steps of each whole episode, [E].
        sums: Of each part: the sum of the values, of their sizes, of the sizes of their changes, and of the sizes of the changes of
            their changes. 0 before, [E, 4, 4, D].
        still: Number of rows with the value of the row after. 0 before, [E, D].
    """
    for episode in range(len(times)):
        for row in range(edges[episode], edges[episode + 1]):
            time = times[episode] + row - edges[episode]
            part = time * sums.shape[1] // lengths[episode]
            left = lengths[episode] - time
            for element in range(values.shape[1]):
                value = values[row, element]
                if not abs(value) < np.inf:
                    continue
                sums[episode, part, 0, element] += value
                sums[episode, part, 1, element] += abs(value)
                change = values[row + 1, element] - value
                if left > 1 and abs(change) < np.inf:
                    still[episode, element] += change == 0
                    sums[episode, part, 2, element] += abs(change)
                    bend = abs(values[row + 2, element] - values[row + 1, element] - change)
                    if left > 2 and bend < np.inf:
                        sums[episode, part, 3, element] += bend


@compile_for(
    [
        numba.void(real[:, ::1], _INTEGERS, real[:, :, ::1], numba.int64[:, :, ::1], numba.int64[:, ::1])
        for real in _REALS
    ]
)
def find_extremes(
    values: NDArray[Any],
    edges: NDArray[np.int64],
    extremes: NDArray[Any],
    counts: NDArray[np.int64],
    wrong: NDArray[np.int64],
) -> None:
    """Find the extremes of episodes, and the values that are not finite.

    Args:
        values: The N rows of the block, or more, [N, D].
        edges: First row of each episode in the block, and N, [E + 1].
        extremes: Minimum and maximum. Infinity and its negative before, [E, 2, D].
        counts: Rows at the minimum and at the maximum. 0 before, [E, 2, D].
        wrong: Number of values that are not finite, the first row with such a value, and the row after the last. 0, -1 and -1
            before, [E, 3].
    """
    for episode in range(len(edges) - 1):
        for row in range(edges[episode], edges[episode + 1]):
            for element in range(values.shape[1]):
                value = values[row, element]
                if not abs(value) < np.inf:
                    if wrong[episode, 1] < 0:
                        wrong[episode, 1] = row
                    wrong[episode, 0] += 1
                    wrong[episode, 2] = row + 1
                    continue
                if value < extremes[episode, 0, element]:
                    extremes[episode, 0, element] = value
                    counts[episode, 0, element] = 0
                if value > extremes[episode, 1, element]:
                    extremes[episode, 1, element] = value
                    counts[episode, 1, element] = 0
                counts[episode, 0, element] += value == extremes[episode, 0, element]
                counts[episode, 1, element] += value == extremes[episode, 1, element]


@compile_for([numba.void(real[:, ::1], numba.int64, numba.float64[::1], numba.float64[::1]) for real in _REALS])
def add_ways(values: NDArray[Any], steps: int, weights: NDArray[np.float64], ways: NDArray[np.float64]) -> None:
    """Add the weighted sizes of the changes over so many steps to `ways`.

    Args:
        values: Values, [N + steps, D].
        steps: Number of steps.
        weights: Weight of each element, [D].
        ways: The result is added here, [N].
    """
    for row in range(len(ways)):
        way = ways[row]
        for element in range(values.shape[1]):
            way += weights[element] * abs(values[row + steps, element] - values[row, element])
        ways[row] = way
