"""Two episodes that are stored as a single episode: inside the episode is a step as no other step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.dynamics import Dynamics
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, split_at
from datasets_rl.ted.keys import Key

_FEWEST = 500
_MARGIN = 0.5
_TIMES = 1.5
_TIMES_NEAR = 1.2
_CLEARLY = 2.0
_NEAR = 3
_SHARE = 0.1
_CHANGES = 2
_USUAL = 0.98
_BACK = 0.25
_LEAST = 1e-12


class JoinedEpisodes(Check):
    name = "joined_episodes"
    rule = (
        "A step inside an episode fits neither of two linear models of all steps: the score, the weighted mean of log(1 + error) over "
        f"the elements, exceeds the 95 % quantile by {_MARGIN:g}, and is {_TIMES:g} times the highest score of nine of ten episodes, and "
        f"{_TIMES_NEAR:g} times that of 14 of the 16 steps that start most alike. Or an "
        f"element that has a value of its own in each episode, such as a goal, changes in at most {_CHANGES} steps of an episode. A score below "
        f"{_CLEARLY:g} times the limit is a hint. A jump and a jump back in the next step are a wrong value, and not a seam."
    )
    why = "The values of the states before the seam are learned from the start of another episode."
    limits = (
        "If an episode starts where the episode before ended, nothing jumps. If more than a tenth of the episodes jump, the jumps "
        "belong to the environment."
    )
    merges = {
        "forward": "max",
        "forward_row": "with forward",
        "joint": "max",
        "joint_row": "with joint",
        "changes": "sum",
        "change_row": "max",
    }

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < _FEWEST:
            return f"the dataset has fewer than {_FEWEST} steps"
        if not data.states:
            return "the dataset has no narrow states"
        known = data.model(Dynamics).elements or any(map(len, data.model(Dynamics).resting.values()))
        return [()] if known else "no floating-point observation moves in most steps"

    def measure(self, block: Block, key: Key) -> Measures:
        scores = block.data.model(Dynamics).scores(block)
        highest = block.maxima(scores)
        changed = _changes(block)
        rows = np.where(changed, np.arange(block.start, block.stop), -1)
        return {
            "forward": highest[:, 0],
            "forward_row": block.row_of(scores[:, 0], highest[:, 0]),
            "joint": highest[:, 1],
            "joint_row": block.row_of(scores[:, 1], highest[:, 1]),
            "changes": block.sums(changed),
            "change_row": block.maxima(rows),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        high = np.quantile(data.model(Dynamics).usual, 0.95, axis=0)
        scores = np.stack([measures["forward"], measures["joint"]], axis=1)
        limits = np.maximum(high + _MARGIN, _TIMES * np.quantile(scores, 1 - _SHARE, axis=0))
        scores /= limits
        rows = np.stack([measures["forward_row"], measures["joint_row"]], axis=1)
        changed = (measures["changes"] > 0) & (measures["changes"] <= _CHANGES)
        if (measures["changes"] > 0).mean() > _SHARE:
            changed[:] = False
        for episode in np.flatnonzero((scores.max(axis=1) > 1) | changed).tolist():
            model = int(scores[episode].argmax())
            times, row = float(scores[episode, model]), int(rows[episode, model])
            # Rare events of the environment, such as a collision, happen to steps that start alike.
            if times > 1 and times * limits[model] > _TIMES_NEAR * _near(data, row, model):
                what = f"{times:.1f} times as far as the limit for steps of this dataset"
            elif changed[episode]:
                row = int(measures["change_row"][episode])
                what = f"in {_changed_element(data, row)}, which keeps its value inside nearly all other episodes"
            else:
                continue
            between = f"between the rows {row:,} and {row + 1:,} of episode {episode:,}, {what}"
            spike = _spike(data, episode, row)
            yield Finding(
                self.name,
                "strong" if changed[episode] or times > _CLEARLY else "hint",
                f"{spike} jumps {between}, and back beside it: a value may be wrong"
                if spike
                else f"the observation jumps {between}: two episodes may be joined there, or steps are missing",
                episodes=(episode,),
                rows=((row, row + 2),),
                evidence={"times_limit": times, "row": row},
                remedy=drop([episode]) if spike else split_at(data, [row + 1]),
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        usual = np.quantile(data.model(Dynamics).usual, 0.95, axis=0) + _MARGIN
        score: NDArray[np.float64] = np.maximum(measures["forward"] / usual[0], measures["joint"] / usual[1])
        return score


def _changes(block: Block) -> NDArray[np.bool_]:
    """Return whether an element that usually keeps its value changes after each row, bool [N]."""
    changed = np.zeros(len(block), np.bool_)
    for key, elements in block.data.model(Dynamics).resting.items():
        if len(elements):
            values = block.values(key)[:, elements]
            changed |= (values[1:] != values[:-1]).any(axis=1)
    return changed & block.has_after


def _near(data: Data, row: int, model: int) -> float:
    """Return the third highest score of the sampled steps that start most like a step. Two may be seams, too."""
    return float(np.sort(data.model(Dynamics).around(row)[:, model])[-_NEAR:][0])


def _spike(data: Data, episode: int, row: int) -> str:
    """Return the name of the element that jumps most from a row to the next, if it jumps back in the step before or after, else "".

    A seam of two episodes is a single jump. A division there would leave a wrong value as the end of an episode.
    """
    rows = np.arange(row - 1, row + 3)
    around = rows[(rows >= data.episodes.starts[episode]) & (rows < data.episodes.stops[episode])]
    place, furthest, name = int(np.searchsorted(around, row)), 0.0, ""
    for key in dict.fromkeys([*data.states, *data.actions]):
        sample, values = data.sample(key), data.take(key, around).astype(np.float64)
        finite = np.isfinite(sample.now).all(axis=1) & np.isfinite(sample.after).all(axis=1)
        if not finite.any() or not np.isfinite(values).all():
            continue
        usual = np.quantile(np.abs(sample.after[finite] - sample.now[finite]), _USUAL, axis=0) + _LEAST
        jumps = np.abs(values[place + 1] - values[place])
        element = int((jumps / usual).argmax())
        if jumps[element] / usual[element] > furthest:
            one, jump = values[:, element], float(jumps[element])
            furthest = jump / float(usual[element])
            sides = [one[place + 1] - one[place - 1]] if place else []
            sides += [one[place + 2] - one[place]] if place + 2 < len(one) else []
            name = data.element(key, element) if any(abs(side) < _BACK * jump for side in sides) else ""
    return name


def _changed_element(data: Data, row: int) -> str:
    for key, elements in data.model(Dynamics).resting.items():
        before, after = data.take(key, np.array([row, row + 1]))[:, elements]
        if (before != after).any():
            return data.element(key, int(elements[(before != after).argmax()]))
    return "an element"
