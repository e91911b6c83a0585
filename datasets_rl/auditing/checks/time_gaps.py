"""Time stamps with gaps, or out of order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, split_at
from datasets_rl.ted.keys import Key

_TIMES = 1.5
_USUAL = 0.01


class TimeGaps(Check):
    name = "time_gaps"
    rule = f"The time between two steps is more than {_TIMES:g} times the median, or not above 0, in at most {_USUAL:.0%} of all steps."
    why = "Frames are missing in a gap: an action leads to a state that another action led to."
    limits = "Only fields named like a time are read. If the rate changes as a rule, no gap is found."
    merges = {"longest": "max", "row": "with longest", "gaps": "sum", "backward": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.times or "no field is named like a time"

    def measure(self, block: Block, key: Key) -> Measures:
        step = (block.after(key).astype(np.float64) - block.now(key))[:, 0]
        step = np.where(block.has_after & np.isfinite(step), step, np.nan)
        usual = block.data.usual_interval(key)
        longest = block.maxima(np.nan_to_num(step, nan=0.0))
        return {
            "longest": longest,
            "row": block.row_of(step, longest),
            "gaps": block.sums(step > _TIMES * usual),
            "backward": block.sums(step <= 0),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        usual, name = data.usual_interval(key), data.field(key).name
        if not usual > 0:
            return
        for kind in ("gaps", "backward"):
            counts = measures[kind]
            if counts.sum() > _USUAL * len(data):
                continue
            for episode in np.flatnonzero(counts).tolist():
                row, longest = int(measures["row"][episode]), float(measures["longest"][episode])
                what = (
                    f"{name} has {counts[episode]} gaps in episode {episode:,}: between the rows {row:,} and {row + 1:,} are "
                    f"{longest:g}, {longest / usual:.1f} times the usual {usual:g}"
                    if kind == "gaps"
                    else f"{name} does not grow in {counts[episode]} steps of episode {episode:,}"
                )
                yield Finding(
                    self.name,
                    "strong",
                    what,
                    episodes=(episode,),
                    rows=((row, row + 2),) if kind == "gaps" else (),
                    evidence={"longest": longest, "usual": usual, "count": int(counts[episode])},
                    remedy=split_at(data, [row + 1]) if kind == "gaps" else drop([episode]),
                    key=name,
                )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["longest"].astype(np.float64)
