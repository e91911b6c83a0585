"""Episodes that reached a terminal state, and are not marked as terminated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted, listed
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, Key

_FEWEST = 3
_SHARE = 0.05
_SAME = 0.75
_NAMED = 1_000


class MissingEnds(Check):
    name = "missing_ends"
    rule = (
        "An episode that is shorter than the longest is not terminated, and ends as only ends are: with an element of the observation "
        f"beyond all values of the other steps, as at least {_FEWEST} and {_SHARE:.0%} of the episodes do on the same side, or with the only "
        f"reward of the episode in the last step, where {_SAME:.0%} of the episodes that end in this way are terminated, or all episodes "
        "without a reward have the greatest length."
    )
    why = "The value of a terminal state is learned from a state that never follows."
    limits = (
        "Terminal states that lie among the other states, without a reward, show nothing. If all episodes have the same length, no "
        "end stands out."
    )
    merges = {"low": "min", "high": "max", "rewarded": "sum", "last": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        lengths = data.episodes.lengths
        if len(lengths) < 2 * _FEWEST or lengths.min() == lengths.max():
            return "all episodes have the same length, or there are fewer than 6"
        if NEXT_TERMINATED not in {field.key for field in data.steps.fields}:
            return "the dataset has no flag for terminated"
        if data.last_terminated[lengths < lengths.max()].all():
            return "all episodes that are shorter than the longest are terminated"
        keys = [key for key in data.states if key not in data.times]
        return [*keys, *data.rewards] or "the dataset has no narrow states and no rewards"

    def measure(self, block: Block, key: Key) -> Measures:
        values = block.now(key)
        nothing = np.zeros(len(block.starts), np.int64)
        if key == NEXT_REWARD:
            rewarded = (values != 0).any(axis=1)
            last = block.maxima(np.where(rewarded, block.time, -1))
            empty = np.zeros((len(block.starts), 1), values.dtype)
            return {"low": empty, "high": empty, "rewarded": block.sums(rewarded), "last": last}
        return {"low": block.minima(values), "high": block.maxima(values), "rewarded": nothing, "last": nothing}

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        short = data.episodes.lengths < data.episodes.lengths.max()
        named: set[int] = set()
        for key, measures in measured.items():
            if key == NEXT_REWARD:
                found, why = self._rewarded(data, measures, short)
            else:
                found, why = self._beyond(data, key, measures)
            episodes = [
                one for one in np.flatnonzero(found & short & ~data.last_terminated).tolist() if one not in named
            ]
            if not episodes:
                continue
            named.update(episodes)
            yield Finding(
                self.name,
                "strong",
                f"{len(episodes):,} of {counted(len(short), 'episode')} ({listed(episodes)}) "
                f"{'ends early and is' if len(episodes) == 1 else 'end early and are'} not marked as terminated, and a terminal state seems to be "
                f"the end: {why}",
                episodes=tuple(episodes[:_NAMED]),
                rows=tuple((int(stop) - 1, int(stop)) for stop in data.episodes.stops[episodes[:_NAMED]]),
                evidence={"episodes": len(episodes), "terminated": int(data.last_terminated.sum())},
                remedy=f"set next.terminated in the last step of these episodes ({listed(episodes)}) before you store the dataset",
                key=data.field(key).name,
            )

    def _beyond(self, data: Data, key: Key, measures: Measures) -> tuple[NDArray[np.bool_], str]:
        """Return which episodes end with an element beyond the values of all other steps, and the reason in words."""
        finals, known = data.finals(key), data.episodes["final_known"]
        low, high = measures["low"].min(axis=0), measures["high"].max(axis=0)
        sides = np.stack([finals < low, finals > high], axis=1) & known[:, None, None]
        counts = sides.sum(axis=0)
        often = counts >= max(_FEWEST, _SHARE * len(finals))
        found = (sides & often).any(axis=(1, 2))
        if not found.any():
            return found, ""
        side, element = np.unravel_index(np.where(often, counts, 0).argmax(), counts.shape)
        word, limit = ("below", low) if side == 0 else ("above", high)
        name = data.element(key, int(element))
        return (
            found,
            f"{name} is {word} {limit[element]:g} after the last action of {counts[side, element]:,} episodes, and in no other step",
        )

    def _rewarded(self, data: Data, measures: Measures, short: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], str]:
        """Return which episodes have their only reward in the last step, if such a reward ends episodes, and the reason in words."""
        last = (measures["rewarded"] == 1) & (measures["last"] == data.episodes.lengths - 1)
        nothing = np.zeros(len(last), np.bool_)
        if last.sum() < _FEWEST or (measures["rewarded"] > 1).any():
            return nothing, ""
        others = ~(measures["rewarded"] > 0)
        ends = data.last_terminated[last].mean() >= _SAME
        at_limit = others.sum() >= _FEWEST and not (others & short).any() and (last & short).sum() >= _SAME * last.sum()
        if ends:
            return (
                last,
                f"the only reward is in the last step, as in {int((last & data.last_terminated).sum()):,} terminated episodes",
            )
        if at_limit:
            return (
                last,
                "the only reward is in the last step, and all episodes without a reward have the greatest length",
            )
        return nothing, ""
