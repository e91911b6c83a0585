"""Rows of goals, in a compiled loop, in place of twenty calls of numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

STRATEGIES = ("geometric", "interpolate", "future", "final", "episode")
_GEOMETRIC, _INTERPOLATE, _, _FINAL, _EPISODE = range(5)


@compile_for(
    "void(int64, float64[::1], boolean[::1], boolean[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    "int64[::1], int64[::1], boolean[::1], int64[::1])"
)
def choose_goals(
    strategy: int,
    ahead: NDArray[np.float64],
    current: Mask,
    random: Mask,
    random_rows: Index,
    places: Index,
    firsts: Index,
    lasts: Index,
    limits: Index,
    order: Index,
    rows: Index,
    final: Mask,
    goal_limits: Index,
) -> None:
    """Choose the goal of each of B steps, see `GoalSampler`. Arrays of random choices may be empty, for none.

    Args:
        strategy: Index in `STRATEGIES`.
        ahead: Where a trajectory goal is, see `GoalDraws`, [B].
        current: Whether the goal is the step itself, [B] or [0].
        random: Whether the goal is random if it is not the step itself, [B] or [0].
        random_rows: Row of the random goal, [B] or [0].
        places: Places of the steps, [B].
        firsts: Place of the first step of each trajectory, [B].
        lasts: Place of its last step, [B].
        limits: Place of the last possible goal, [B].
        order: Row at each place, [P], or [0] if place and row are equal.
        rows: The rows of the goals are written here, [B].
        final: Whether each goal is the state after its row is written here, [B].
        goal_limits: The places of the goals are written here, for a random goal that of the last possible goal, [B].
    """
    for number in range(len(places)):
        place, limit = places[number], limits[number]
        if len(random) and random[number] and not (len(current) and current[number]):
            rows[number], final[number], goal_limits[number] = random_rows[number], False, limit
            continue
        following = min(place + 1, limit)
        if len(current) and current[number]:
            goal = place
        elif strategy == _GEOMETRIC:
            goal = place + np.int64(min(ahead[number], float(limit - place)))
        elif strategy == _INTERPOLATE:
            goal = np.int64(np.rint(following * ahead[number] + limit * (1 - ahead[number])))
        elif strategy == _FINAL:
            goal = limit
        else:
            first = firsts[number] if strategy == _EPISODE else following
            goal = first + np.int64(ahead[number] * (limit - first + 1))
        inside = min(goal, lasts[number])
        rows[number] = order[inside] if len(order) else inside
        final[number], goal_limits[number] = goal > inside, goal
