"""Time stamps at distances that vary from step to step."""

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
_TIMES = 3.0


class TimeJitter(Check):
    name = "time_jitter"
    rule = (
        f"The mean deviation of the time between steps from its median is above {_SHARE:.0%} of the median in an episode, and "
        f"{_TIMES:g} times that of the median episode."
    )
    why = "A policy that runs at a fixed rate meets speeds that the recording does not have."
    limits = "Only fields named like a time are read. Jitter in all episodes is a finding of the dataset, without an episode."
    merges = {"deviation": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.times or "no field is named like a time"

    def measure(self, block: Block, key: Key) -> Measures:
        usual = block.data.usual_interval(key)
        step = (block.after(key).astype(np.float64) - block.now(key))[:, 0]
        # A gap is another finding, and must not count as jitter.
        inside = block.has_after & np.isfinite(step) & (step < 2.5 * usual) & (step > 0)
        deviation = np.where(inside, np.abs(step - usual), 0.0)
        return {"deviation": block.sums(deviation), "steps": block.sums(inside)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        usual, name = data.usual_interval(key), data.field(key).name
        if not usual > 0:
            return
        share = measures["deviation"] / np.maximum(measures["steps"], 1) / usual
        typical = float(np.median(share))
        if typical > _SHARE:
            yield Finding(
                self.name,
                "strong",
                f"the time between steps, by {name}, deviates by {typical:.0%} from its median {usual:g} in the median episode: the recorder did not keep its rate",
                evidence={"share": typical, "usual": usual},
                remedy="resample the recording at a fixed rate before you store it",
                key=name,
            )
            return
        enough = measures["steps"] >= 10
        for episode in np.flatnonzero(enough & (share > max(_SHARE, _TIMES * typical))).tolist():
            yield Finding(
                self.name,
                "strong",
                f"the time between steps, by {name}, deviates by {share[episode]:.0%} from its median {usual:g} in episode {episode:,}, "
                f"and by {typical:.0%} in the median episode",
                episodes=(episode,),
                evidence={"share": float(share[episode]), "usual": usual},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["deviation"] / np.maximum(measures["steps"], 1)
