"""Observations after the action that are stored as the observations before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.chance import at_least
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import shift
from datasets_rl.ted.keys import Key

_CHANCE, _LIKELY = 1e-3, 0.05
_NAMED = 1_000


class ObservationShift(Check):
    name = "observation_shift"
    rule = (
        "The observation after the last action of an episode equals the observation before this action in each number, in more episodes than by "
        f"chance, as often as other steps, or the step before the last, leave the observation as it is: in 1 of {1 / _CHANCE:,.0f} datasets, or, "
        f"for a hint, in 1 of {1 / _LIKELY:.0f}."
    )
    why = (
        "The policy sees the result of the action before it chooses the action, and the last transition leads nowhere."
    )
    limits = (
        "A recorder that stores the last observation twice, because it does not know the observation after the last action, looks the same: "
        "the other observations of the episode are right then. An observation that is shifted and has no copy at the end shows in "
        "action_shift."
    )

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.states:
            return "the dataset has no narrow states"
        return [()]

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        stops, lengths = data.episodes.stops, data.episodes.lengths
        known = data.episodes["final_known"] & (lengths > 1)
        same, still, rests = known.copy(), np.ones(len(data.sample(data.states[0]).rows), np.bool_), known.copy()
        for key in data.states:
            last = data.take(key, stops - 1)
            same &= (last == data.finals(key)).all(axis=1)
            rests &= (last == data.take(key, np.maximum(stops - 2, 0))).all(axis=1)
            sample = data.sample(key)
            still &= (sample.now == sample.after).all(axis=1) & sample.has_after
        found = np.flatnonzero(same)
        if not len(found):
            return
        # A step more than there are: of few steps, none may be equal by chance.
        share = max((still.sum() + 1) / len(still), rests.sum() / known.sum())
        by_chance = at_least(len(found), share * known.sum())
        if by_chance > _LIKELY:
            return
        most = len(found) > len(known) / 2
        where = f"of {len(found):,} of {len(known):,} episodes" if len(found) > 1 else f"of episode {found[0]:,}"
        yield Finding(
            self.name,
            "strong" if by_chance <= _CHANCE else "hint",
            f"the observation after the last action {where} equals the observation before this action, and in other steps the observation "
            "changes: the observation after each action may be stored as the observation before it, or the last observation is stored "
            "twice",
            episodes=tuple(found[:_NAMED].tolist()),
            rows=tuple((int(stop) - 1, int(stop)) for stop in stops[found[:_NAMED]]),
            evidence={"episodes": len(found), "still": float(still.mean())},
            remedy=shift(data.field(data.states[0]).name, -1, () if most else found.tolist())
            if len(data.states) == 1
            else "store each observation in the step before which the robot or the environment had it",
        )
