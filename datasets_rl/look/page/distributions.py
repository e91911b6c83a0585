"""Histograms of bounded samples, with the same bins for all datasets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 65_536
"""Maximum number of steps to read. Distributions of more steps are of a sample."""
_STRETCHES = 256
_BINS = 40
_MAX_DISTINCT = 24
"""Maximum number of distinct values for a histogram with a bar for each value."""
_PROBED = 10_000


def sample_ranges(rows: int, row_bytes: int, max_bytes: int = 64 << 20) -> list[range]:
    """Return the rows to read for a distribution.

    Up to `MAX_ROWS` rows are all read. Larger datasets are divided into 256 equal parts, and a stretch of consecutive
    rows at a random position in each part is read. The reads are few, spread over the whole dataset, which do not
    follow the rhythm of the episodes.

    Args:
        rows: The number of rows, N.
        row_bytes: The bytes of the field in a row.
        max_bytes: The maximum number of bytes to read.
    """
    budget = min(MAX_ROWS, max(_STRETCHES, max_bytes // max(row_bytes, 1)))
    if rows <= budget:
        return [range(rows)]
    length = budget // _STRETCHES
    bounds = np.linspace(0, rows, _STRETCHES + 1).astype(np.int64)
    free = np.maximum(np.diff(bounds) - length, 0)
    starts = bounds[:-1] + np.random.default_rng(0).integers(0, free + 1)
    return [range(int(start), int(start) + length) for start in starts]


def histogram(samples: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """Return the distributions of a number in several datasets.

    Numbers with few distinct values have a bar for each value. Otherwise the range of all finite values is divided into
    bins, which have integer widths for integers.

    Args:
        samples: Values of each dataset, [n] each. An array may be empty.

    Returns:
        JSON values: ``values`` or the ``edges`` of the bins, and in ``series`` for each dataset the ``counts``, the
        number of values ``of``, the number of ``not_finite`` values, and the ``mean`` of the finite values, or None
        without finite values.
    """
    finite = [np.asarray(values)[np.isfinite(values)] for values in samples]
    pooled = np.concatenate(finite) if finite else np.empty(0)
    document: dict[str, Any] = {}
    distinct = _distinct_values(pooled)
    if distinct is not None:
        document["values"] = distinct.tolist()
        counts = [np.bincount(np.searchsorted(distinct, values), minlength=len(distinct)) for values in finite]
    else:
        edges = _edges(pooled)
        document["edges"] = edges.tolist()
        counts = [
            np.bincount(np.searchsorted(edges[1:-1], values, side="right"), minlength=len(edges) - 1)
            for values in finite
        ]
    document["series"] = [
        {"counts": count.tolist(), "of": len(values), "not_finite": len(values) - len(kept), "mean": _mean(kept)}
        for values, kept, count in zip(samples, finite, counts, strict=True)
    ]
    return document


def _mean(values: NDArray[Any]) -> float | None:
    """Return the mean of finite values, or None without values, or if the sum of the values overflows."""
    with np.errstate(over="ignore"):
        mean = float(values.mean(dtype=np.float64)) if len(values) else math.nan
    return mean if math.isfinite(mean) else None


def _distinct_values(values: NDArray[Any]) -> NDArray[Any] | None:
    """Return the distinct values, sorted, or None if there are more than 24."""
    # A part of the values suffices to find more than 24 distinct values.
    if len(np.unique(values[:: len(values) // _PROBED + 1])) > _MAX_DISTINCT:
        return None
    distinct = np.unique(values)
    return distinct if len(distinct) <= _MAX_DISTINCT else None


def _edges(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the edges of the bins, [B + 1], increasing."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind in "iu":
        width = int(high - low) // _BINS + 1
        return np.arange(low - 0.5, high + width + 0.5, width)
    # Halves do not overflow, whatever the range.
    edges: NDArray[np.float64] = np.linspace(low / 2, high / 2, _BINS + 1) * 2
    return edges
