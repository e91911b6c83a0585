"""Actions outside the stated space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import clip
from datasets_rl.ted.keys import Key


class ActionsOutsideSpace(Check):
    name = "actions_outside_space"
    rule = "An action is below the lowest or above the highest value of the action space of the dataset, by more than rounding."
    why = "The environment clips the action: the recorded action is not the action that was taken."
    limits = "A dataset without bounds for the action says nothing."
    merges = {"values": "sum", "furthest": "max", "row": "with furthest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return [key for key in data.actions if _bounds(data, key)] or "the dataset states no bounds for the action"

    def measure(self, block: Block, key: Key) -> Measures:
        low, high = _bounds(block.data, key) or (0.0, 0.0)
        values = block.now(key).astype(np.float64)
        slack = 1e-4 * np.maximum(np.abs(high), np.abs(low)) + 1e-6
        excess = np.nan_to_num(np.maximum(values - high, low - values)) - slack
        worst = block.maxima(excess.max(axis=1))
        return {
            "values": block.sums((excess > 0).sum(axis=1)),
            "furthest": worst,
            "row": block.row_of(excess.max(axis=1), worst),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        found = np.flatnonzero(measures["values"])
        if not len(found):
            return
        name = data.field(key).name
        rows = measures["row"][found].tolist()
        low, high = _bounds(data, key) or (np.zeros(1), np.zeros(1))
        same = key in data.floats and np.ptp(low) == np.ptp(high) == 0
        yield Finding(
            self.name,
            "proof",
            f"{name} is outside the stated space in {counted(int(measures['values'].sum()), 'value')} of {counted(len(found), 'episode')}, by up to "
            f"{measures['furthest'].max():g}, first in row {rows[0]:,}: the environment may have clipped the action, or the space is another",
            episodes=tuple(found.tolist()),
            rows=tuple((row, row + 1) for row in rows),
            evidence={"values": int(measures["values"].sum()), "furthest": float(measures["furthest"].max())},
            remedy=clip(name, float(low[0]), float(high[0]))
            if same
            else "store the dataset with the space that was used, or drop the episodes",
            key=name,
        )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["furthest"].astype(np.float64)


def _bounds(data: Data, key: Key) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    spec = data.steps.stored.manifest.specs.get(data.field(key).name, {})
    if "low" not in spec or "high" not in spec:
        return None
    return np.array(spec["low"], np.float64).reshape(-1), np.array(spec["high"], np.float64).reshape(-1)
