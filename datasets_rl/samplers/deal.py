"""Drawing without replacement, in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.samplers.compiled import compiled

__all__ = ["deal"]


@compiled("void(int64[::1], float64[::1], int64[::1])")
def deal(rows: NDArray[np.int64], points: NDArray[np.float64], dealt: NDArray[np.int64]) -> None:
    """Draw rows, each of those that are left with the same chance.

        rows   a b c d e      dealt d:   rows   d b c a e      dealt b:   rows   d b c a e
               ^                                  ^                                  ^

    Args:
        rows: Those that are left, [n]. The drawn ones come to the front.
        points: From [0, 1), [B], B no more than n.
        dealt: Takes the drawn rows, [B].
    """
    left = len(rows)
    for i in range(len(points)):
        at = i + int(points[i] * (left - i))
        dealt[i] = rows[at]
        rows[at] = rows[i]
        rows[i] = dealt[i]
