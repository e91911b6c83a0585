"""Long spans of an episode in which nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import AHEAD, Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, keep_rows
from datasets_rl.ted.keys import Key

_SLOW = 0.08
_FEWEST = 10
_SHARE = 0.1
_TIMES = 2.0
_MORE = 2


class IdleSpans(Check):
    name = "idle_spans"
    rule = (
        f"In at least {_FEWEST} consecutive steps, and {_SHARE:.0%} of the episode, the observation moves less than {_SLOW:.0%} as far in "
        f"{AHEAD} steps as in the median, in the sum over the elements, and {_MORE} steps more than {_TIMES:g} times as long as in nine of ten episodes."
    )
    why = "A policy that imitates pauses stands still for ever: at rest, the recorded action is to rest."
    limits = "Resting may belong to the task. If most episodes rest, none is found."
    merges = {"longest": "max", "row": "with longest"}

    def __init__(self) -> None:
        self._known: tuple[dict[Key, NDArray[np.float64]], float] | None = None

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.states:
            return "no narrow observation has floating-point numbers"
        return [()] if self._usual(data)[1] > 0 else "no observation moves"

    def measure(self, block: Block, key: Key) -> Measures:
        from datasets_rl.auditing._tally import add_ways

        weights, usual = self._usual(block.data)
        ways = np.zeros(len(block))
        for one in block.data.states:
            values = block.ahead(one)
            kind = np.float64 if values.dtype == np.float64 else np.float32
            add_ways(values.astype(kind, copy=False), AHEAD, weights[one], ways)
        slow = ways < _SLOW * usual
        # The last steps of an episode have no step so far ahead within the episode.
        slow &= block.time + AHEAD < block.data.episodes.lengths[block.episodes][block.episode]
        longest, row = block.longest_runs(slow)
        return {"longest": longest + AHEAD * (longest > 0), "row": row}

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["longest"].astype(np.float64)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        longest, lengths = measures["longest"], data.episodes.lengths
        limit = np.maximum(np.maximum(_FEWEST, _SHARE * lengths), _MORE + _TIMES * float(np.quantile(longest, 0.9)))
        for episode in np.flatnonzero(longest >= limit).tolist():
            row, count = int(measures["row"][episode]), int(longest[episode])
            start, stop = int(data.episodes.starts[episode]), int(data.episodes.stops[episode])
            place = "at the start" if row == start else "at the end" if row + count >= stop else "inside"
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

    def _usual(self, data: Data) -> tuple[dict[Key, NDArray[np.float64]], float]:
        """Return the weight of each element of the observations, and the median weighted way in a window."""
        if self._known is None:
            rows = data.sample(data.states[0]).rows
            rows = rows[rows + AHEAD < data.episodes.stops[data.episodes.episode_of(rows)]]
            weights, ways = {}, np.zeros(len(rows))
            for key in data.states if len(rows) else ():
                way = np.nan_to_num(
                    np.abs(data.take(key, rows + AHEAD).astype(np.float64) - data.take(key, rows)), posinf=0
                )
                scale = way.mean(axis=0)
                weights[key] = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
                ways += (way * weights[key]).sum(axis=1)
            self._known = weights, float(np.median(ways)) if len(rows) else 0.0
        return self._known
