"""Sensors or actuators that keep a value in an episode, and move in other episodes."""

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

_FEWEST = 6
_FEW = 3
_MOVES = 0.9
_SHARE = 0.3
_TIMES = 3.0
_JUMP = 2.0


class StuckElements(Check):
    name = "stuck_elements"
    rule = (
        f"An element of an observation or an action keeps its value in {_SHARE:.0%} of the steps of an episode of more than {_FEWEST} "
        f"steps, and {_TIMES:g} times as often as in {_MOVES:.0%} of the episodes. Or an element that changes in {_SHARE:.0%} of the steps of "
        f"{_MOVES:.0%} of the episodes changes a third as often. A hint if other elements rest, too, if an action rests at its limit, or if an observation rests in "
        f"some of the steps, and moves on without a jump of {_JUMP:g} times what nine of ten of its changes are at most."
    )
    why = "The policy learns that a joint does not matter, or that an action has no effect."
    limits = (
        "A joint that stands still in many episodes, such as a gripper, is not found. A drifting sensor is not, either."
    )
    merges = {"still": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 5:
            return "the dataset has fewer than 5 episodes"
        return [*data.states, *(key for key in data.actions if key in data.floats)] or "no field has moving numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        return {"still": block.tally(key).still}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        steps = data.episodes.lengths - 1
        share = measures["still"] / np.maximum(steps, 1)[:, None]
        long = steps >= _FEWEST
        if long.sum() < 5:
            return
        # An element that often rests, such as a gripper, rests longer in some episodes.
        usual = np.quantile(share[long], _MOVES, axis=0)
        often = share >= np.maximum(_SHARE, _TIMES * usual)
        # An encoder in ticks keeps its value in slow steps, too.
        often |= (_TIMES * (1 - share) <= 1 - usual) & (1 - usual >= _SHARE)
        stuck = often & long[:, None]
        stuck &= stuck.sum(axis=0) <= max(_FEW, (1 - _MOVES) / 2 * long.sum())
        name = data.field(key).name
        for episode in np.flatnonzero(stuck.any(axis=1)).tolist():
            elements = np.flatnonzero(stuck[episode])
            longest = float(share[episode, elements].max())
            # Where other elements rest, too, the body may be held, such as by a wall.
            alone = len(elements) == 1 and (share[episode] >= 0.3 * longest).sum() == 1
            yield Finding(
                self.name,
                "strong" if alone and _sticks(data, key, episode, int(elements[0])) else "hint",
                f"{', '.join(data.element(key, int(one)) for one in elements[:4])} keep{'s' * (len(elements) == 1)} the same value in "
                f"{longest:.0%} of the steps of episode {episode:,}, and move{'s' * (len(elements) == 1)} in the other episodes: a sensor or a motor may have stuck",
                episodes=(episode,),
                evidence={"share": longest, "elements": elements.tolist()},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        share = measures["still"] / np.maximum(data.episodes.lengths - 1, 1)[:, None]
        limits = np.maximum(_SHARE, _TIMES * np.quantile(share, _MOVES, axis=0))
        return np.asarray((share / limits).max(axis=1))


def _sticks(data: Data, key: Key, episode: int, element: int) -> bool:
    """Return whether an element of an episode is stuck, and not held by a wall, or at the limit of an action."""
    rows = data.episodes.rows(episode)
    values = data.take(key, np.arange(rows.start, rows.stop))[:, element].astype(np.float64)
    starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    number = int(np.diff(starts, append=len(values)).argmax())
    start, stop = int(starts[number]), int([*starts[1:], len(values)][number])
    sample = data.sample(key)
    now, after = sample.now[:, element], sample.after[:, element]
    if key in data.actions:
        return bool(np.nanmin(now) < values[start] < np.nanmax(now))
    if len(starts) == 1:
        return True
    # A joint that moved while its sensor was stuck shows as a jump.
    change = np.abs(after - now)[sample.has_after]
    usual = float(np.quantile(change[change > 0], 0.9)) if (change > 0).any() else 0.0
    ends = [abs(values[row] - values[row - 1]) for row in (start, stop) if 0 < row < len(values)]
    return max(ends, default=0.0) > _JUMP * usual
