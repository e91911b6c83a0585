"""Episodes that a time limit cut off, and that are marked as terminated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import end_by_truncation
from datasets_rl.ted.keys import NEXT_TERMINATED, Key

_FEWEST = 3
_TIMES = 5.0
_NEAR = 0.25
_NAMED = 1_000


class EndsAtLimit(Check):
    name = "ends_at_limit"
    rule = (
        f"At least {_FEWEST} episodes have the greatest length of the dataset and are terminated, {_TIMES:g} times as many as would be by "
        f"chance: as of the lengths down to {1 - _NEAR:.0%} of the greatest length."
    )
    why = "The value of the last state is learned as zero, although the episode would have gone on."
    limits = "A task with a fixed number of steps ends by itself at the greatest length. Lengths that vary with a limit in seconds show nothing."

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < _FEWEST + 2:
            return f"the dataset has fewer than {_FEWEST + 2} episodes"
        if NEXT_TERMINATED not in {field.key for field in data.steps.fields}:
            return "the dataset has no flag for terminated"
        return [()]

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        lengths, terminated = data.episodes.lengths, data.last_terminated
        limit = int(lengths.max())
        found = np.flatnonzero((lengths == limit) & terminated)
        near = int(_NEAR * limit)
        below = int((terminated & (lengths < limit) & (lengths >= limit - near)).sum())
        if limit < 2 or len(found) < max(_FEWEST, _TIMES * (below + 1) / max(near, 1)):
            return
        at_limit = int((lengths == limit).sum())
        early = int((terminated & (lengths < limit)).sum())
        yield Finding(
            self.name,
            "strong",
            f"{len(found):,} of {at_limit:,} episodes of the greatest length, {limit:,} steps, are marked as terminated, first episode "
            f"{found[0]:,}: a time limit seems to end the episodes there, and {early:,} shorter episodes are terminated",
            episodes=tuple(found[:_NAMED].tolist()),
            rows=tuple((int(stop) - 1, int(stop)) for stop in data.episodes.stops[found[:_NAMED]]),
            evidence={"episodes": len(found), "limit": limit, "terminated_before": early},
            remedy=end_by_truncation(found.tolist() if early else ()),
        )
