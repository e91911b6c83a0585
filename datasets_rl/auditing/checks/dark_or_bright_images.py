"""Black images, and over-exposed images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import BRIGHT, DARK, Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_SHARE = 0.6
_USUAL = 0.05


class DarkOrBrightImages(Check):
    name = "dark_or_bright_images"
    rule = (
        f"Of the pixels of an image, more than {_SHARE:.0%} are below {DARK}, or above {BRIGHT}, of 255, which holds for at "
        f"most {_USUAL:.0%} of all images of the camera."
    )
    why = "A covered or blinded camera shows the policy nothing to act on."
    limits = "Games with a black background have dark images as a rule, and are not found."
    merges = {"dark": "sum", "bright": "sum", "first": "min", "stop": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        return data.images or "the dataset has no images"

    def measure(self, block: Block, key: Key) -> Measures:
        dark, bright = block.pixels(key).dark > _SHARE, block.pixels(key).bright > _SHARE
        rows = np.arange(block.start, block.stop)
        return {
            "dark": block.sums(dark),
            "bright": block.sums(bright),
            "first": block.minima(np.where(dark | bright, rows, np.iinfo(np.int64).max)),
            "stop": block.maxima(np.where(dark | bright, rows + 1, -1)),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        name = data.field(key).name
        for kind, word in (("dark", "black"), ("bright", "over-exposed")):
            counts = measures[kind]
            found = np.flatnonzero(counts)
            if counts.sum() > max(_USUAL * len(data), 1):
                continue
            for episode in found.tolist():
                first, stop = int(measures["first"][episode]), int(measures["stop"][episode])
                yield Finding(
                    self.name,
                    "strong",
                    f"{counted(int(counts[episode]), 'image')} of {name} in episode {episode:,} {'is' if counts[episode] == 1 else 'are'} {word}, "
                    f"between the rows {first:,} and {stop - 1:,}: the camera may have been {'covered' if kind == 'dark' else 'blinded'}",
                    episodes=(episode,),
                    rows=((first, stop),),
                    evidence={"images": int(counts[episode]), "kind": word},
                    remedy=drop([episode]),
                    key=name,
                )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return np.maximum(measures["dark"], measures["bright"]).astype(np.float64)
