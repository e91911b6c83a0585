"""Windows of rows and of records, in compiled loops: each would be ten calls of torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.compiled import compile_for

__all__ = ["bound_runs", "bounded_windows"]

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@compile_for("void(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[:, ::1], boolean[:, ::1])")
def bounded_windows(
    rows: Index, episodes: Index, firsts: Index, lasts: Index, before: int, window: Index, outside: Mask
) -> None:
    """Fill windows with rows that stay within their episodes, and which of them repeat the first or last row.

    Args:
        rows: Row of each window, [B].
        episodes: Its episode, [B].
        firsts: First row of each episode, [E].
        lasts: Last row of each episode, [E].
        before: Number of rows of a window before its row.
        window: The rows are written here, [B, W].
        outside: Whether each is a repetition is written here, [B, W].
    """
    width = window.shape[1]
    for number in range(len(rows)):
        episode = episodes[number]
        first, last, start = firsts[episode], lasts[episode], rows[number] - before
        for step in range(width):
            row = min(max(start + step, first), last)
            window[number, step] = row
            outside[number, step] = row != start + step


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
