"""Time stamps with gaps, or out of order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import drop, split_at
from datasets_rl.ted.keys import Key

_TIMES = 1.5
_USUAL = 0.01


class TimeGaps(Check):
    name = "time_gaps"
    rule = (
        f"The time between two steps is more than {_TIMES:g} times the median, and neither two steps before nor two steps after are shorter by as "
        f"much. Or the time between two steps is not above 0. Either holds in at most {_USUAL:.0%} of all steps."
    )
    why = "Frames are missing in a gap: an action leads to a state that another action led to."
    limits = "Only fields named like a time are read. If the rate changes as a rule, no gap is found."
    merges = {
        "longest": "max",
        "row": "with longest",
        "gaps": "sum",
        "backward": "sum",
        "least": "min",
        "least_row": "with least",
    }

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.times or "no field is named like a time"

    def measure(self, block: Block, key: Key) -> Measures:
        step = (block.after(key).astype(np.float64) - block.now(key))[:, 0]
        step = np.where(block.has_after & np.isfinite(step), step, np.nan)
        usual = block.data.usual_interval(key)
        # If a frame is late and the next frames are in time, no frame is missing: the steps around make up for the longer step.
        late = np.nan_to_num(step - usual, nan=0.0)
        around = np.pad(late, 2)
        one, two, four, five = (around[place : place + len(late)] for place in (0, 1, 3, 4))
        lost = late + np.min([two, one + two, four, four + five, np.zeros_like(late)], axis=0)
        gaps = (late > (_TIMES - 1) * usual) & (lost > (_TIMES - 1) * usual)
        longest = block.maxima(np.where(gaps, step, 0.0))
        steps = np.nan_to_num(step, nan=np.inf)
        least = block.minima(steps)
        return {
            "longest": longest,
            "row": block.row_of(np.where(gaps, step, 0.0), longest),
            "gaps": block.sums(gaps),
            "backward": block.sums(step <= 0),
            "least": least,
            "least_row": block.row_of(steps, least),
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
                count = int(counts[episode])
                extreme, place = ("longest", "row") if kind == "gaps" else ("least", "least_row")
                step, row = float(measures[extreme][episode]), int(measures[place][episode])
                begins_again = kind == "backward" and _begins_again(data, key, episode, row)
                what = (
                    f"{name} has {counted(count, 'gap')} in episode {episode:,}: from row {row:,} to row {row + 1:,} it grows by {step:g}, "
                    f"{step / usual:.1f} times as much as usual, {usual:g}: frames are missing"
                    if kind == "gaps"
                    else f"{name} {'falls' if step < 0 else 'stands still'} in {counted(count, 'step')} of episode {episode:,}: from row {row:,} to row "
                    f"{row + 1:,} it changes by {step:g} in place of {usual:g}"
                    f"{': the clock begins again there, as if two recordings were joined' if begins_again else ''}"
                )
                yield Finding(
                    self.name,
                    "strong",
                    what,
                    episodes=(episode,),
                    rows=((row, row + 2),),
                    evidence={"step": step, "usual": usual, "count": count},
                    remedy=split_at(data, [row + 1]) if kind == "gaps" or begins_again else drop([episode]),
                    key=name,
                )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["longest"].astype(np.float64)


def _begins_again(data: Data, key: Key, episode: int, row: int) -> bool:
    """Return whether the time stays below that of a row after it went back. Otherwise a single stamp is wrong."""
    if row + 2 >= data.episodes.stops[episode]:
        return False
    before, after = data.take(key, np.array([row, row + 2]))[:, 0]
    return bool(after < before)
