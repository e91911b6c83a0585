"""Places of windows, in a compiled loop, in place of ten calls of numpy on B * W numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

Index = NDArray[np.int64]


@compile_for("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], boolean[:, ::1])")
def fill_windows(
    places: Index, firsts: Index, lasts: Index, offsets: Index, order: Index, window: Index, outside: NDArray[np.bool_]
) -> None:
    """Fill windows with rows that stay within trajectories.

    Args:
        places: Place of each window, [B].
        firsts: Place of the first step of its trajectory, [B].
        lasts: Place of the last step of its trajectory, [B].
        offsets: Places of the steps of a window, relative to the place, [W].
        order: Row at each place, [P], or [0] if place and row are equal.
        window: The rows are written here, [B, W].
        outside: The places that repeat the first or the last step are written here, [B, W].
    """
    for number in range(len(places)):
        first, last, start = firsts[number], lasts[number], places[number]
        for step in range(window.shape[1]):
            wanted = start + offsets[step]
            place = min(max(wanted, first), last)
            outside[number, step] = place != wanted
            window[number, step] = order[place] if len(order) else place
