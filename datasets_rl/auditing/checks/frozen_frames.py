"""Images of a camera that repeat while the rest of the recording goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_FEWEST = 5


class FrozenFrames(Check):
    name = "frozen_frames"
    rule = (
        f"A camera shows the same pixels in at least {_FEWEST} consecutive steps of an episode, while another camera, a state "
        "or the action changes, and at least three times as long as in nine of ten episodes."
    )
    why = "The policy sees an old image beside a new state, and learns to ignore the camera."
    limits = (
        "A camera that shows a scene without any motion or noise, as simulators render, is frozen in this sense, too."
    )
    merges = {"longest": "max", "row": "with longest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.images:
            return "the dataset has no images"
        return data.images

    def measure(self, block: Block, key: Key) -> Measures:
        grids = block.grids(key)
        same = np.zeros(len(block), np.bool_)
        same[:-1] = (grids[1:] == grids[:-1]).all(axis=(1, 2, 3)) & block.has_after[:-1]
        moves = np.zeros(len(block), np.bool_)
        for other in [*block.data.states, *block.data.actions]:
            moves |= (block.after(other) != block.now(other)).any(axis=1)
        if block.data.states or block.data.actions:
            same &= moves
        longest, row = block.longest_runs(same)
        return {"longest": longest, "row": row}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        longest = measures["longest"]
        limit = max(_FEWEST - 1, 3 * float(np.quantile(longest, 0.9)))
        name = data.field(key).name
        for episode in np.flatnonzero(longest >= limit).tolist():
            first, count = int(measures["row"][episode]), int(longest[episode]) + 1
            yield Finding(
                self.name,
                "strong",
                f"{name} shows the same image in {count} consecutive steps of episode {episode:,}, from row {first:,}, while "
                "states or actions change",
                episodes=(episode,),
                rows=((first, first + count),),
                evidence={"steps": count, "first_row": first},
                remedy=drop([episode]),
                key=name,
            )
