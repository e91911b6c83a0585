"""Jumps: steps between rows that no other step comes near, as between two episodes that are read as one.

step of an element i from row t to row t + 1       e_i(t) = min(|d|, range_i - |d|, ||x_t+1| - |x_t||),  d = x_t+1 - x_t
against the steps of the five rows at each side    r_i(t) = e_i(t) / (largest neighboring e_i + median of e_i)
size of the step                                   D(t) = the largest number that more than half of the r_i(t) reach

The second and the third term of e_i make the wrap of an angle and the sign of a quaternion no step. Elements that stay equal in
half of the rows, such as goals and grippers, are not compared. Of the others, the smoother half is compared, because an impact
changes velocities at once and positions smoothly. Of all sizes in order, the jumps are those above a gap: each is at least `GAP`
times as large as every other step. Where the smoother half shows no jump, all elements are compared:

size of the step                                   W(t) = the root of the mean square of all r_i(t)

The jumps are those above a gap of W, if more than half of the elements of each jump also reach a larger r_i than in every other
step, by `LEAD`. An impact changes half of the elements, and is not a jump.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAP = 3.0
"""Minimum ratio of a jump and the largest step that is not a jump."""
LEAD = 1.2
"""Minimum ratio of what more than half of all elements reach at a jump and at every other step."""
SPACING = 10
"""Minimum number of rows between jumps, and between a jump and the first or the last row."""
SHARE = 20
"""At most one step in this number of steps is a jump."""
MIN_STEPS = 50
_MIN_ELEMENTS = 2
_NEIGHBORS = 5

_Flags = NDArray[np.bool_]
_Numbers = NDArray[np.float64]


def jump_steps(states: _Numbers, within: _Flags | None = None) -> NDArray[np.int64]:
    """Return the steps that are jumps, ascending: step t leads from row t to row t + 1.

    Args:
        states: The states of consecutive rows, [T, D].
        within: Whether a step is within an episode, [T - 1]. By default all steps are.
    """
    none = np.empty(0, np.int64)
    within = np.ones(max(len(states) - 1, 0), np.bool_) if within is None else within.copy()
    most = int(within.sum()) // SHARE
    if within.sum() < MIN_STEPS or states.shape[1] < _MIN_ELEMENTS:
        return none
    within[:SPACING] = within[-SPACING:] = False
    steps = _steps(states)
    medians = np.median(steps[within], axis=0) if within.any() else np.zeros(states.shape[1])
    moving = np.flatnonzero(medians > 0)
    if len(moving) < _MIN_ELEMENTS:
        return none
    steps, medians = steps[:, moving], medians[moving]
    ratios = np.where(within[:, None], steps / (_largest_neighbors(steps) + medians), 0.0)
    found = _above_gap(_reached_by_most(ratios[:, _smoother(states[:, moving], medians)]), most)
    if len(found):
        return found
    found = _above_gap(np.sqrt(np.mean(ratios**2, axis=1)), most)
    reached = _reached_by_most(ratios)
    is_led = len(found) and reached[found].min() >= LEAD * np.delete(reached, found).max()
    return found if is_led else none


def _above_gap(sizes: _Numbers, most: int) -> NDArray[np.int64]:
    """Return the steps that are `GAP` times as large as every other step, ascending, if they are few and far apart."""
    none = np.empty(0, np.int64)
    order = np.argsort(-sizes, kind="stable")[: most + 1]
    largest = sizes[order]
    gaps = np.divide(largest[:-1], largest[1:], out=np.zeros(len(largest) - 1), where=largest[1:] > 0)
    if not len(gaps) or gaps.max() < GAP:
        return none
    found = np.sort(order[: int(np.argmax(gaps)) + 1])
    return none if (np.diff(found) < SPACING).any() else found


def _smoother(states: _Numbers, medians: _Numbers) -> NDArray[np.int64]:
    """Return the smoother half of the elements of states, [T, D], with the median of the steps of each, [D]."""
    with np.errstate(all="ignore"):
        bends = np.median(np.abs(np.diff(states, n=2, axis=0)), axis=0) / medians
    return np.argsort(bends, kind="stable")[: max(_MIN_ELEMENTS, -(-len(medians) // 2))]


def _reached_by_most(ratios: _Numbers) -> _Numbers:
    """Return the largest number that more than half of the elements reach, [T - 1]."""
    rank = ratios.shape[1] // 2 + 1
    sizes: _Numbers = np.partition(ratios, -rank, axis=1)[:, -rank]
    return sizes


def _steps(states: _Numbers) -> _Numbers:
    """Return the step of each element, [T - 1, D], or 0 where a number is not finite."""
    finite = states[np.isfinite(states).all(1)]
    spread = np.ptp(finite, axis=0) if len(finite) else np.zeros(states.shape[1])
    with np.errstate(all="ignore"):
        steps = np.abs(np.diff(states, axis=0))
        steps = np.minimum(steps, np.abs(spread - steps))
        steps = np.minimum(steps, np.abs(np.diff(np.abs(states), axis=0)))
    steps[~np.isfinite(steps)] = 0
    return steps


def _largest_neighbors(steps: _Numbers) -> _Numbers:
    """Return the largest of the neighboring steps of each step, [T - 1, D]."""
    largest = np.zeros_like(steps)
    for shift in range(1, _NEIGHBORS + 1):
        np.maximum(largest[shift:], steps[:-shift], out=largest[shift:])
        np.maximum(largest[:-shift], steps[shift:], out=largest[:-shift])
    return largest
