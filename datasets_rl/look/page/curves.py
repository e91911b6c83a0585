"""Curves of an episode, as few points as a screen shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 1_000
_MAX_READ = 200_000
_MAX_BYTES = 32 << 20


def stride_of(steps: int, row_bytes: int) -> int:
    """Return k: a curve is drawn from every k-th step, so that at most 200,000 steps and 32 MiB are read.

    Args:
        steps: The number of steps.
        row_bytes: The bytes of the field in a step.
    """
    max_steps = max(MAX_POINTS, min(_MAX_READ, _MAX_BYTES // max(row_bytes, 1)))
    return -(-steps // max_steps)


def envelope(values: NDArray[Any]) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Return at most `MAX_POINTS` points of curves: the least and the greatest value of consecutive values.

    A single reward in a long episode stays visible. If every k-th value were drawn instead, the reward would be lost.

        values    3 1 4 1 5 9 2      two values per point
        low       1   1   5   2
        high      3   4   9   2

    Args:
        values: Values, [n, K]. Values that are not finite are ignored next to finite values.

    Returns:
        The number of values per point, and the least and the greatest values, [P, K] each.
    """
    count = len(values)
    width = max(1, -(-count // MAX_POINTS))
    numbers = values.astype(np.float64)
    if width == 1:
        return 1, numbers, numbers
    padded = np.concatenate([numbers, np.repeat(numbers[-1:], -count % width, axis=0)])
    groups = padded.reshape(-1, width, *numbers.shape[1:])
    return width, np.fmin.reduce(groups, axis=1), np.fmax.reduce(groups, axis=1)


def tidy(values: NDArray[Any]) -> Any:
    """Return numbers as JSON values of at most seven digits, or None for numbers that are not finite."""
    if values.dtype.kind == "b" or values.dtype.kind in "iu":
        return values.tolist()
    return _rounded(values.tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.7g}") if np.isfinite(value) else None
