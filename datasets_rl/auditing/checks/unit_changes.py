"""Episodes, or parts of episodes, in another unit: degrees in place of radians, millimeters in place of meters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import PARTS, Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, listed
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
_CAUSES = {
    "degrees and radians": "the unit may be another, as between degrees and radians",
    "0 to 255 and 0 to 1": "the range may be another, as between 0 to 255 and 0 to 1",
}
_NEAR = 1.6
_USUAL = 0.85
_GAP = 1.6
_SPREAD = 0.5
_BETWEEN = 0.4
_FEW = 0.2
_LEAST = 1e-30
_FEW_ROWS = 2
_ENDS = 0.03
_JUMP = 3.0


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
        largest = middle.max(axis=1)
        spans = _Spans(data, key, np.median(means[:, :, 0], axis=0))
        if groups := two_groups(largest, _GAP):
            values = np.log(np.maximum(factors[:, :, 0, spans.used], _LEAST))
            yield from self._of_groups(data, key, largest, values, groups, spans)
            return
        found = _near(low, middle, high, known)
        units = [unit for unit, _, _ in found.values()]
        for episode, (nearest, _, part) in sorted(found.items()):
            # A short episode alone is a poor measure: the unit of most others is likelier, if it is as near.
            common = max(units, key=units.count)
            near = abs(abs(middle[episode, part]) - np.log(_UNITS[common])) < np.log(_NEAR)
            unit = common if near else nearest
            rows, whole = spans.of(episode, float(np.copysign(np.log(_UNITS[unit]), middle[episode, part])))
            where = f"in the rows {rows[0]:,} to {rows[1] - 1:,} of episode {episode:,}"
            times = float(np.exp(middle[episode, part]))
            yield self._finding(data, key, times, unit, where, (episode,), (rows,), all_rows=whole)

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
        spans: _Spans,
    ) -> Iterator[Finding]:
        """Yield a finding for all episodes of the smaller of two groups, if a unit is about their ratio.

        Episodes of which only a part is in the other unit have a finding of their own.

        Args:
            data: The dataset.
            key: The field.
            sizes: Logarithm of how large the values of an episode are, [E].
            values: The same for each part and element, [E, 4, D].
            groups: The episodes of both groups.
            spans: The rows of an episode that are in another unit.
        """
        smaller, larger = groups
        ratio = float(np.median(sizes[smaller]) - np.median(sizes[larger]))
        unit = min(_UNITS, key=lambda one: abs(abs(ratio) - np.log(_UNITS[one])))
        # A body that rests is smaller in some elements, and a unit in all.
        scaled = np.quantile(np.sign(ratio) * values[smaller], _FEW, axis=2)
        even = float(np.median(scaled)) > _SPREAD * np.log(_UNITS[unit])
        if even and abs(abs(ratio) - np.log(_UNITS[unit])) < np.log(_NEAR):
            target = float(np.copysign(np.log(_UNITS[unit]), ratio))
            found = {episode: spans.of(episode, target) for episode in smaller.tolist()}
            for all_rows, part in ((True, ""), (False, "a part of ")):
                named = tuple(episode for episode, (_, whole) in found.items() if whole == all_rows)
                if not named:
                    continue
                where = f"in {part}{len(named):,} of {len(sizes):,} episodes ({listed(named)})"
                places = () if all_rows else tuple(found[episode][0] for episode in named)
                yield self._finding(data, key, float(np.exp(ratio)), unit, where, named, places, all_rows=all_rows)

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
        all_rows: bool,
    ) -> Finding:
        name = data.field(key).name
        exact = np.exp(np.copysign(np.log(_UNITS[unit]), -np.log(times)))
        return Finding(
            self.name,
            "strong",
            f"{name} is {times:.3g} times as large as usual {where}: {_CAUSES.get(unit, 'the unit may be another')}",
            episodes=episodes,
            rows=rows,
            evidence={"times": times, "unit": unit},
            remedy=scale(name, float(exact), episodes) if all_rows else drop(episodes),
            key=name,
        )


class _Spans:
    """Finds the rows of an episode that are in another unit: those that a factor makes as large as usual.

    Args:
        data: The dataset.
        key: The field.
        usual: Median size of the values in each part of the episodes, [4, D].
    """

    def __init__(self, data: Data, key: Key, usual: NDArray[np.float64]) -> None:
        self._data, self._key, self._usual = data, key, usual
        self.used: NDArray[np.bool_] = np.asarray((usual > 0).all(axis=0))

    def of(self, episode: int, target: float) -> tuple[tuple[int, int], bool]:
        """Return the first row in another unit and the row after the last, and whether these are all rows of the episode.

        Args:
            episode: Number of the episode.
            target: Logarithm of the factor by which the values are too large.
        """
        rows = self._data.episodes.rows(episode)
        values = self._data.steps.read(self._key, rows.start, rows.stop).reshape(len(rows), -1)[:, self.used]
        part = np.arange(len(rows)) * PARTS // len(rows)
        times = np.abs(values.astype(np.float64)) / self._usual[part][:, self.used]
        sizes = np.nan_to_num(np.median(np.log(np.maximum(times, _LEAST)), axis=1))
        # The consecutive rows with the highest sum are nearer to the other unit.
        sums = np.concatenate([[0.0], np.cumsum(np.abs(sizes) - np.abs(sizes - target))])
        stop = max(int((sums - np.minimum.accumulate(sums)).argmax()), 1)
        start = int(sums[:stop].argmin())
        # A body that rests at the end of an episode has small values in any unit, and moves there without a jump.
        jumps = np.median(np.abs(np.diff(times, axis=0)), axis=1)
        usual = float(np.quantile(jumps[start : stop - 1], 0.9)) if stop - start > 1 else 0.0
        seams = [jumps[seam - 1] > _JUMP * usual for seam in (start, stop) if 0 < seam < len(rows)]
        whole = len(rows) - (stop - start) <= max(_FEW_ROWS, _ENDS * len(rows)) and not any(seams)
        return (rows.start + start, rows.start + stop), whole


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
