"""Single values so far from all others of their field that they are probably errors of the recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.statistics import has_quantiles

if TYPE_CHECKING:
    from datasets_rl.format.schema import Schema
    from datasets_rl.ted.keys import Key
    from datasets_rl.ted.table import EpisodeTable

_DISTANCE = 1e4
"""Minimum distance of a spike from the median, relative to the range from the 1 % to the 99 % quantile. The largest of a
billion values of Student's t with three degrees of freedom is a hundred times as far as this range is long."""
_ONE_IN = 10_000
"""Fewest values of an element per spike. More frequent values are part of the distribution."""
_BLOCK_BYTES = 4 << 20


def spikes(
    schema: Schema,
    statistics: Mapping[str, Any],
    table: EpisodeTable,
    column: Callable[[Key, int, int], NDArray[Any]],
) -> Iterator[str]:
    """Yield a sentence for the first spike of each element of a float field that has a spike.

    The statistics say which elements may have spikes. Only fields with such elements are read, in blocks of rows.
    An element whose values from the 1 % to the 99 % quantile are equal, such as a sparse reward, has no spikes. Neither
    has a dataset of up to 100 steps: the interpolated 99 % quantile then depends on the largest value itself.

    Args:
        schema: The fields.
        statistics: The statistics by dotted key, as in the manifest.
        table: The episodes.
        column: Function of a key, a first row and a stop row that returns the values, [stop - start, ...].
    """
    for field in filter(has_quantiles, schema):
        numbers = statistics[field.name]
        low, high, median, lower, upper = (
            np.array(numbers[name], np.float64).reshape(-1) for name in ("min", "max", "q50", "q01", "q99")
        )
        with np.errstate(invalid="ignore", over="ignore"):
            limit = np.where(upper > lower, _DISTANCE * (upper - lower), np.inf)
            suspected = np.maximum(high - median, median - low) > limit
        if not suspected.any():
            continue
        size = math.prod(field.shape)
        median, limit, suspected = (np.broadcast_to(array, size) for array in (median, limit, suspected))
        elements = np.flatnonzero(suspected)
        below, above = (median - limit)[elements], (median + limit)[elements]
        count = np.zeros(len(elements), np.int64)
        first: dict[int, tuple[int, float]] = {}
        block = max(1, _BLOCK_BYTES // field.step_bytes)
        for start in range(0, table.steps, block):
            values = column(field.key, start, min(start + block, table.steps)).reshape(-1, size)[:, elements]
            far = (values < below) | (values > above)
            if not far.any():
                continue
            far &= np.isfinite(values)
            count += far.sum(axis=0)
            for number in np.flatnonzero(far.any(axis=0)).tolist():
                row = int(far[:, number].argmax())
                first.setdefault(number, (start + row, float(values[row, number])))
        for number, (row, value) in sorted(first.items()):
            if count[number] <= max(1, table.steps // _ONE_IN):
                element = int(elements[number])
                index = [int(axis) for axis in np.unravel_index(element, field.shape)]
                more = f", and {count[number] - 1:,} more" if count[number] > 1 else ""
                yield (
                    f"{field.name}{index} is {value:g} in row {row:,} (episode {int(table.episode_of(np.array([row]))[0]):,})"
                    f"{more}: more than {_DISTANCE:,.0f} times as far from the median {median[element]:g} as its 1 % and 99 % "
                    "quantiles are from each other"
                )
