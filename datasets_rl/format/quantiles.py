"""Quantiles of the fields of a dataset, from a sample of rows that depends on the number of rows only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.split_mix import GOLDEN, mix_bits

QUANTILES = {
    "q01": 0.01,
    "q02": 0.02,
    "q10": 0.1,
    "q25": 0.25,
    "q50": 0.5,
    "q75": 0.75,
    "q90": 0.9,
    "q98": 0.98,
    "q99": 0.99,
}
"""Names and probabilities of the quantiles. LeRobot and openpi use the same names."""
MAX_ROWS = 1 << 16
"""Size of the sample. The quantiles of datasets of up to this many steps are exact."""
_MIN_ROWS = 1 << 12
_MAX_VALUES = 1 << 21


def sample_size(steps: int, elements: int) -> int:
    """Return the number of sampled rows, K: above 32 elements per step fewer than `MAX_ROWS`, but at least 4,096."""
    return min(steps, max(_MIN_ROWS, min(MAX_ROWS, _MAX_VALUES // max(elements, 1))))


def sample_rows(steps: int, count: int) -> NDArray[np.int64]:
    """Return sampled rows, int64 [K], ascending: a row of each of K ranges of equal length.

    The row within a range is pseudorandom, by SplitMix64 (Steele, Lea and Flood, 2014) of the number of the range, so
    that the sample has no period that episodes could share. The sample depends on nothing but the arguments, in any way
    of converting a dataset.

    Args:
        steps: Number of rows, N.
        count: Number of sampled rows, K, at most N.
    """
    edges = np.arange(count + 1, dtype=np.int64) * steps // count
    offsets = mix_bits(np.arange(1, count + 1, dtype=np.uint64) * GOLDEN) % np.diff(edges).astype(np.uint64)
    rows: NDArray[np.int64] = edges[:-1] + offsets.astype(np.int64)
    return rows


def quantiles(values: NDArray[Any], shape: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the `QUANTILES` of each element, with linear interpolation, as JSON values, None without finite values.

    Args:
        values: The values, [n, *shape]. Values that are not finite are ignored.
        shape: Shape of the result: that of a step, or () for the quantiles of all elements together.
    """
    columns = np.ascontiguousarray(values.reshape(-1, int(np.prod(shape))).T)
    if columns.dtype.kind == "f" and not np.isfinite(columns).all():
        numbers = np.stack([_interpolated(np.sort(column[np.isfinite(column)])[None]) for column in columns], axis=1)
        numbers = numbers[:, :, 0]
    else:
        numbers = _interpolated(np.sort(columns, axis=1))
    known = np.where(np.isfinite(numbers), numbers, None).reshape(len(QUANTILES), *shape)  # type: ignore[call-overload]
    return dict(zip(QUANTILES, known.tolist(), strict=True))


def _interpolated(ordered: NDArray[Any]) -> NDArray[np.float64]:
    """Return the quantiles [Q, D] of ascending values [D, n], or NaN if n is 0."""
    last = ordered.shape[1] - 1
    if last < 0:
        return np.full((len(QUANTILES), len(ordered)), np.nan)
    positions = np.array([*QUANTILES.values()]) * last
    lower = positions.astype(np.int64)
    low, high = (ordered[:, index].T.astype(np.float64) for index in (lower, np.minimum(lower + 1, last)))
    share = (positions - lower)[:, None]
    # No difference of two values, which could overflow.
    result: NDArray[np.float64] = low * (1 - share) + high * share
    return result
