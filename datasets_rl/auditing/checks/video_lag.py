"""Images that are ahead of the states, or behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import Correction, dropped_by_shift, shift, shift_episode
from datasets_rl.auditing.sight import LAGS, MERGES, Sight, best_lags, sight_measures
from datasets_rl.ted.keys import Key

_STEPS = 1.3
_APART = 1.5
_GAIN = 0.1
_LIKELY, _VERY_LIKELY, _SURE = 5.0, 11.0, 25.0
_COMMON = 0.25


class VideoLag(Check):
    name = "video_lag"
    rule = (
        f"A linear model reads the states from the image. Its errors, and their changes over four steps, are lowest for the states at least "
        f"{_STEPS:g} steps before or after the image, of up to {LAGS[-1]}, and agree within {_APART:g} steps. A hint if the gain in the "
        f"changes, as a logarithm and summed over the steps, is below {_SURE:g}, or the lag is {LAGS[-1]}."
    )
    why = "The policy sees the past, and acts too late, or sees the result of an action before the action."
    limits = "Scenes that show no state, and episodes that hardly move, show nothing. Images of all episodes that are a step late are not found."
    merges = MERGES

    def targets(self, data: Data) -> Sequence[Key] | str:
        return sighted(data)

    def measure(self, block: Block, key: Key) -> Measures:
        return sight_measures(block, key)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        sight, name = data.model(Sight, key), data.field(key).name
        if sight.lag:
            remedy = shift(name, -sight.lag)
            yield self._finding(name, sight.lag, float(np.exp(sight.gain[0])), None, remedy, sure=True)
        steps, pairs = np.maximum(measures["steps"], 1), np.maximum(measures["pairs"].sum(axis=1), 1)
        means = measures["errors"] / steps[:, None, None]
        level, gain = best_lags(measures["squares"] / steps[:, None] - (means**2).sum(axis=2))
        change, gain_of_change = best_lags(measures["changes"].sum(axis=1) / pairs[:, None])
        sure = gain_of_change * pairs
        alike = (np.abs(level - change) <= _APART) & (np.abs(level) >= _STEPS) & (gain >= _GAIN) & (sure >= _LIKELY)
        found = (
            (np.abs(change) >= _STEPS)
            & (level * change > 0)
            & (alike & (np.abs(level) < LAGS[-1]) | (gain >= _GAIN) & (sure >= _VERY_LIKELY))
        )
        if found.mean() > _COMMON:
            return
        for episode in np.flatnonzero(found).tolist():
            lag = round((level[episode] + change[episode]) / 2)
            lag += sight.lag
            remedy = shift_episode(data, name, -lag, episode)
            # The best lag may lie beyond the lags that are compared, or the images fit no lag.
            clear = sure[episode] >= _SURE and abs(level[episode]) < LAGS[-1]
            yield self._finding(name, lag, float(np.exp(gain[episode])), episode, remedy, sure=clear)

    def _finding(
        self, name: str, lag: int, times: float, episode: int | None, remedy: Correction, *, sure: bool
    ) -> Finding:
        side = "behind" if lag < 0 else "ahead of"
        dropped = dropped_by_shift(-lag) if episode is None else ""
        where = "in most episodes" if episode is None else f"in episode {episode:,}"
        return Finding(
            self.name,
            "strong" if sure else "hint",
            f"{where}, the images of {name} are about {abs(lag)} steps {side} the states: they fit the states of {abs(lag)} steps "
            f"{'earlier' if lag < 0 else 'later'} {times:.1f} times better than the states of their own step{dropped}",
            episodes=() if episode is None else (episode,),
            evidence={"steps": lag, "times": times},
            remedy=remedy,
            key=name,
        )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        pairs = np.maximum(measures["pairs"].sum(axis=1), 1)
        lags, gains = best_lags(measures["changes"].sum(axis=1) / pairs[:, None])
        return np.where(np.abs(lags) >= _STEPS, gains * pairs, 0.0)


def sighted(data: Data) -> Sequence[Key] | str:
    """Return the cameras that may show states, or the reason why there are none."""
    if not data.images:
        return "the dataset has no images"
    return data.images if data.states else "the dataset has no narrow states"
