"""Episodes whose final observation is the first observation of the next episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, listed
from datasets_rl.ted.keys import Key

_MARGIN = 1.25
_FAR = 0.99
_NAMED = 1_000


class FinalIsReset(Check):
    name = "final_is_reset"
    rule = (
        "The observation after the last action of an episode equals the first observation of the next episode in each number, and the "
        f"largest change of an element that leads there is {_MARGIN:g} times the {_FAR:.0%} quantile of such changes, in half of these "
        "episodes at least. An episode that goes on in the next one does not jump."
    )
    why = "The last transition leads to a state that the action did not cause."
    limits = "A reset near the end of the episode does not jump far enough. Images are not compared."

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 2:
            return "the dataset has a single episode"
        return [()] if data.states else "the dataset has no narrow states"

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        table = data.episodes
        same = np.asarray(table["final_known"][:-1]).copy()
        jump = np.zeros(len(same))
        usual = np.zeros(len(data.sample(data.states[0]).rows))
        for key in data.states:
            finals, firsts = data.finals(key), data.take(key, table.starts)
            last = data.take(key, table.stops - 1)
            same &= (finals[:-1] == firsts[1:]).all(axis=1)
            sample = data.sample(key)
            changes = np.where(sample.has_after[:, None], np.abs(sample.after - sample.now), 0)
            changes = np.where(np.isfinite(changes), changes, 0)
            scale = np.maximum(np.quantile(changes, _FAR, axis=0), 1e-12)
            usual = np.maximum(usual, _most(changes, scale))
            jump = np.maximum(jump, _most(np.abs(finals[:-1].astype(np.float64) - last[:-1]), scale))
        jumps = jump > _MARGIN * np.quantile(usual, _FAR)
        # If most equal ends do not jump, the episodes are parts of a longer one. Otherwise the equality is evidence enough.
        if not same.any() or jumps[same].mean() < 0.5:
            return
        found = np.flatnonzero(same)
        yield Finding(
            self.name,
            "strong",
            f"the observation after the last action of {len(found):,} of {len(table):,} episodes ({listed(found.tolist())}) is the first "
            "observation of the next episode, and unlike what an action leads to",
            episodes=tuple(found[:_NAMED].tolist()),
            rows=tuple((int(stop) - 1, int(stop)) for stop in table.stops[found[:_NAMED]]),
            evidence={"episodes": len(found), "times_usual": float(np.median(jump[found]))},
            remedy=f"store these episodes ({listed(found.tolist())}) without a final observation, which then counts as unknown",
        )


def _most(changes: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest change of an element relative to the usual change, [N]."""
    most: NDArray[np.float64] = np.nan_to_num(changes / scale).max(axis=1)
    return most
