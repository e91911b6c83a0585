"""Episodes in which two cameras are exchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.auditing.scenes import FEWEST_EPISODES, SHARE, VOTES, likeness
from datasets_rl.ted.keys import Key

_LEAST = 8.0
TIMES = 0.7


class CamerasSwapped(Check):
    name = "cameras_swapped"
    rule = (
        f"In {SHARE:.0%} of the steps of an episode, the image of each of two cameras is closer to the usual image of the other camera "
        f"than {TIMES:g} times the distance from its own. The usual images differ by more than {_LEAST:g} of 255."
    )
    why = "A policy takes the view of a wrist for the view of a table."
    limits = f"Cameras of different shapes are not compared. Fewer than {FEWEST_EPISODES} episodes show nothing."
    merges = VOTES

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < FEWEST_EPISODES:
            return f"the dataset has fewer than {FEWEST_EPISODES} episodes"
        return data.images if len(data.images) > 1 else "the dataset has fewer than two cameras"

    def measure(self, block: Block, key: Key) -> Measures:
        distances, cameras = likeness(block, key).distances, block.data.images
        swapped = distances < TIMES * distances[:, [cameras.index(key)]]
        own = block.data.usual_image(key)
        for number, other in enumerate(cameras):
            image = block.data.usual_image(other)
            if image.shape == own.shape and np.sqrt(((image - own) ** 2).mean()) <= _LEAST:
                swapped[:, number] = False
        return {"votes": block.sums(swapped), "steps": block.sums(np.ones(len(block), np.int64))}

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        keys = list(measured)
        for first, second in combinations(range(len(keys)), 2):
            shares = np.stack(
                [
                    measured[keys[one]]["votes"][:, other] / np.maximum(measured[keys[one]]["steps"], 1)
                    for one, other in ((first, second), (second, first))
                ]
            ).min(axis=0)
            names = data.field(keys[first]).name, data.field(keys[second]).name
            for episode in np.flatnonzero(shares >= SHARE).tolist() if np.quantile(shares, 0.75) < 0.05 else ():
                yield Finding(
                    self.name,
                    "strong",
                    f"in episode {episode:,}, the cameras {names[0]} and {names[1]} are exchanged in {shares[episode]:.0%} of the "
                    "steps: each shows what the other shows in the other episodes",
                    episodes=(episode,),
                    evidence={"cameras": list(names), "share": float(shares[episode])},
                    remedy=drop([episode]),
                    key=names[0],
                )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        share: NDArray[np.float64] = measures["votes"].max(axis=1) / np.maximum(measures["steps"], 1)
        return share
