"""Sensors or actuators that keep one value in an episode, and move in the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_FEWEST = 10
_MOVES = 0.95


class StuckElements(Check):
    name = "stuck_elements"
    rule = (
        f"An element of an observation or an action keeps one value for at least half of an episode of {_FEWEST} steps or more. In "
        f"{_MOVES:.0%} of the episodes the element does not."
    )
    why = "The policy learns that a joint does not matter, or that an action has no effect."
    limits = (
        "A joint that stands still in many episodes, such as a gripper, is not found. A drifting sensor is not, either."
    )
    merges = {"still": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 5:
            return "the dataset has fewer than 5 episodes"
        return [*data.states, *(key for key in data.actions if key in data.floats)] or "no field has moving numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        same = (block.after(key) == block.now(key)) & block.has_after[:, None]
        return {"still": block.sums(same), "steps": block.sums(block.has_after)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        steps = measures["steps"]
        share = measures["still"] / np.maximum(steps, 1)[:, None]
        long = steps >= _FEWEST
        if long.sum() < 5:
            return
        stuck = (share >= 0.5) & long[:, None]
        stuck &= (stuck[long].mean(axis=0) <= 1 - _MOVES) | (stuck[long].sum(axis=0) <= 1)
        # An element that often rests, such as a gripper, rests longer in some episodes.
        stuck &= np.quantile(share[long], 0.75, axis=0) < 0.2
        name = data.field(key).name
        for episode in np.flatnonzero(stuck.any(axis=1)).tolist():
            elements = np.flatnonzero(stuck[episode])
            longest = float(share[episode, elements].max())
            yield Finding(
                self.name,
                "strong",
                f"{', '.join(data.element(key, int(one)) for one in elements[:4])} keep{'s' * (len(elements) == 1)} the same value in "
                f"{longest:.0%} of the steps of episode {episode:,}, and move{'s' * (len(elements) == 1)} in the other episodes",
                episodes=(episode,),
                evidence={"share": longest, "elements": elements.tolist()},
                remedy=drop([episode]),
                key=name,
            )
