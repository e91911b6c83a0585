"""Rewards that are zero, or constant, in the whole dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key


class ConstantRewards(Check):
    name = "constant_rewards"
    rule = "All rewards have the same value, which is 0, or no episode reaches a terminal state."
    why = "Nothing can be learned from the rewards. Demonstrations without rewards serve to imitate alone."
    limits = "A reward of one value until a terminal state is usual: the number of steps is the return. Nothing is found then."
    merges = {"low": "min", "high": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < 2:
            return "the dataset has a single step"
        if data.has_no_rewards:
            return "the upstream has no rewards: the conversion set all rewards to 0"
        return data.rewards or "the rewards are not narrow numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        extremes = block.tally(key).extremes
        return {"low": extremes[:, 0, 0], "high": extremes[:, 1, 0]}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        value = float(measures["low"].min())
        if value != measures["high"].max() or (value != 0 and data.last_terminated.any()):
            return
        yield Finding(
            self.name,
            "strong",
            f"all {len(data):,} rewards are {value:g}: the rewards do not tell good episodes from bad episodes",
            evidence={"value": value},
            remedy="imitate the episodes, or compute rewards, for example from a success column",
            key=data.field(key).name,
        )
