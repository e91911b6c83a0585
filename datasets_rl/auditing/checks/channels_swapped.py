"""Episodes whose images have red in the place of blue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.checks.cameras_swapped import TIMES
from datasets_rl.auditing.data import Data, channels_last
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop, exchange_channels
from datasets_rl.auditing.scenes import FEWEST_EPISODES, MARGIN, SHARE, VOTES, elected, likeness, votes
from datasets_rl.ted.keys import Key

_WHOLE = 0.95


class ChannelsSwapped(Check):
    name = "channels_swapped"
    rule = (
        f"Of the images of an episode, {SHARE:.0%} have colors that correlate better with the usual image of the camera after red and "
        f"blue are exchanged, by {MARGIN:g}, and do not look more usual after a flip, or as images of another camera. In three of four episodes "
        "at most 5 % do."
    )
    why = "Colors that a task names, such as a red cube, are other colors in these episodes."
    limits = f"Channels of flipped images are not looked at. If most episodes are swapped, the others are found. Gray scenes, and fewer than {FEWEST_EPISODES} episodes, show nothing."
    merges = VOTES

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < FEWEST_EPISODES:
            return f"the dataset has fewer than {FEWEST_EPISODES} episodes"
        colored = [key for key in data.images if channels_last(np.empty((0, *data.field(key).shape))).shape[-1] == 3]
        return colored or "no camera has three channels"

    def measure(self, block: Block, key: Key) -> Measures:
        like, camera = likeness(block, key), block.data.images.index(key)
        before, exchanged = like.colors.T
        # An image that is upside down, or of another camera, has other colors in each place, too.
        flipped = like.shapes[:, 1:].max(axis=1) - like.shapes[:, 0] > MARGIN
        other = (like.distances < TIMES * like.distances[:, [camera]]).any(axis=1)
        return votes(block, (exchanged - before > MARGIN) & ~flipped & ~other)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        name = data.field(key).name
        for episode, share in elected(measures):
            yield Finding(
                self.name,
                "strong",
                f"in episode {episode:,}, red and blue of {name} are exchanged: {share:.0%} of the images look more like those of "
                "the other episodes with the channels in the other order",
                episodes=(episode,),
                evidence={"share": share},
                # Where a part of the images is right, the exchange of all of them would swap this part.
                remedy=exchange_channels(name, [episode]) if share >= _WHOLE else drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return measures["votes"] / np.maximum(measures["steps"], 1)
