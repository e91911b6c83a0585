"""The loop that converts rows of a view to rows of the dataset, imported only when needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Index = NDArray[np.int64]


@compile_for(
    "boolean(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], boolean[::1])"
)
def locate_rows(
    rows: Index,
    block_bits: int,
    owners: Index,
    firsts: Index,
    shifts: Index,
    cut_rows: Index,
    count: int,
    found: Index,
    episodes: Index,
    cut: NDArray[np.bool_],
) -> bool:
    """Find rows of a dataset, and return whether all rows of the view are in [0, count).

    Args:
        rows: Rows of the view, [B].
        block_bits: Logarithm of the number of rows in a block.
        owners: Episode of the first row of each block.
        firsts: First row of each episode of the view.
        shifts: Difference between the rows of the dataset and of the view, for each episode.
        cut_rows: Row of the dataset at which each episode is cut.
        count: Number of rows of the view.
        found: Is filled with the rows of the dataset, [B].
        episodes: Is filled with the episodes, [B].
        cut: Is filled with whether an episode is cut at each row, [B].
    """
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= count:
            return False
        block = row >> block_bits
        low = owners[block]
        high = owners[block + 1] if block + 1 < len(owners) else len(shifts) - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if firsts[middle] <= row:
                low = middle
            else:
                high = middle - 1
        found[i] = row + shifts[low]
        episodes[i] = low
        cut[i] = cut_rows[low] == found[i]
    return True
