"""Values far from all others of their field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_DISTANCE = 10.0
_SHARE = 0.001


class Outliers(Check):
    name = "outliers"
    rule = (
        f"A value is more than {_DISTANCE:g} times as far from the median as the 1 % or the 99 % quantile, on its side, and further than "
        f"the range of both. At most {_SHARE:.1%} of the steps are."
    )
    why = "An outlier decides the loss of its batch, and the range of a normalization by minimum and maximum."
    limits = "Elements with one value in 98 % of the steps have no outliers. Heavy tails, such as contact forces, may reach the limit."
    merges = {"values": "sum", "furthest": "max", "row": "with furthest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < 200:
            return "the dataset has fewer than 200 steps"
        keys = [key for key in data.floats if key not in data.times]
        # The stored statistics say which fields can have outliers: the others are not read.
        return [key for key in keys if _suspected(data, key)]

    def measure(self, block: Block, key: Key) -> Measures:
        low, high = _limits(block.data, key)
        values = block.now(key).astype(np.float64)
        with np.errstate(invalid="ignore"):
            outside = ((values > high) | (values < low)) & np.isfinite(values)
        scale = np.maximum(high - low, 1e-12)
        far = np.where(outside, np.abs(values - (high + low) / 2) / scale, 0).max(axis=1)
        worst = block.maxima(far)
        return {"values": block.sums(outside.any(axis=1)), "furthest": worst, "row": block.row_of(far, worst)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        found = np.flatnonzero(measures["values"])
        if not len(found) or measures["values"].sum() > max(1, _SHARE * len(data)):
            return
        name = data.field(key).name
        low, high = _limits(data, key)
        for episode in found.tolist():
            row = int(measures["row"][episode])
            values = data.take(key, np.array([row]))[0].astype(np.float64)
            element = int(np.argmax(np.where((values > high) | (values < low), np.abs(values) / (high - low), 0)))
            yield Finding(
                self.name,
                "strong",
                f"{data.element(key, element)} is {values[element]:g} in row {row:,} of episode {episode:,}: values of the dataset are "
                f"between {low[element]:g} and {high[element]:g} even with {_DISTANCE:g} times the usual spread",
                episodes=(episode,),
                rows=((row, row + 1),),
                evidence={"value": float(values[element]), "low": float(low[element]), "high": float(high[element])},
                remedy=drop([episode]),
                key=name,
            )


def _limits(data: Data, key: Key) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and the highest value of each element that is not an outlier, [D] each."""
    sample = data.sample(key).now
    sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        infinite = np.full(sample.shape[1], np.inf)
        return -infinite, infinite
    lower, median, upper = np.quantile(sample, [0.01, 0.5, 0.99], axis=0)
    spread = np.where(upper > lower, upper - lower, np.inf)
    reach = _DISTANCE * np.maximum(np.stack([median - lower, upper - median]), spread / 4)
    return median - np.maximum(reach[0], spread), median + np.maximum(reach[1], spread)


def _suspected(data: Data, key: Key) -> bool:
    low, high = data.statistics(key, "min"), data.statistics(key, "max")
    if low is None or high is None or key in data.rewards:
        return False
    limits = _limits(data, key)
    with np.errstate(invalid="ignore"):
        return bool(((low < limits[0]) | (high > limits[1])).any())
