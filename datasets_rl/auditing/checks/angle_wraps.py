"""Angles that jump by a full turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import unwrap
from datasets_rl.ted.keys import Key

_TURNS = {"radians": 2 * np.pi, "degrees": 360.0}
_NEAR = 0.15


class AngleWraps(Check):
    name = "angle_wraps"
    rule = (
        f"An element whose range is at most a turn changes by a turn, within {_NEAR:.0%}, between two steps, and by less than a "
        "quarter of a turn in 99 % of the steps."
    )
    why = "Two neighboring states are far apart for a network, and a mean of both points in the opposite direction."
    limits = "Angles that turn faster than a quarter of a turn per step are not looked at."
    merges = {"wraps": "sum", "row": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        keys = [key for key in [*data.states, *data.actions] if key in data.floats and _angles(data, key)]
        return keys or "no element has the range of an angle"

    def measure(self, block: Block, key: Key) -> Measures:
        angles = _angles(block.data, key)
        wraps = np.zeros((len(block), len(angles)), np.bool_)
        for number, (element, turn) in enumerate(angles):
            change = np.abs(block.after(key)[:, element].astype(np.float64) - block.now(key)[:, element])
            wraps[:, number] = (np.abs(change - turn) < _NEAR * turn) & block.has_after
        rows = np.where(wraps.any(axis=1), np.arange(block.start, block.stop), -1)
        return {"wraps": block.sums(wraps), "row": block.maxima(rows)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        found = np.flatnonzero(measures["wraps"].any(axis=1))
        if not len(found):
            return
        name = data.field(key).name
        # An element that has the range of an angle, and never jumps, stays unchanged.
        jumps = np.atleast_1d(measures["wraps"].any(axis=0))
        angles = [angle for number, angle in enumerate(_angles(data, key)) if jumps[number]]
        elements = [data.element(key, element) for element, _ in angles]
        rows = measures["row"][found].tolist()
        yield Finding(
            self.name,
            "strong",
            f"{' or '.join(elements[:4])} jumps by a full turn in {counted(int(measures['wraps'].sum()), 'step')} of {counted(len(found), 'episode')}, first "
            f"after row {rows[0]:,} of episode {int(found[0]):,}",
            episodes=tuple(found.tolist()),
            rows=tuple((row, row + 2) for row in rows),
            evidence={
                "steps": int(measures["wraps"].sum()),
                "elements": [element for element, _ in angles],
            },
            remedy=unwrap(name, [one for one, _ in angles], angles[0][1], [_mean(data, key, *one) for one in angles])
            if len({turn for _, turn in angles}) == 1
            else "unwrap the elements in radians and those in degrees by a step fix_wraps each",
            key=name,
        )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        wraps: NDArray[np.float64] = measures["wraps"].sum(axis=1).astype(np.float64)
        return wraps


def _mean(data: Data, key: Key, element: int, turn: float) -> float:
    """Return the mean direction of an angle, from 0 to a turn."""
    phases = 2 * np.pi / turn * data.sample(key).now[:, element]
    return float(np.angle(np.exp(1j * phases[np.isfinite(phases)]).sum()) % (2 * np.pi) * turn / (2 * np.pi))


def _angles(data: Data, key: Key) -> list[tuple[int, float]]:
    """Return elements that may be angles, and the turn in the unit of the element."""
    low, high = data.statistics(key, "min"), data.statistics(key, "max")
    if low is None or high is None:
        return []
    sample = data.sample(key)
    change = np.abs(sample.after - sample.now)[sample.has_after]
    if not len(change):
        return []
    usual: NDArray[np.float64] = np.quantile(np.nan_to_num(change), 0.97, axis=0)
    return [
        (element, turn)
        for turn in _TURNS.values()
        for element in range(len(low))
        if (1 - _NEAR) * turn <= high[element] - low[element] <= 1.01 * turn and 0 < usual[element] < turn / 4
    ]
