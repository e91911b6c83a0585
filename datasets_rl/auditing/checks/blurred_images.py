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
        f"The mean difference of neighboring pixels in an episode is below {_TIMES:g} times the median of all episodes, and "
        f"{_SPREADS:g} median absolute deviations below the median, on a logarithmic scale."
    )
    why = "Details that the policy needs, such as the edge of a grasped part, are missing."
    limits = (
        "Scenes of different detail have no usual sharpness. Blur in a few images of an episode is not found. Lossy video of small "
        "images loses the details that blur loses: blur is mostly missed there."
    )
    merges = {"contrast": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < FEWEST_EPISODES:
            return f"the dataset has fewer than {FEWEST_EPISODES} episodes"
        return data.images or "the dataset has no images"

    def measure(self, block: Block, key: Key) -> Measures:
        return {"contrast": block.sums(block.pixels(key).contrast), "steps": block.sums(np.ones(len(block)))}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        contrast = np.log(np.maximum(measures["contrast"] / measures["steps"], 1e-3))
        middle = float(np.median(contrast))
        spread = max(float(np.median(np.abs(contrast - middle))), 0.01)
        name = data.field(key).name
        for episode in np.flatnonzero(contrast < min(middle + np.log(_TIMES), middle - _SPREADS * spread)).tolist():
            share = float(np.exp(contrast[episode] - middle))
            yield Finding(
                self.name,
                "strong",
                f"the images of {name} in episode {episode:,} are blurred: neighboring pixels differ {share:.0%} as much as in the "
                "other episodes",
                episodes=(episode,),
                evidence={"contrast": share},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return -np.asarray(measures["contrast"] / measures["steps"], np.float64)
