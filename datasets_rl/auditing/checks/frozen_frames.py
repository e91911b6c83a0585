"""Images of a camera that repeat while the rest of the recording goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, Level
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

FEWEST = 5


class FrozenFrames(Check):
    name = "frozen_frames"
    rule = (
        f"A camera shows the same pixels, or nearly the same, in at least {FEWEST} consecutive steps of an episode, or in {FEWEST - 1} in lossy "
        "video, while another camera, a state or the action changes, and at least three times as long as in four of five episodes."
    )
    why = "The policy sees an old image beside a new state, and learns to ignore the camera."
    limits = (
        "A camera that shows a scene without any motion or noise, as simulators render, is frozen in this sense, too. Where "
        "images of many episodes repeat, as in lossy video of slow scenes, the finding is a hint."
    )
    merges = {"longest": "max", "row": "with longest"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.images:
            return "the dataset has no images"
        return data.images

    def measure(self, block: Block, key: Key) -> Measures:
        longest, row = block.longest_runs(block.same_images(key))
        return {"longest": longest, "row": row}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        longest = measures["longest"]
        limit = max(fewest_repeats(data, key), 3 * float(np.quantile(longest, 0.8)))
        name = data.field(key).name
        # Lossy video repeats the image of a slow scene, and a game without noise that of a pause.
        level: Level = "strong" if data.never_equal(key) else "hint"
        for episode in np.flatnonzero(longest >= limit).tolist():
            first, count = int(measures["row"][episode]), int(longest[episode]) + 1
            yield Finding(
                self.name,
                level,
                f"{name} shows the same image in {count} consecutive steps of episode {episode:,}, from row {first:,}, while "
                "states or actions change",
                episodes=(episode,),
                rows=((first, first + count),),
                evidence={"steps": count, "first_row": first},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["longest"].astype(np.float64)


def fewest_repeats(data: Data, key: Key) -> int:
    """Return the number of consecutive repeats of an image from which on a camera is frozen."""
    # Lossy video stores every few images alone, which changes the first of the repeats. A game without states may pause.
    return FEWEST - 1 if data.never_equal(key) or not data.states else FEWEST - 2
