"""Episodes that a time limit cut off, and that are marked as terminated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.chance import at_least
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import end_by_truncation
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, Key

_FEWEST = 3
_CHANCE = 1e-4
_NEAR = 0.25
_NAMED = 1_000


class EndsAtLimit(Check):
    name = "ends_at_limit"
    rule = (
        f"At least {_FEWEST} episodes have the greatest length of the dataset and are terminated. By chance, so many episodes would have this "
        f"length in 1 of {1 / _CHANCE:,.0f} datasets, judged by the lengths down to {1 - _NEAR:.0%} of it. A hint if all episodes of the dataset "
        "have this length and are terminated."
    )
    why = "The value of the last state is learned as zero, although the episode would have gone on."
    limits = "An episode whose only reward is in the last step ends with the task. Any other task with a fixed number of steps ends by itself at the greatest length. Lengths that vary with a limit in seconds show nothing."

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < _FEWEST + 2:
            return f"the dataset has fewer than {_FEWEST + 2} episodes"
        if NEXT_TERMINATED not in {field.key for field in data.steps.fields}:
            return "the dataset has no flag for terminated"
        return [()]

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        lengths, terminated = data.episodes.lengths, data.last_terminated
        limit = int(lengths.max())
        found = np.flatnonzero((lengths == limit) & terminated & ~_rewarded_at_end(data))
        near = int(_NEAR * limit)
        at_limit = int((lengths == limit).sum())
        below = int(((lengths < limit) & (lengths >= limit - near)).sum())
        # An episode of the greatest length is always there.
        by_chance = at_least(at_limit - 1, (below + 1) / max(near, 1))
        if limit < 2 or len(found) < _FEWEST or by_chance > _CHANCE:
            return
        early = int((terminated & (lengths < limit)).sum())
        # A task of a fixed number of steps looks the same.
        fixed = len(found) == len(lengths)
        why = (
            "either the task has a fixed number of steps, or a time limit ends the episodes, which is no terminal state"
            if fixed
            else f"a time limit seems to end the episodes there, and {early:,} shorter episodes are terminated"
        )
        yield Finding(
            self.name,
            "hint" if fixed else "strong",
            f"{len(found):,} of {at_limit:,} episodes of the greatest length, {limit:,} steps, are marked as terminated, first episode "
            f"{found[0]:,}: {why}",
            episodes=tuple(found[:_NAMED].tolist()),
            rows=tuple((int(stop) - 1, int(stop)) for stop in data.episodes.stops[found[:_NAMED]]),
            evidence={"episodes": len(found), "limit": limit, "terminated_before": early},
            remedy=end_by_truncation(found.tolist() if early else ()),
        )


def _rewarded_at_end(data: Data) -> NDArray[np.bool_]:
    """Return whether the last step has the only reward of each episode, bool [E]."""
    if not data.rewards:
        return np.zeros(len(data.episodes), np.bool_)
    last = data.take(NEXT_REWARD, data.episodes.stops - 1)[:, 0]
    rewarded: NDArray[np.bool_] = (last != 0) & np.isclose(data.episodes["return"], last)
    return rewarded
