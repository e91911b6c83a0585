"""Episodes whose images are blurred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.auditing.scenes import FEWEST_EPISODES
from datasets_rl.ted.keys import Key

_TIMES = 0.75
_SPREADS = 8.0


class BlurredImages(Check):
    name = "blurred_images"
    rule = (
        "The height of the steepest edges in an episode, which is the mean fourth power of the differences of neighboring pixels by their "
        f"mean square, as a root, is below {_TIMES:g} times the median of all episodes, and {_SPREADS:g} median absolute deviations below "
        "the median, on a logarithmic scale."
    )
    why = "Details that the policy needs, such as the edge of a grasped part, are missing."
    limits = (
        "Scenes of different detail have no usual sharpness. Blur in a few images of an episode is not found: every eighth image is "
        "looked at."
    )
    merges = {"squares": "sum", "fourths": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < FEWEST_EPISODES:
            return f"the dataset has fewer than {FEWEST_EPISODES} episodes"
        return data.images or "the dataset has no images"

    def measure(self, block: Block, key: Key) -> Measures:
        squares, fourths = block.edges(key).T
        return {"squares": block.sums(squares), "fourths": block.sums(fourths)}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        # The quotient depends on the steepest edges, which lossy video keeps, and not on how many edges and how much noise there are.
        sharpness = np.log(_sharpness(measures))
        middle = float(np.median(sharpness))
        spread = max(float(np.median(np.abs(sharpness - middle))), 0.01)
        name = data.field(key).name
        for episode in np.flatnonzero(sharpness < min(middle + np.log(_TIMES), middle - _SPREADS * spread)).tolist():
            share = float(np.exp(sharpness[episode] - middle))
            yield Finding(
                self.name,
                "strong",
                f"the images of {name} in episode {episode:,} are blurred: edges are {share:.0%} as steep as in the other episodes",
                episodes=(episode,),
                evidence={"sharpness": share},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return -_sharpness(measures)


def _sharpness(measures: Measures) -> NDArray[np.float64]:
    sharpness: NDArray[np.float64] = np.sqrt(
        np.maximum(measures["fourths"], 1e-3) / np.maximum(measures["squares"], 1e-3)
    )
    return sharpness
