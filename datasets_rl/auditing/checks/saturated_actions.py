"""Actions that are clipped: an element is at its limit far more often than in other episodes."""

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

_SHARE = 0.15
_TIMES = 4.0


class SaturatedActions(Check):
    name = "saturated_actions"
    rule = (
        f"In an episode, an element of the action equals its highest or lowest value of the episode in {_SHARE:.0%} of the steps, which are "
        f"{_TIMES:g} times as many as in nine of ten episodes."
    )
    why = "A clipped action is not what the operator or the policy chose, and hides how far they wanted to go."
    limits = "If most episodes are clipped, or the policy is bang-bang, none is found. A gripper rests at its limits as a rule."
    merges = {"low": "min", "high": "max", "at_low": "count of low", "at_high": "count of high"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 8:
            return "the dataset has fewer than 8 episodes"
        return [key for key in data.actions if key in data.floats] or "no action has floating-point numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        counted = block.tally(key)
        return {
            "low": counted.extremes[:, 0],
            "high": counted.extremes[:, 1],
            "at_low": counted.counts[:, 0],
            "at_high": counted.counts[:, 1],
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        steps = data.episodes.lengths[:, None]
        # An element that rests at a value, such as an open gripper, is at its limit by nature.
        share = np.maximum(measures["at_low"], measures["at_high"]) / steps
        share = np.where(measures["low"] == measures["high"], 0, share)
        usual = np.quantile(share, 0.9, axis=0)
        found = (share >= _SHARE) & (share >= _TIMES * usual) & (steps >= 20)
        name = data.field(key).name
        for episode in np.flatnonzero(found.any(axis=1)).tolist():
            element = int(np.where(found[episode], share[episode], 0).argmax())
            yield Finding(
                self.name,
                "hint",
                f"{data.element(key, element)} is at its limit in {share[episode, element]:.0%} of the steps of episode {episode:,}, between "
                f"{measures['low'][episode, element]:g} and {measures['high'][episode, element]:g}, and in at most {usual[element]:.0%} in nine of ten "
                "episodes: the action may be clipped",
                episodes=(episode,),
                evidence={"share": float(share[episode, element]), "element": element},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        share = np.maximum(measures["at_low"], measures["at_high"]) / data.episodes.lengths[:, None]
        share = np.where(measures["low"] == measures["high"], 0, share)
        highest: NDArray[np.float64] = (share / np.maximum(_SHARE, _TIMES * np.quantile(share, 0.9, axis=0))).max(
            axis=1
        )
        return highest
