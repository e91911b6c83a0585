"""Episodes, or parts of episodes, in another unit: degrees in place of radians, millimeters in place of meters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, scale
from datasets_rl.ted.keys import Key

_UNITS = {
    "degrees and radians": 180 / np.pi,
    "0 to 255 and 0 to 1": 255.0,
    "a factor of 10": 10.0,
    "a factor of 100": 100.0,
    "a factor of 1,000": 1000.0,
}
_NEAR = 1.6
_PARTS = 4


class UnitChanges(Check):
    name = "unit_changes"
    rule = (
        f"In a quarter of an episode, the mean sizes of the elements of a field are a common factor as large as in the dataset, in "
        f"the median, within a factor of {_NEAR:g}: 180 / pi, 255, 10, 100, 1,000, or the inverse. A quarter of the elements is no "
        "exception."
    )
    why = "The same value means two states."
    limits = (
        "Fields of a single element, and factors below 10, are not looked at. A change in a few steps is an outlier."
    )
    merges = {"size": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 4:
            return "the dataset has fewer than 4 episodes"
        keys = [key for key in [*data.states, *data.actions] if key in data.floats]
        return [key for key in keys if int(np.prod(data.field(key).shape)) > 1] or "no field has several elements"

    def measure(self, block: Block, key: Key) -> Measures:
        values = np.abs(np.nan_to_num(block.now(key)))
        lengths = block.data.episodes.lengths[block.episodes][block.episode]
        part = (block.time * _PARTS // lengths)[:, None] == np.arange(_PARTS)
        sizes = np.stack([block.sums(values * part[:, number, None]) for number in range(_PARTS)], axis=1)
        return {"size": sizes, "steps": block.sums(part)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        mean = measures["size"] / np.maximum(measures["steps"], 1)[:, :, None]
        usual = np.median(mean.reshape(-1, mean.shape[2]), axis=0)
        moving = usual > 0
        if moving.sum() < 2:
            return
        ratios = np.log(np.maximum(mean[:, :, moving], 1e-30) / usual[moving])
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75], axis=2)
        spread = float(np.quantile(np.abs(middle), 0.9))
        name = data.field(key).name
        found: dict[int, tuple[str, float, int]] = {}
        for unit, factor in _UNITS.items():
            for sign in (1, -1):
                target = sign * np.log(factor)
                near = (np.abs(middle - target) < np.log(_NEAR)) & (abs(target) > 3 * spread)
                near &= (low if sign > 0 else -high) > 0.5 * abs(target)
                for episode in np.flatnonzero(near.any(axis=1)).tolist():
                    part = int(near[episode].argmax())
                    distance = abs(float(middle[episode, part]) - target)
                    if episode not in found or distance < abs(float(middle[episode, part]) - found[episode][1]):
                        found[episode] = (unit, target, part)
        if len(found) > 0.4 * len(mean):
            return
        for episode, (unit, _, part) in sorted(found.items()):
            start, length = int(data.episodes.starts[episode]), int(data.episodes.lengths[episode])
            parts = np.flatnonzero(np.abs(middle[episode]) > 0.5 * abs(middle[episode, part]))
            rows = (start + int(parts[0]) * length // _PARTS, start + (int(parts[-1]) + 1) * length // _PARTS)
            times = float(np.exp(middle[episode, part]))
            yield Finding(
                self.name,
                "strong",
                f"{name} is {times:.3g} times as large as usual in the rows {rows[0]:,} to {rows[1] - 1:,} of episode {episode:,}: the unit "
                f"may be another, as between {unit}",
                episodes=(episode,),
                rows=(rows,),
                evidence={"times": times, "unit": unit},
                remedy=scale(name, 1 / _UNITS[unit] ** np.sign(target), [episode])
                if len(parts) == _PARTS
                else drop([episode]),
                key=name,
            )
