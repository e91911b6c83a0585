"""Two episodes that are stored as a single episode: inside the episode the state jumps as in no other step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key

_TIMES = 8.0
_FEWEST = 200
_SHARE = 0.5


class JoinedEpisodes(Check):
    name = "joined_episodes"
    rule = (
        f"Between two steps of an episode, more than half of the elements of the observation that usually move change more "
        f"than {_TIMES:g} times as much as in 99.5 % of all steps, or the summed change does."
    )
    why = "The value of a state before the seam is learned from the start of another episode."
    limits = "An episode that is reset to where the episode before ended has no jump. Teleports of an environment look like seams."
    merges = {"jump": "max", "row": "with jump"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < _FEWEST:
            return f"the dataset has fewer than {_FEWEST} steps"
        return data.states or "no observation has floating-point numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        scale = self._scale(block.data, key)
        change = np.abs(block.after(key).astype(np.float64) - block.now(key)) / scale
        jump = np.where(block.has_after & np.isfinite(change).all(axis=1), np.median(change, axis=1), 0.0)
        highest = block.maxima(jump)
        return {"jump": highest, "row": block.row_of(jump, highest)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        jumps = measures["jump"]
        found = np.flatnonzero(jumps > _TIMES)
        # Where many episodes jump, jumps belong to the environment.
        if not len(found) or len(found) > max(1, 0.2 * len(jumps)):
            return
        name = data.field(key).name
        for episode in found.tolist():
            row = int(measures["row"][episode])
            yield Finding(
                self.name,
                "strong",
                f"{name} jumps between the rows {row:,} and {row + 1:,} of episode {episode:,}, by {jumps[episode]:.0f} times "
                "the change that 99.5 % of all steps stay below: two episodes may be joined there",
                episodes=(episode,),
                rows=((row, row + 2),),
                evidence={"times": float(jumps[episode]), "row": row},
                remedy=f"-t split_episodes:rows={row + 1}",
                key=name,
            )

    def _scale(self, data: Data, key: Key) -> np.ndarray:
        sample = data.sample(key)
        change = np.abs(sample.after - sample.now)[sample.has_after]
        change = change[np.isfinite(change).all(axis=1)]
        scale = np.quantile(change, 0.995, axis=0) if len(change) else np.ones(sample.now.shape[1])
        return np.where(scale > 0, scale, np.inf)
