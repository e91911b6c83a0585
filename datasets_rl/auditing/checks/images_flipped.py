"""Episodes whose images are upside down, mirrored or turned by 180 degrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.auditing.scenes import FEWEST_EPISODES, FLIPS, MARGIN, SHARE, VOTES, elected, likeness, votes
from datasets_rl.ted.keys import Key

_WORDS = {"upside_down": "upside down", "mirrored": "mirrored", "turned": "turned by 180 degrees"}


class ImagesFlipped(Check):
    name = "images_flipped"
    rule = (
        f"Of the images of an episode, {SHARE:.0%} correlate better with the usual image of the camera after a flip, by {MARGIN:g}. In "
        "three of four episodes at most 5 % do."
    )
    why = "Left and right, or up and down, of an image do not fit the actions of these episodes."
    limits = (
        f"If most episodes are flipped, the others are found. Symmetric scenes, and fewer than {FEWEST_EPISODES} episodes, show "
        "nothing."
    )
    merges = {**VOTES, **dict.fromkeys(FLIPS, "sum")}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < FEWEST_EPISODES:
            return f"the dataset has fewer than {FEWEST_EPISODES} episodes"
        return data.images or "the dataset has no images"

    def measure(self, block: Block, key: Key) -> Measures:
        before, *flipped = likeness(block, key).shapes.T
        best, found = np.argmax(flipped, axis=0), np.max(flipped, axis=0) - before > MARGIN
        return {
            **votes(block, found),
            **{name: block.sums(found & (best == number)) for number, name in enumerate(FLIPS)},
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        name = data.field(key).name
        for episode, share in elected(measures):
            flip = max(FLIPS, key=lambda one: int(measures[one][episode]))
            yield Finding(
                self.name,
                "strong",
                f"in episode {episode:,}, images of {name} are {_WORDS[flip]}: {share:.0%} of the images look more like those of the "
                "other episodes when flipped back",
                episodes=(episode,),
                evidence={"share": share, "flip": flip},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["votes"] / np.maximum(measures["steps"], 1)
