"""Distribution of the values of an element: moments, quantiles and a histogram."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.quantiles import quantiles
from datasets_rl.format.statistics import Moments

BINS = 32
"""Default maximum number of bins of a histogram."""

Blocks = Callable[[], Iterable[NDArray[Any]]]
"""Function that returns all values in blocks, [n, *shape] each. The function is called twice."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of values in bins of equal width.

    Up to `bins` different integers have a bin each. For other values, the fences q01 - (q99 - q01) and q99 + (q99 - q01)
    limit the bins. Values outside of the fences are outliers: bins for outliers would leave a single bin for all other
    values.
    """

    edges: tuple[float, ...]
    """Edges of the bins, ascending: B + 1 edges of B bins. A constant has a single bin without width."""
    counts: tuple[int, ...]
    """Number of values in each bin."""
    below: int = 0
    """Number of outliers below the first edge."""
    above: int = 0
    """Number of outliers above the last edge."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a number over the steps or the episodes. Values that are not finite are only counted."""

    count: int
    """Number of finite values."""
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    quantiles: Mapping[str, float | None] = field(default_factory=dict)
    """Quantiles by name, q01 to q99. Above 65,536 values, the quantiles are of a sample."""
    nan: int = 0
    """Number of values that are NaN."""
    positive_infinity: int = 0
    negative_infinity: int = 0
    histogram: Histogram | None = None
    """None if no value is finite."""

    @property
    def constant(self) -> bool:
        """Whether all values are finite and equal."""
        return self.count > 0 and self.min == self.max and not self.not_finite

    @property
    def not_finite(self) -> int:
        """Number of values that are NaN or infinite."""
        return self.nan + self.positive_infinity + self.negative_infinity

    @property
    def outliers(self) -> int:
        """Number of values outside of the fences of the histogram."""
        return 0 if self.histogram is None else self.histogram.below + self.histogram.above


def distribution(values: NDArray[Any], bins: int = BINS) -> Distribution:
    """Return the distribution of numbers, [n]."""
    return distributions(lambda: [values], (), values, bins)[0]


def distributions(blocks: Blocks, shape: tuple[int, ...], sample: NDArray[Any], bins: int = BINS) -> list[Distribution]:
    """Return the distribution of each element of a step, in row-major order.

    Args:
        blocks: Returns the values in blocks.
        shape: Shape of a step, or () for a single distribution of all elements.
        sample: Sample of the values for the quantiles, [k, ...].
        bins: Maximum number of bins of a histogram.
    """
    elements = int(np.prod(shape))
    moments, special = Moments(shape), np.zeros((3, elements), np.int64)
    discrete = sample.dtype.kind in "biu"
    for block in blocks():
        moments.update(block)
        if not discrete:
            special += _special_values(block.reshape(-1, elements))
    stated = moments.to_json()
    numbers = {name: np.array(stated[name], object).reshape(-1) for name in ("min", "max", "mean", "std")}
    shares = {name: np.array(value, object).reshape(-1) for name, value in quantiles(sample, shape).items()}
    histograms = _histograms(blocks, numbers, shares, bins, discrete=discrete)
    counts = np.array(moments.state()[0], np.int64)
    return [
        Distribution(
            count=int(counts[element]),
            **{name: value[element] for name, value in numbers.items()},
            quantiles={name: value[element] for name, value in shares.items()},
            nan=int(special[0, element]),
            positive_infinity=int(special[1, element]),
            negative_infinity=int(special[2, element]),
            histogram=histograms[element],
        )
        for element in range(elements)
    ]


def _special_values(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers of NaN, inf and -inf of each element, int64 [3, D]."""
    if np.isfinite(values).all():
        return np.zeros((3, values.shape[1]), np.int64)
    return np.stack([np.isnan(values).sum(0), np.isposinf(values).sum(0), np.isneginf(values).sum(0)])


def _histograms(
    blocks: Blocks,
    numbers: Mapping[str, NDArray[Any]],
    shares: Mapping[str, NDArray[Any]],
    bins: int,
    *,
    discrete: bool,
) -> list[Histogram | None]:
    low, high = (numbers[name].astype(np.float64) for name in ("min", "max"))  # None becomes NaN
    first, last = (shares[name].astype(np.float64) for name in ("q01", "q99"))
    elements, used = len(low), np.full(len(low), bins)
    with np.errstate(over="ignore", invalid="ignore"):
        each = discrete & (high - low < bins)
        used[each] = (high - low)[each].astype(np.int64) + 1
        start, stop = np.where(each, low - 0.5, low), np.where(each, high + 0.5, high)
        fenced = ~each & (first < last)
        start = np.where(fenced, np.fmax(start, first - (last - first)), start)
        stop = np.where(fenced, np.fmin(stop, last + (last - first)), stop)
        width = stop - start  # infinite if it overflows
    counts = np.zeros(elements * (bins + 2), np.int64)
    offsets = np.arange(elements) * (bins + 2) + 1
    for block in blocks():
        counts += _binned(block.reshape(-1, elements), start, stop, used, offsets, len(counts))
    table = counts.reshape(elements, bins + 2)
    return [
        _histogram(start[n], stop[n], table[n], int(used[n])) if np.isfinite(width[n]) else None
        for n in range(elements)
    ]


def _binned(
    values: NDArray[Any],
    start: NDArray[np.float64],
    stop: NDArray[np.float64],
    used: NDArray[np.int64],
    offsets: NDArray[np.int64],
    size: int,
) -> NDArray[np.int64]:
    """Return the numbers of values of each element: below the bins, in each bin, and above the bins."""
    values = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.floor((values - start) / np.where(stop > start, stop - start, 1) * used)
        places = np.where(values >= stop, np.where(values > stop, used, used - 1), np.minimum(places, used - 1))
        places = np.where(values < start, -1, places)
        kept = np.isfinite(values) & np.isfinite(places)
        numbers = (np.where(kept, places, 0) + offsets).astype(np.int64)
    numbers = numbers.ravel() if kept.all() else numbers[kept]
    result: NDArray[np.int64] = np.bincount(numbers, minlength=size)
    return result


def _histogram(start: float, stop: float, counts: NDArray[np.int64], used: int) -> Histogram:
    below, *inside = counts[: used + 1].tolist()
    if start == stop:
        return Histogram((float(start), float(stop)), (sum(inside),))
    edges = np.linspace(start, stop, used + 1)
    return Histogram(tuple(edges.tolist()), tuple(inside), below, int(counts[used + 1]))
