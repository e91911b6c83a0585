"""Rows of goals, and their states, in compiled loops, in place of twenty calls of numpy."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for, copy_pieces, int64_pointer
from datasets_rl.storages.record_kernel import FINALS, KNOWN, RECORDS, prefetch

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

STRATEGIES = ("geometric", "interpolate", "future", "final", "episode")
_GEOMETRIC, _INTERPOLATE, _, _FINAL, _EPISODE = range(5)
_ROWS_AHEAD, _LINE = 32, 8
"""Rows of which the memory is requested ahead, and words of a cache line."""


@numba.njit(numba.int64(numba.int64, numba.float64, numba.int64, numba.int64, numba.int64), cache=True)
def _place_of(strategy: int, ahead: float, place: int, first: int, limit: int) -> Any:
    """Return the place of a trajectory goal of a step, see `choose_goals`."""
    following = min(place + 1, limit)
    if strategy == _GEOMETRIC:
        return place + np.int64(min(ahead, float(limit - place)))
    if strategy == _INTERPOLATE:
        return np.int64(np.rint(following * ahead + limit * (1 - ahead)))
    if strategy == _FINAL:
        return limit
    start = first if strategy == _EPISODE else following
    return start + np.int64(ahead * (limit - start + 1))


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
        is_current = len(current) and current[number]
        goal = place if is_current else _place_of(strategy, ahead[number], place, firsts[number], limit)
        inside = min(goal, lasts[number])
        rows[number] = order[inside] if len(order) else inside
        final[number], goal_limits[number] = goal > inside, goal


@compile_for(
    numba.int64(
        RECORDS,
        FINALS,
        KNOWN,
        *(numba.int64[::1],) * 3,
        numba.int64[:, ::1],
        numba.int64,
        numba.float64[:, ::1],
        numba.float64[:, ::1],
        numba.int64[:, ::1],
    )
)
def read_goals(  # noqa: C901, PLR0912, PLR0915 - what a call of a loop costs is what the loop saves
    records: Any,
    finals: Any,
    known: Any,
    firsts: Any,
    lasts: Any,
    numbers: Any,
    targets: Any,
    address: int,
    rules: Any,
    draws: Any,
    out: Any,
) -> int:
    """Choose the goals of rows of a stored dataset, and read their states, or stacks of states, and rewards.

    Args:
        records: All records, see `gather_records`.
        finals: The final states of each episode.
        known: Whether they are known.
        firsts: The first row of each episode, [E].
        lasts: The last row of each episode, [E].
        numbers: Words of a record, words of a window, bytes of a record at which its episode and the state are, bytes of a
            state, whether final states are goals, whether rewards are those of the next states, whether rewards are
            negative, the strategies of both rules, the steps to a subgoal, 0 without subgoals, and the states of a stack.
        targets: The bytes of an output row at which each goal has its state, its row, and whether it is a final state, for
            the value goal, and for the actor goal, or for the subgoal, the actor goal and the target on the way to it.
            Then come the bytes of the mask and of the reward, [G + 1, 3].
        address: Address of the rows, int64 [B], contiguous.
        rules: How random numbers become the goals of the value and of the actor, [2, 7]. First come the numbers of the rows
            of `draws` with where a trajectory goal is, see `GoalDraws`, with the kind of the goal, and with the row of a
            random goal, or -1. The goal is the step itself if the kind is below the next number, and else random if the kind
            is at least the number after. Then come a factor of rows of random goals, and for a geometric distribution the
            factor of logarithms of numbers in (0, 1], or 0 if the draws are numbers of steps.
        draws: Random numbers, [D, B].
        out: Output, words [B, W].

    Returns:
        0. -1 if a row or a goal is outside of [0, N), -2 if an episode is outside of [0, E). Then `out` is incomplete.
    """
    stride, width, episode, source, size = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    with_finals, of_next, negative, subgoal, frames = numbers[5], numbers[6], numbers[7], numbers[10], numbers[11]
    value_strategy, actor_strategy, actor_goal = numbers[8], numbers[9], 2 if subgoal else 1
    count, total, goals = len(out), len(records) // stride - 1, len(targets) - 1
    rows = carray(int64_pointer(address), count)
    episode_word, episode_shift = episode // 8, episode % 8 * 8
    record_bytes, final_bytes, row_bytes = stride * 8, (width - stride) * 8, out.shape[1] * 8
    in_bytes, final_items = records.view(np.uint8), finals.reshape(-1).view(np.uint8)
    flat = out.reshape(-1)
    out_bytes, out_floats = flat.view(np.uint8), flat.view(np.float32)
    last_word = max((source + size - 1) // 8, episode_word if frames > 1 else 0)
    owners = np.empty(count, np.int64)
    for step in range(-_ROWS_AHEAD, count + _ROWS_AHEAD):
        if step + _ROWS_AHEAD < count:
            later = max(min(rows[step + _ROWS_AHEAD], total), 0) * stride
            for word in range(later, later + stride, _LINE):  # the step is read next
                prefetch(records, word)
        done = step - _ROWS_AHEAD
        if done >= 0:
            start = done * row_bytes
            for goal in range(goals):
                written, row = start + targets[goal, 0], flat[(start + targets[goal, 1]) >> 3]
                is_final = numba.int64(out_bytes[start + targets[goal, 2]])
                if frames > 1:
                    # A random goal has the stack of another episode.
                    owner = (records[row * stride + episode_word] >> episode_shift) & 0xFFFFFFFF
                    if owner >= len(firsts):
                        return -2
                    stored = frames - is_final
                    oldest = row - stored + 1
                    repeated = min(max(max(firsts[owner], 0) - oldest, 0), stored - 1)
                    read = (oldest + repeated) * record_bytes + source
                    copy_pieces(in_bytes, read, out_bytes, written, size, 0, repeated)
                    written += repeated * size
                    copy_pieces(in_bytes, read, out_bytes, written, size, record_bytes, stored - repeated)
                    written += (stored - repeated) * size
                elif not is_final:
                    copy_pieces(in_bytes, row * record_bytes + source, out_bytes, written, size, 0, 1)
                if is_final:
                    copy_pieces(final_items, owners[done] * final_bytes + source, out_bytes, written, size, 0, 1)
        if step < 0 or step >= count:
            continue
        row = rows[step]
        if row < 0 or row >= total:
            return -1
        owner = (records[row * stride + episode_word] >> episode_shift) & 0xFFFFFFFF
        if owner >= len(firsts):
            return -2
        first, last = firsts[owner], lasts[owner]
        if first < 0 or last >= total or row < first:  # of a damaged table
            return -2
        limit = last + (1 if with_finals and known[owner] else 0)
        owners[step] = owner
        start, reached, high = step * row_bytes, False, limit
        for goal in range(goals):
            rule = 0 if goal == 0 else 1
            if goal not in (0, actor_goal):
                # A subgoal, or the target on the way to the actor goal, which was chosen before.
                place = min(row + subgoal, limit if goal < actor_goal else high)
            else:
                kind_row = np.int64(rules[rule, 1])
                kind = draws[kind_row, step] if kind_row >= 0 else 0.5
                if kind < rules[rule, 3]:
                    place = row
                elif kind >= rules[rule, 4]:
                    place = -1
                else:
                    ahead, trials = draws[np.int64(rules[rule, 0]), step], rules[rule, 6]
                    if trials != 0:
                        ahead = np.float64(np.int64(ahead * trials)) + 1.0
                    place = _place_of(actor_strategy if rule else value_strategy, ahead, row, first, limit)
            if goal == actor_goal:
                high = limit if place < 0 else place
            if place < 0:
                found = np.int64(draws[np.int64(rules[rule, 2]), step] * rules[rule, 5])
                if found < 0 or found >= total:
                    return -1
            else:
                found = min(place, last)
            is_final = place > last
            flat[(start + targets[goal, 1]) >> 3] = found
            out_bytes[start + targets[goal, 2]] = is_final
            later = max(found - frames + 1, 0) * stride + source // 8
            stop = found * stride + last_word
            for word in range(later, stop, _LINE):
                prefetch(records, word)
            prefetch(records, stop)
            if goal == 0 and of_next:
                reached = found == min(row + 1, last) and is_final == (row == last)
            elif goal == 0:
                reached = found == row and not is_final
        success = np.float32(1 if reached else 0)
        out_floats[(start + targets[goals, 0]) >> 2] = np.float32(1) - success
        out_floats[(start + targets[goals, 1]) >> 2] = success - np.float32(1) if negative else success
    return 0
