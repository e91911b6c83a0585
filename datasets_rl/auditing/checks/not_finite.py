"""Values that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key


class NotFinite(Check):
    name = "not_finite"
    rule = "A value of a number field is NaN or infinite."
    why = "A single NaN in a batch makes all weights of a network NaN."
    limits = "Of images and texts no value can be NaN. A NaN that stands for a missing sensor is a finding, too."
    merges = {"values": "sum", "first": "min", "stop": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.floats or "no field has floating-point numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        wrong = block.tally(key).wrong
        found = wrong[:, 0] > 0
        return {
            "values": wrong[:, 0],
            "first": np.where(found, wrong[:, 1] + block.start, np.iinfo(np.int64).max),
            "stop": np.where(found, wrong[:, 2] + block.start, -1),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        wrong = np.flatnonzero(measures["values"])
        if not len(wrong):
            return
        values, name = int(measures["values"].sum()), data.field(key).name
        first = int(measures["first"].min())
        yield Finding(
            self.name,
            "proof",
            f"{name} has {counted(values, 'value')} that {'is' if values == 1 else 'are'} NaN or infinite, in {len(wrong):,} of "
            f"{counted(len(data.episodes), 'episode')}, first in row {first:,}",
            episodes=tuple(wrong.tolist()),
            rows=tuple(zip(measures["first"][wrong].tolist(), measures["stop"][wrong].tolist(), strict=True)),
            evidence={"values": values, "first_row": first},
            remedy=drop(wrong.tolist()),
            key=name,
        )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["values"].astype(np.float64)
