"""Images that are ahead of the states, or behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import shift
from datasets_rl.auditing.sight import LAGS, Sight
from datasets_rl.ted.keys import Key

_GAIN = 0.05
_LEAST = 0.2
_FEWEST = 20
_FEWEST_STEPS = 400
_ZERO = int(np.flatnonzero(LAGS == 0)[0])


class VideoLag(Check):
    name = "video_lag"
    rule = (
        f"A model predicts the images from the states up to {LAGS[-1]} steps before and after. At another lag than 0, or than in the "
        f"other episodes, the model explains at least {_LEAST:.0%} of the variance of the images, and {_GAIN:.0%} more."
    )
    why = "The policy sees the past, and acts too late, or sees the result of an action before the action."
    limits = (
        "Scenes that the states do not explain show nothing. A slow motion, or a periodic motion, fits at several lags."
    )
    merges = {"steps": "sum", "errors": "sum", "errors2": "sum", "images": "sum", "images2": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < _FEWEST_STEPS:
            return f"the dataset has fewer than {_FEWEST_STEPS} steps"
        if not data.images:
            return "the dataset has no images"
        return data.images if data.states else "the dataset has no narrow states"

    def measure(self, block: Block, key: Key) -> Measures:
        sight = block.data.sight(key)
        errors, images, inside = sight.errors(block, _common(sight))
        errors, images = errors * inside[:, None, None], images * inside[:, None]
        return {
            "steps": block.sums(inside),
            "errors": block.sums(errors),
            "errors2": block.sums((errors**2).sum(axis=2)),
            "images": block.sums(images),
            "images2": block.sums((images**2).sum(axis=1)),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        sight, name = data.sight(key), data.field(key).name
        common = _common(sight)
        if common != _ZERO:
            lag = int(LAGS[common])
            yield self._finding(name, lag, sight.explained[common], sight.explained[_ZERO], None)
        steps = np.maximum(measures["steps"], 1).astype(np.float64)
        variance = measures["images2"] / steps - ((measures["images"] / steps[:, None]) ** 2).sum(axis=1)
        errors = measures["errors2"] / steps[:, None] - ((measures["errors"] / steps[:, None, None]) ** 2).sum(axis=2)
        explained = 1 - errors / np.maximum(variance, 1e-12)[:, None]
        # At the right lag, the lag at which the errors are lowest is that of the other episodes.
        best = explained.argmax(axis=1)
        highest, own = explained.max(axis=1), explained[:, common]
        found = (
            (measures["steps"] >= _FEWEST)
            & (np.abs(best - common) >= 2)
            & (highest >= _LEAST)
            & (highest >= own + _GAIN)
        )
        if found.mean() > 0.25:
            return
        for episode in np.flatnonzero(found).tolist():
            yield self._finding(name, int(LAGS[best[episode]]), highest[episode], own[episode], episode)

    def _finding(self, name: str, lag: int, best: float, own: float, episode: int | None) -> Finding:
        side = "behind" if lag < 0 else "ahead of"
        where = "in most episodes" if episode is None else f"in episode {episode:,}"
        return Finding(
            self.name,
            "strong",
            f"{where}, the images of {name} are {abs(lag)} steps {side} the states: the states explain {best:.0%} of the images at this "
            f"lag, and {max(own, 0):.0%} without",
            episodes=() if episode is None else (episode,),
            evidence={"steps": lag, "explained": float(best), "explained_now": float(own)},
            remedy=shift(name, -lag, () if episode is None else [episode]),
            key=name,
        )


def _common(sight: Sight) -> int:
    """Return the index of the lag at which most images fit: that of 0 unless another fits clearly better."""
    best = int(sight.explained.argmax())
    clear = sight.explained[best] >= _LEAST and sight.explained[best] >= sight.explained[_ZERO] + _GAIN
    return best if clear and abs(best - _ZERO) >= 2 else _ZERO
