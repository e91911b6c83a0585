"""Rewards that are zero, or have one value, in the whole dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key


class ConstantRewards(Check):
    name = "constant_rewards"
    rule = "All rewards have the same value."
    why = "Nothing can be learned from the rewards. Demonstrations without rewards serve to imitate alone."
    limits = "Rewards of one value may be right: 1 for each step until the end, with episodes of several lengths."

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.rewards or "the rewards are not narrow numbers"

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        low, high = data.statistics(key, "min"), data.statistics(key, "max")
        if low is None or high is None or low[0] != high[0] or len(data) < 2:
            return
        # A reward for each step until a terminal state says which episodes are good.
        lengths = data.episodes.lengths
        if low[0] != 0 and data.last_terminated.any() and lengths.min() != lengths.max():
            return
        yield Finding(
            self.name,
            "strong",
            f"all {len(data):,} rewards are {low[0]:g}: they do not tell good episodes from bad ones",
            evidence={"value": float(low[0])},
            remedy="imitate the episodes, or compute rewards, for example from a success column",
            key=data.field(key).name,
        )
