"""The only shift between T + 1 states and the pairs (now, next) of T transitions.

    states of an episode     s_0  s_1  s_2  ...  s_T-1  s_T
    row t, root              s_t                                  rows t = 0 ... T-1, stored
    row t, under "next"      s_t+1                                the row below, or `final` for the last row

On disk the rows of all episodes lie back to back and each s_T lies in a table of its own:

    rows     |  s_0 s_1 s_2 s_3  |  s_0 s_1  | ...        one record a step
    next of     s_1 s_2 s_3  f_0    s_1  f_1   ...        f_e = final[e]
    final    |  f_0  f_1  ...                             one record an episode; zeros where s_T is not known
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.table import EpisodeTable

__all__ = ["next_of", "split_states"]


def split_states(states: NDArray[Any], steps: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Split the states of one episode into what stands in its rows and what follows its last action.

    Args:
        states: [T + 1, ...], or [T, ...] where the last state is not known.
        steps: T.

    Returns:
        The states of the rows, [T, ...], and the final state, [...], or None.
    """
    return states[:steps], states[steps] if len(states) > steps else None


def next_of(rows: Any, final: Any, table: EpisodeTable, start: int, stop: int) -> NDArray[Any]:
    """Return what stands under "next" for rows start to stop.

    Args:
        rows: The values at t of all N rows, [N, ...]: an array, or what is read like one.
        final: The values after the last action, [E, ...].
        table: Where the E episodes lie.
        start: First row wanted.
        stop: Row after the last one wanted.

    Returns:
        [stop - start, ...], a copy.
    """
    following = np.empty((stop - start, *rows.shape[1:]), rows.dtype)
    if stop == start:
        return following
    below = rows[start + 1 : stop + 1]
    following[: len(below)] = below
    first, last = table.episode_of(np.array([start, stop - 1]))
    ending = np.arange(first, last + 1)
    ends = table.stops[ending] - 1
    inside = ends < stop
    following[ends[inside] - start] = final[ending[inside]]
    return following
