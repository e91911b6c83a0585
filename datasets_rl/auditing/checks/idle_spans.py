"""Long spans of an episode in which nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, keep_rows
from datasets_rl.ted.keys import Key

_SLOW = 0.15
_FEWEST = 8
_SHARE = 0.1


class IdleSpans(Check):
    name = "idle_spans"
    rule = (
        f"In at least {_FEWEST} consecutive steps, and {_SHARE:.0%} of the episode, the observation changes less than {_SLOW:.0%} as much as in "
        "the median step, in the sum over the elements, and three times as long as in nine of ten episodes."
    )
    why = "A policy that imitates pauses stands still for ever: at rest, the recorded action is to rest."
    limits = "Resting may belong to the task. If most episodes rest, none is found."
    merges = {"longest": "max", "row": "with longest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.states:
            return "no narrow observation has floating-point numbers"
        return [()] if (_scale(data) > 0).any() else "no observation moves"

    def measure(self, block: Block, key: Key) -> Measures:
        scale = _scale(block.data)
        moving = scale > 0
        now = np.hstack([block.now(one) for one in block.data.states])[:, moving].astype(np.float32)
        after = np.hstack([block.after(one) for one in block.data.states])[:, moving].astype(np.float32)
        speed = (np.abs(after - now) / scale[moving].astype(np.float32)).mean(axis=1)
        longest, row = block.longest_runs((speed < _SLOW * _median_speed(block.data)) & block.has_after)
        return {"longest": longest, "row": row}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        longest, lengths = measures["longest"], data.episodes.lengths
        limit = np.maximum(np.maximum(_FEWEST, _SHARE * lengths), 3 * float(np.quantile(longest, 0.9)))
        for episode in np.flatnonzero(longest >= limit).tolist():
            row, count = int(measures["row"][episode]), int(longest[episode])
            start, stop = int(data.episodes.starts[episode]), int(data.episodes.stops[episode])
            place = "at the start" if row == start else "at the end" if row + count >= stop - 1 else "inside"
            yield Finding(
                self.name,
                "strong",
                f"nothing moves in {count:,} steps {place} of episode {episode:,}, from row {row:,}: {count / (stop - start):.0%} of the episode",
                episodes=(episode,),
                rows=((row, row + count),),
                evidence={"steps": count, "share": count / (stop - start), "place": place},
                remedy=drop([episode])
                if place == "inside"
                else keep_rows(data, *((row + count, stop) if row == start else (start, row))),
            )


def _scale(data: Data) -> NDArray[np.float64]:
    """Return the median change of each element of the observations, [D], 0 for an element that rests in most steps."""
    changes = [np.abs(sample.after - sample.now)[sample.has_after] for sample in map(data.sample, data.states)]
    return np.hstack(
        [np.nan_to_num(np.median(change, axis=0)) if len(change) else change.sum(axis=0) for change in changes]
    )


def _median_speed(data: Data) -> float:
    scale = _scale(data)
    changes = np.hstack(
        [np.abs(sample.after - sample.now)[sample.has_after] for sample in map(data.sample, data.states)]
    )
    return float(np.nanmedian((changes[:, scale > 0] / scale[scale > 0]).mean(axis=1)))
