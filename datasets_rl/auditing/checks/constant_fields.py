"""Elements of fields that are constant in the whole dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key

_NAMED = 4


class ConstantFields(Check):
    name = "constant_fields"
    rule = "The minimum of an element of an observation or an action is its maximum."
    why = "A normalization divides by a standard deviation of 0. A constant action says that a joint was not recorded."
    limits = "Some environments have constant elements on purpose."
    merges = {"low": "min", "high": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < 2:
            return "the dataset has a single step"
        return [*data.states, *data.actions] or "no observation or action has narrow numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        extremes = block.tally(key).extremes
        return {"low": extremes[:, 0], "high": extremes[:, 1]}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        low = measures["low"].min(axis=0)
        constant = np.flatnonzero(low == measures["high"].max(axis=0))
        if not len(constant):
            return
        names = ", ".join(data.element(key, int(one)) for one in constant[:_NAMED])
        more = f" and {len(constant) - _NAMED} more elements" if len(constant) > _NAMED else ""
        yield Finding(
            self.name,
            "hint",
            f"{names}{more} never change{'s' * (len(constant) == 1)}, and {'is' if len(constant) == 1 else 'are'} always "
            f"{', '.join(f'{one:g}' for one in low[constant[:_NAMED]])}: a sensor or a motor may not have been recorded",
            evidence={"elements": constant.tolist(), "values": low[constant].tolist()},
            remedy="leave the elements out of the training, or record them",
            key=data.field(key).name,
        )
