"""Elements of fields that have one value in the whole dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key


class ConstantFields(Check):
    name = "constant_fields"
    rule = "The minimum of an element of an observation or an action is its maximum."
    why = "A normalization divides by a standard deviation of 0. A constant action says that a joint was not recorded."
    limits = (
        "Some environments have constant elements on purpose. Of a selection of episodes, the whole dataset is judged."
    )

    def targets(self, data: Data) -> Sequence[Key] | str:
        keys = [key for key in [*data.states, *data.actions] if data.statistics(key, "min") is not None]
        return keys or "no narrow observation or action has statistics"

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        low, high = data.statistics(key, "min"), data.statistics(key, "max")
        if low is None or high is None or len(data) < 2:
            return
        constant = np.flatnonzero(low == high)
        if not len(constant):
            return
        name = data.field(key).name
        names = [data.element(key, int(one)) for one in constant[:4]]
        more = f" and {len(constant) - 4} more elements" if len(constant) > 4 else ""
        values = ", ".join(f"{low[one]:g}" for one in constant[:4])
        yield Finding(
            self.name,
            "hint",
            f"{', '.join(names)}{more} never change{'s' * (len(constant) == 1)}: {values}",
            evidence={"elements": constant.tolist(), "values": low[constant].tolist()},
            remedy="leave the elements out, or check that the sensor was recorded",
            key=name,
        )
