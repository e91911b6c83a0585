"""Blank rows: rows without a value, as padding has them, and the rows of a buffer that were never filled.

zeros, NaN and empty texts    blank, unless other values are stated
images                        never blank: a black image is an image
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.sources.flat.arrays import Array, Rows

ZERO: Sequence[int] = (0,)


def may_be_blank(array: Array) -> bool:
    """Return whether rows of an array can be blank: numbers and texts, and not images or Python objects."""
    return not array.encoded and not array.video and (array.text or not array.dtype.hasobject)


def blank_rows(rows: Rows, fills: Sequence[int] = ZERO, *, axes: int = 1) -> NDArray[np.bool_]:
    """Return which rows are blank: NaN, or one of the fill values, in all elements.

    Args:
        rows: The rows, [n, ...], or [E, T, ...] with two axes of rows. A text is blank if it is empty.
        fills: The values that mark missing elements, beside NaN.
        axes: Number of the axes that count rows.
    """
    if isinstance(rows, list):
        return np.array([not row for row in rows], np.bool_)
    values: NDArray[Any] = np.asarray(rows)
    values = values.reshape(*values.shape[:axes], -1)
    blank = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    for fill in fills:
        if fill >= 0 or values.dtype.kind in "if":
            blank |= values == fill
    return np.asarray(blank.all(-1))
