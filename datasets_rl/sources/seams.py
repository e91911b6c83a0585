"""Whether the state that a step reached is the state that the next row begins with.

A writer computes the two from one state, but often rounds them differently: 1e-6 between them is noise, and a reset
moves at least one number much further. So floats count as the same where

    |a - b| <= t * (1 + min(|a|, |b|))        t = 1e-5, and 8 times the spacing of the dtype at 1 where that is larger

and NaN is the same as NaN. Integers and booleans must be equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["differences"]

_TOLERANCE = 1e-5
_SPACINGS = 8


def differences(reached: NDArray[Any], begun: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Compare states row by row.

    Args:
        reached: The state after each step, [T, ...].
        begun: The state of the row after it, [T, ...].

    Returns:
        Which rows are different states, [T], and which rows differ by rounding alone, [T].
    """
    differ = reached != begun
    jumps, rounded = np.zeros(len(differ), np.bool_), np.zeros(len(differ), np.bool_)
    # Few values differ, so that searching the flat array is several times quicker than any() over the last axis.
    places = np.flatnonzero(differ)
    if not len(places):
        return jumps, rounded
    row_of = places // differ[0].size
    left, right = reached.reshape(-1)[places], begun.reshape(-1)[places]
    if left.dtype.kind == right.dtype.kind == "f":
        numbers = ~(np.isnan(left) & np.isnan(right))
        row_of, left, right = row_of[numbers], left[numbers], right[numbers]
        rounded[row_of] = True
        row_of = row_of[~_close(left, right)]
    jumps[row_of] = True
    return jumps, rounded & ~jumps


def _close(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    spacing = max(float(np.finfo(one.dtype).eps) for one in (left, right))
    limit = max(_TOLERANCE, _SPACINGS * spacing)
    left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(left - right)
        close: NDArray[np.bool_] = distance <= limit * (1 + np.minimum(np.abs(left), np.abs(right)))
    return np.asarray(close & np.isfinite(distance))
