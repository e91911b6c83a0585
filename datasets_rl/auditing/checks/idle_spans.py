"""Long spans of an episode in which nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import AHEAD, Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, keep_rows
from datasets_rl.ted.keys import Key

_SLOW = 0.08
_CALM = 0.25
_STILL = 0.04
_SMOOTH = 5
_FEWEST = 10
_SHARE = 0.1
_TIMES = 2.0
_MORE = 2


class IdleSpans(Check):
    name = "idle_spans"
    rule = (
        f"In at least {_FEWEST} consecutive steps, and {_SHARE:.0%} of the episode, the observation moves less than {_SLOW:.0%} as far in "
        f"{AHEAD} steps as in the median, in the sum over the elements, and {_MORE} steps more than {_TIMES:g} times as long as in nine of ten episodes. Over the whole span, the "
        f"observation moves less than {_STILL:.0%} of the median. A hint if the action moves more than {_CALM:.0%} as far as in the median, or if "
        "all episodes have one length and the rest is at the end."
    )
    why = "A policy that imitates pauses stands still for ever: at rest, the recorded action is to rest."
    limits = "Resting may belong to the task. If most episodes rest, none is found."
    merges = {"longest": "max", "row": "with longest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.states:
            return "no narrow observation has floating-point numbers"
        return [()] if data.model(_Ways, True).usual > 0 else "no observation moves"

    def measure(self, block: Block, key: Key) -> Measures:
        states = block.data.model(_Ways, True)
        slow = states.of(block) < _SLOW * states.usual
        # The last steps of an episode have no step so far ahead within the episode.
        slow &= block.time + AHEAD < block.data.episodes.lengths[block.episodes][block.episode]
        longest, row = block.longest_runs(slow)
        return {"longest": longest + AHEAD * (longest > 0), "row": row}

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["longest"].astype(np.float64)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        longest, lengths = measures["longest"], data.episodes.lengths
        limit = np.maximum(np.maximum(_FEWEST, _SHARE * lengths), _MORE + _TIMES * float(np.quantile(longest, 0.9)))
        states, actions = data.model(_Ways, True), data.model(_Ways, False)
        firsts, lasts = data.episodes.starts, data.episodes.stops
        # Where a clock ends the episodes, a task that was done early leaves a rest.
        fixed = np.ptp(lengths) == 0
        for episode in np.flatnonzero(longest >= limit).tolist():
            row, count = int(measures["row"][episode]), int(longest[episode])
            if states.across(row, row + count) > _STILL * states.usual:
                continue
            # A policy learns to rest where the recorded action rests, too. Otherwise a wall may hold the body.
            ways = actions.of(Block(data, row, row + count - AHEAD))
            acts = actions.usual > 0 and float(np.median(ways)) > _CALM * actions.usual
            start, stop = int(firsts[episode]), int(lasts[episode])
            place = "at the start" if row == start else "at the end" if row + count >= stop else "inside"
            what = "no observation moves, while the action goes on to change," if acts else "nothing moves"
            yield Finding(
                self.name,
                "hint" if acts or (fixed and place == "at the end") else "strong",
                f"{what} in {count:,} steps {place} of episode {episode:,}, from row {row:,}: {count / (stop - start):.0%} of the episode",
                episodes=(episode,),
                rows=((row, row + count),),
                evidence={"steps": count, "share": count / (stop - start), "place": place},
                remedy=drop([episode])
                if place == "inside" or (place == "at the end" and data.has_outcome(episode))
                else keep_rows(data, *((row + count, stop) if row == start else (start, row))),
            )


class _Ways:
    """How far the observations, or the actions, usually move in four steps.

    Args:
        data: The dataset.
        states: Whether to look at the observations, in place of the actions.

    Attributes:
        usual: Median of the weighted ways. 0 if most steps rest.
    """

    def __init__(self, data: Data, states: bool) -> None:
        self._data = data
        rows = data.sample(data.states[0]).rows
        rows = rows[rows + AHEAD < data.episodes.stops[data.episodes.episode_of(rows)]]
        self._weights: dict[Key, NDArray[np.float64]] = {}
        ways = np.zeros(len(rows))
        for key in (data.states if states else data.actions) if len(rows) else ():
            way = np.nan_to_num(
                np.abs(data.take(key, rows + AHEAD).astype(np.float64) - data.take(key, rows)), posinf=0
            )
            scale = way.mean(axis=0)
            self._weights[key] = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
            ways += (way * self._weights[key]).sum(axis=1)
        self.usual = float(np.median(ways)) if len(rows) else 0.0

    def of(self, block: Block) -> NDArray[np.float64]:
        """Return the weighted way from each row to four rows later, [N]."""
        from datasets_rl.auditing._tally import add_ways

        ways = np.zeros(len(block))
        for key, weights in self._weights.items():
            values = block.ahead(key)
            kind = np.float64 if values.dtype == np.float64 else np.float32
            add_ways(values.astype(kind, copy=False), AHEAD, weights, ways)
        return ways

    def across(self, start: int, stop: int) -> float:
        """Return the weighted distance across the places of the rows [start, stop), without noise, and without the slow ends of a rest."""
        total = 0.0
        for key, weights in self._weights.items():
            values = self._data.take(key, np.arange(start, stop)).astype(np.float64)
            smooth = sliding_window_view(values, max(_SMOOTH, len(values) // 4), axis=0).mean(axis=-1)
            low, high = np.quantile(smooth, [0.1, 0.9], axis=0)
            total += float(((high - low) * weights).sum())
        return total
