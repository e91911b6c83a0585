"""Jumps: steps between rows that no other step comes near, as between two episodes that are read as one.

element i of the step from row t to row t + 1        e_i = min(|d|, range_i - |d|, ||x_t+1| - |x_t||),  d = x_t+1 - x_t
size of the step                                     D_t = the largest number that more than half of e_i / median(e_i) reach

The second and the third term make the wrap of an angle and the sign of a quaternion no step. Elements that stay equal in half
of the rows, such as goals and grippers, are not compared. Of all sizes in order, the jumps are those above a gap: each is at
least `GAP` times as large as every other step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAP = 4.0
"""Minimum ratio of a jump and the largest step that is not a jump."""
SPACING = 10
"""Minimum number of rows between jumps, and between a jump and the first or the last row."""
SHARE = 20
"""At most one step in this number of steps is a jump."""
MIN_STEPS = 50
_MIN_ELEMENTS = 2


def jump_steps(states: NDArray[np.float64], within: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Return the steps that are jumps, ascending: step t leads from row t to row t + 1.

    Args:
        states: The states of consecutive rows, [T, D].
        within: Whether a step is within an episode, [T - 1]. By default all steps are.
    """
    none = np.empty(0, np.int64)
    within = np.ones(max(len(states) - 1, 0), np.bool_) if within is None else within.copy()
    if within.sum() < MIN_STEPS or states.shape[1] < _MIN_ELEMENTS:
        return none
    most = int(within.sum()) // SHARE
    within[:SPACING] = within[-SPACING:] = False
    sizes = _sizes(states, within)
    order = np.argsort(-sizes, kind="stable")[: most + 1]
    largest = sizes[order]
    gaps = np.divide(largest[:-1], largest[1:], out=np.zeros(len(largest) - 1), where=largest[1:] > 0)
    if not len(gaps) or gaps.max() < GAP:
        return none
    found = np.sort(order[: int(np.argmax(gaps)) + 1])
    return none if (np.diff(found) < SPACING).any() else found


def _sizes(states: NDArray[np.float64], within: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the size of each step, [T - 1], or zeros outside of `within`, and if too few elements change."""
    finite = states[np.isfinite(states).all(1)]
    spread = np.ptp(finite, axis=0) if len(finite) else np.zeros(states.shape[1])
    with np.errstate(all="ignore"):
        apart = np.abs(np.diff(states, axis=0))
        apart = np.minimum(apart, np.abs(spread - apart))
        apart = np.minimum(apart, np.abs(np.diff(np.abs(states), axis=0)))
    apart[~np.isfinite(apart)] = 0
    medians = np.median(apart[within], axis=0) if within.any() else np.zeros(states.shape[1])
    moves = medians > 0
    if moves.sum() < _MIN_ELEMENTS:
        return np.zeros(len(apart))
    scaled = apart[:, moves] / medians[moves]
    rank = scaled.shape[1] // 2 + 1
    sizes: NDArray[np.float64] = np.partition(scaled, -rank, axis=1)[:, -rank]
    return np.where(within, sizes, 0.0)
