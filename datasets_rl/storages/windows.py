"""Windows of rows of a ring, in a compiled loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Index = NDArray[np.int64]


@compile_for("int64(int64[:, ::1], int64[::1])")
def find_gaps(window: Index, others: Index) -> int:
    """Find the windows with rows that are not consecutive, because they are padded, or a ring wraps.

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
