"""Rewards that are stored a step or two late, or early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.alignment import Alignment
from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.checks.action_shift import single_episodes, whole_dataset
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.dynamics import Dynamics
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import shift
from datasets_rl.ted.keys import Key

_EXPLAINED = 0.5
_SPARSE = 0.8
_SHARE = 0.8
_FEWEST = 5
_NEAR_END = 3


class RewardShift(Check):
    name = "reward_shift"
    rule = (
        "A model predicts the reward of a step from the states before and after the step, the action, their squares and absolute values. The reward up to "
        "two steps later or earlier is nearer to the prediction: in the whole dataset the error is half as large, or in an episode or a "
        f"half of an episode 26 % smaller, and unlike in nine of ten episodes. Or {_SHARE:.0%} of the rewarded episodes are rewarded "
        f"once, in the last step, and an episode is rewarded up to {_NEAR_END} steps before the end."
    )
    why = "The value of an action is learned from the reward of another action."
    limits = (
        "A reward that varies slowly, or that the states do not explain, shows nothing. In a whole dataset, a reward of the state after "
        "the step that is stored a step late looks like a reward of the state before the step."
    )
    merges = {"errors": "sum", "steps": "sum", "rewarded": "sum", "last": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.rewards:
            return "the dataset has no narrow rewards"
        return data.rewards

    def measure(self, block: Block, key: Key) -> Measures:
        rewarded = (block.now(key) != 0).any(axis=1)
        last = block.maxima(np.where(rewarded, block.time, -1))
        if _dense(block.data):
            errors, steps = block.data.model(Alignment, True).lag_errors(block)
        else:
            errors, steps = np.zeros((len(block.starts), 1)), np.zeros((len(block.starts), 1), np.int64)
        return {"errors": errors, "steps": steps, "rewarded": block.sums(rewarded), "last": last}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        name = data.field(key).name
        if _dense(data):
            fitted = data.model(Alignment, True)
            yield from whole_dataset(self.name, fitted, name)
            # What a model of the reward does not know may look like a shift in a part of the states.
            yield from single_episodes(
                self.name, data, fitted.shifted(measures["errors"], measures["steps"]), name, "hint"
            )
            return
        once = measures["rewarded"] == 1
        early = data.episodes.lengths - 1 - measures["last"]
        if once.sum() < _FEWEST or (measures["rewarded"] > 1).mean() > 0.1:
            return
        usual = once & (early == 0)
        if usual.sum() < _SHARE * once.sum():
            return
        for episode in np.flatnonzero(once & (early > 0) & (early <= _NEAR_END)).tolist():
            row = int(data.episodes.starts[episode] + measures["last"][episode])
            yield Finding(
                self.name,
                "strong",
                f"the only reward of episode {episode:,} is in row {row:,}, {counted(int(early[episode]), 'step')} before the last step: {usual.sum():,} of "
                f"{once.sum():,} episodes with a single reward have the reward in the last step",
                episodes=(episode,),
                rows=((row, int(data.episodes.stops[episode])),),
                evidence={"steps": -int(early[episode]), "usual": int(usual.sum())},
                remedy=shift(name, -int(early[episode]), [episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64] | None:
        if not _dense(data):
            return None
        return data.model(Alignment, True).scores(measures["errors"], measures["steps"])


def _dense(data: Data) -> bool:
    """Return whether most steps have a reward that the states explain."""
    if (
        (data.sample(data.rewards[0]).now == 0).mean() > _SPARSE
        or not data.states
        or not data.model(Dynamics).elements
        or not data.model(Alignment, True).usable
    ):
        return False
    return bool(data.model(Alignment, True).errors.min() < 1 - _EXPLAINED)
