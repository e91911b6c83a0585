"""Values far from all others of their field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_DISTANCE = 6.0
_SHARE = 0.001
_FEWEST = 10


class Outliers(Check):
    name = "outliers"
    rule = (
        f"A value is {_DISTANCE:g} times as far from the median as the 1 % or the 99 % quantile on its side. At most {_SHARE:.1%} of "
        f"the steps, or {_FEWEST}, are, and more than are half as far: between the outliers and the other values is a gap. Of an element that "
        "has one value in half of the steps, the quantiles of the other values count, where they are farther."
    )
    why = "An outlier decides the loss of its batch, and the range of a normalization by minimum and maximum."
    limits = "Elements with one value in 98 % of the steps have no outliers. Heavy tails, such as contact forces, may reach the limit."
    merges = {"values": "sum", "between": "sum", "furthest": "max", "row": "with furthest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < 200:
            return "the dataset has fewer than 200 steps"
        keys = [key for key in data.floats if key not in data.times]
        # The stored statistics say which fields can have outliers: the others are not read.
        return [key for key in keys if _suspected(data, key)]

    def measure(self, block: Block, key: Key) -> Measures:
        far = np.nan_to_num(_distances(block.data, key, block.now(key)), posinf=0).max(axis=1)
        furthest = block.maxima(far)
        return {
            "values": block.sums(far > 1),
            "between": block.sums((far > 0.5) & (far <= 1)),
            "furthest": furthest,
            "row": block.row_of(far, furthest),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        found = np.flatnonzero(measures["values"])
        count = int(measures["values"].sum())
        if count > max(_FEWEST, _SHARE * len(data)) or measures["between"].sum() >= count:
            return
        name = data.field(key).name
        middle, reach = _reach(data, key)
        for episode in found.tolist():
            row = int(measures["row"][episode])
            values = data.take(key, np.array([row]))
            element = int(np.nan_to_num(_distances(data, key, values)[0], posinf=0).argmax())
            value = float(values[0, element])
            limits, usual = (middle[element] + reach[:, element] / part for part in (1, _DISTANCE))
            yield Finding(
                self.name,
                "strong",
                f"{data.element(key, element)} is {value:g} in row {row:,} of episode {episode:,}, more than {_DISTANCE:g} times as far from "
                f"the median as nearly all other values, which are between {usual[0]:g} and {usual[1]:g}",
                episodes=(episode,),
                rows=((row, row + 1),),
                evidence={"value": value, "low": float(limits[0]), "high": float(limits[1])},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["furthest"].astype(np.float64)


def _reach(data: Data, key: Key) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median of each element, [D], and how far below and above are the limits of what is no outlier, [2, D]."""
    sample = data.sample(key).now
    sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        return np.zeros(sample.shape[1]), np.full((2, sample.shape[1]), np.inf)
    lower, median, upper = np.quantile(sample, [0.01, 0.5, 0.99], axis=0)
    # Of an element that mostly rests, such as a contact force, the other values say what is usual.
    for element in np.flatnonzero(((sample == median).mean(axis=0) > 0.5) & (upper > lower)).tolist():
        others = sample[sample[:, element] != median[element], element]
        lowest, highest = np.quantile(others, [0.01, 0.99])
        lower[element], upper[element] = min(lower[element], lowest), max(upper[element], highest)
    spread = np.where(upper > lower, upper - lower, np.inf)
    # With a median near a limit, such as 0 of a speed, the distance to the limit says nothing about usual distances.
    reach = _DISTANCE * np.maximum(np.stack([median - lower, upper - median]), spread / 4)
    return median, reach * np.array([[-1], [1]])


def _distances(data: Data, key: Key, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return how far values [N, D] are from the median, 1 at the limit, [N, D]."""
    middle, reach = _reach(data, key)
    distances: NDArray[np.float64] = ((values - middle) / reach[:, None]).max(axis=0)
    return distances


def _suspected(data: Data, key: Key) -> bool:
    low, high = data.statistics(key, "min"), data.statistics(key, "max")
    if low is None or high is None or key in data.rewards:
        return False
    return bool((_distances(data, key, np.stack([low, high])) > 1).any())
