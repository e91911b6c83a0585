"""Conversion between the T + 1 states of an episode and the (root, next) pairs of its T transitions.

    states of an episode     s_0  s_1  s_2  ...  s_T-1  s_T
    row t, root              s_t                                  rows t = 0 ... T-1, stored
    row t, under "next"      s_t+1                                the following row, or `final` for the last row

All code for this shift is in this module. On disk, the rows of all episodes are contiguous, and each s_T is in a
separate table:

    rows     |  s_0 s_1 s_2 s_3  |  s_0 s_1  | ...        a record per step
    next of     s_1 s_2 s_3  f_0    s_1  f_1   ...        f_e = final[e]
    final    |  f_0  f_1  ...                             a record per episode, zeros if s_T is unknown
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.ted.table import EpisodeTable


def values_after(rows: Any, final: Any, table: EpisodeTable, start: int, stop: int) -> NDArray[Any]:
    """Return the values under "next" for rows `start` to `stop`.

    Args:
        rows: Values at t of all N rows, [N, ...]: an array, or an object with the indexing of an array.
        final: Values after the last action of each episode, [E, ...].
        table: The E episodes.
        start: First row.
        stop: Row after the last row.

    Returns:
        [stop - start, ...], a copy.
    """
    next_values = np.empty((stop - start, *rows.shape[1:]), rows.dtype)
    if stop == start:
        return next_values
    shifted = rows[start + 1 : stop + 1]
    next_values[: len(shifted)] = shifted
    first, last = table.episode_of(np.array([start, stop - 1]))
    episodes = np.arange(first, last + 1)
    last_rows = table.stops[episodes] - 1
    inside = last_rows < stop
    next_values[last_rows[inside] - start] = final[episodes[inside]]
    return next_values
