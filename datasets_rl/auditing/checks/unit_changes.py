"""Episodes, or parts of episodes, in another unit: degrees in place of radians, millimeters in place of meters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import PARTS, Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.groups import two_groups
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
_USUAL = 0.85
_GAP = 1.6
_SPREAD = 0.5
_BETWEEN = 0.4
_FEW = 0.2
_LEAST = 1e-30


class UnitChanges(Check):
    name = "unit_changes"
    rule = (
        f"In a quarter of an episode, the sizes of the elements of a field and the sizes of their changes are, in the median, a factor as "
        f"large as in this quarter of other episodes, within a factor of {_NEAR:g}: 180 / pi, 255, 10, 100, 1,000, or the inverse. In "
        f"{_USUAL:.0%} of all quarters the factor is at most its third root. Fewer other episodes lie between: two units leave a gap."
    )
    why = "The same value means two states."
    limits = (
        "Fields of a single element, and factors below 10, are not looked at. A change in a few steps is an outlier. Of two units in about "
        "as many episodes, the unit of the smaller group is named."
    )
    merges = {"sums": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 4:
            return "the dataset has fewer than 4 episodes"
        keys = [key for key in [*data.states, *data.actions] if key in data.floats]
        return [key for key in keys if int(np.prod(data.field(key).shape)) > 1] or "no field has several elements"

    def measure(self, block: Block, key: Key) -> Measures:
        counted = block.tally(key)
        return {"sums": counted.sums[:, :, 1:].astype(np.float32), "steps": counted.steps}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        means = measures["sums"] / np.maximum(measures["steps"], 1)[:, :, None, None]
        # An element that rests has changes of 0, which are 0 in any unit: then the values alone count.
        factors = means / np.maximum(np.median(means, axis=0), _LEAST)
        sizes = np.where(means > 0, factors, factors[:, :, :1]).reshape(*means.shape[:2], -1)
        usual = np.median(means, axis=0).reshape(PARTS, -1)
        # An element that is 0 in most episodes, such as an open gripper, has no usual size.
        moving = (usual > 0).all(axis=0)
        if moving.sum() < 4:
            return
        known = (measures["steps"] > 1) & (sizes[:, :, moving] > 0).any(axis=2)
        ratios = np.log(np.maximum(sizes[:, :, moving], _LEAST))
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75], axis=2)
        # A part in which the body rests says little: the largest part counts.
        whole = middle.max(axis=1)
        if groups := two_groups(whole, _GAP):
            used = (np.median(means[:, :, 0], axis=0) > 0).all(axis=0)
            values = np.log(np.maximum(factors[:, :, 0, used], _LEAST))
            yield from self._of_groups(data, key, whole, values, groups)
            return
        found = _near(low, middle, high, known)
        for episode, (unit, _, part) in sorted(found.items()):
            start, length = int(data.episodes.starts[episode]), int(data.episodes.lengths[episode])
            parts = np.flatnonzero(np.abs(middle[episode]) > 0.5 * abs(middle[episode, part]))
            rows = (start + int(parts[0]) * length // PARTS, start + (int(parts[-1]) + 1) * length // PARTS)
            where = f"in the rows {rows[0]:,} to {rows[1] - 1:,} of episode {episode:,}"
            times = float(np.exp(middle[episode, part]))
            yield self._finding(data, key, times, unit, where, (episode,), (rows,), all_rows=len(parts) == PARTS)

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        means = measures["sums"] / np.maximum(measures["steps"], 1)[:, :, None, None]
        usual = np.median(means, axis=0)
        moving = (usual > 0).all(axis=(0, 1))
        if not moving.any():
            return np.zeros(len(means))
        ratios = np.log(np.maximum(means[..., moving] / usual[..., moving], _LEAST))
        largest: NDArray[np.float64] = np.abs(np.median(ratios, axis=(2, 3))).max(axis=1)
        return largest

    def _of_groups(
        self,
        data: Data,
        key: Key,
        sizes: NDArray[np.float64],
        values: NDArray[np.float64],
        groups: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> Iterator[Finding]:
        """Yield a finding for all episodes of the smaller of two groups, if a unit is about their ratio.

        Args:
            data: The dataset.
            key: The field.
            sizes: Logarithm of how large the values of an episode are, [E].
            values: The same for each part and element, [E, 4, D].
            groups: The episodes of both groups.
        """
        smaller, larger = groups
        ratio = float(np.median(sizes[smaller]) - np.median(sizes[larger]))
        unit = min(_UNITS, key=lambda one: abs(abs(ratio) - np.log(_UNITS[one])))
        # A body that rests is smaller in some elements, and a unit in all.
        scaled = np.quantile(np.sign(ratio) * values[smaller], _FEW, axis=2)
        even = float(np.median(scaled)) > _SPREAD * np.log(_UNITS[unit])
        if even and abs(abs(ratio) - np.log(_UNITS[unit])) < np.log(_NEAR):
            where = f"in {len(smaller):,} of {len(sizes):,} episodes, from episode {smaller[0]:,} to episode {smaller[-1]:,}"
            yield self._finding(data, key, float(np.exp(ratio)), unit, where, tuple(smaller.tolist()), ())

    def _finding(
        self,
        data: Data,
        key: Key,
        times: float,
        unit: str,
        where: str,
        episodes: tuple[int, ...],
        rows: tuple[tuple[int, int], ...],
        *,
        all_rows: bool = True,
    ) -> Finding:
        name = data.field(key).name
        exact = np.exp(np.copysign(np.log(_UNITS[unit]), -np.log(times)))
        return Finding(
            self.name,
            "strong",
            f"{name} is {times:.3g} times as large as usual {where}: the unit may be another, as between {unit}",
            episodes=episodes,
            rows=rows,
            evidence={"times": times, "unit": unit},
            remedy=scale(name, float(exact), episodes) if all_rows else drop(episodes),
            key=name,
        )


def _near(
    low: NDArray[np.float64], middle: NDArray[np.float64], high: NDArray[np.float64], known: NDArray[np.bool_]
) -> dict[int, tuple[str, float, int]]:
    """Return by episode the unit whose factor a part is nearest to, the distance, and the part.

    Args:
        low: 25 % quantile of the logarithms of the ratios over the elements, [E, 4].
        middle: Median, [E, 4].
        high: 75 % quantile, [E, 4].
        known: Whether a part has enough steps, [E, 4].
    """
    found: dict[int, tuple[str, float, int]] = {}
    for sign in (1, -1):
        spread = max(float(np.quantile(sign * middle, _USUAL)), 0.0)
        for unit, factor in _UNITS.items():
            target = np.log(factor)
            near = known & (np.abs(sign * middle - target) < max(np.log(_NEAR), spread)) & (target > 3 * spread)
            near &= ((low if sign > 0 else -high) > 0.5 * target) & (high - low < _SPREAD * target)
            beyond = (known & (sign * middle > _BETWEEN * target)).any(axis=1)
            if (beyond & ~near.any(axis=1)).sum() >= near.any(axis=1).sum():
                continue
            for episode in np.flatnonzero(near.any(axis=1)).tolist():
                part = int(near[episode].argmax())
                distance = abs(sign * float(middle[episode, part]) - target)
                if episode not in found or distance < found[episode][1]:
                    found[episode] = (unit, distance, part)
    return found
