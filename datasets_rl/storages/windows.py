"""Windows of records, in compiled loops: each would be several calls of torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.compiled import compile_for

__all__ = ["bound_runs", "find_gaps"]

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@compile_for("int64(int64[:, ::1], int64[::1])")
def find_gaps(window: Index, others: Index) -> int:
    """Find the windows whose rows are not consecutive, because they are padded, or a ring wraps.

    Args:
        window: Rows of each window, [B, W].
        others: The numbers of such windows are written here, [B].

    Returns:
        The number of such windows.
    """
    count = 0
    for number in range(len(window)):
        for step in range(1, window.shape[1]):
            if window[number, step] != window[number, step - 1] + 1:
                others[count] = number
                count += 1
                break
    return count


@compile_for(
    "void(int64[:, :, ::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64,"
    "boolean[:, ::1], int64[::1], int64[::1])"
)
def bound_runs(
    runs: Index,
    episode: int,
    rows: Index,
    starts: Index,
    firsts: Index,
    lasts: Index,
    before: int,
    outside: Mask,
    low: Index,
    high: Index,
) -> None:
    """Turn runs of records into windows that stay within the episodes of their rows, in place.

    The runs have just been read: to find the episodes in them costs less than to find them before, in the file.

    Args:
        runs: Records around each row, [B, W, words]; those outside of its episode are replaced.
        episode: Place of the episode, 32 bits, in a record, in units of 4 bytes.
        rows: Row of each window, [B].
        starts: Row of the first record of each run, [B].
        firsts: First row of each episode, [E].
        lasts: Last row of each episode, [E].
        before: Number of records of a window before its row.
        outside: Which records are repetitions is written here, [B, W].
        low: The first row of the episode of each row is written here, [B].
        high: The last row of the episode of each row is written here, [B].
    """
    width = runs.shape[1]
    word, shift = episode // 2, 32 * (episode % 2)
    for number in range(len(rows)):
        start, row = starts[number], rows[number] - before
        owner = (runs[number, rows[number] - start, word] >> shift) & 0xFFFFFFFF
        first, last = firsts[owner], lasts[owner]
        low[number], high[number] = first, last
        if row >= first and row + width - 1 <= last:
            for step in range(width):
                outside[number, step] = False
            continue
        steps = np.empty(runs.shape[1:], np.int64)
        for step in range(width):
            inside = min(max(row + step, first), last)
            outside[number, step] = inside != row + step
            steps[step] = runs[number, inside - start]
        runs[number] = steps
