"""Episodes whose text belongs to another task: the episode ends like the episodes of another text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_FEWEST = 5
_RIGHT = 0.9
_TIMES = 4.0
_LEAST = 1.3
_TEXTS = 1_000


class TextsOfOtherTasks(Check):
    name = "texts_of_other_tasks"
    rule = (
        f"The last state of an episode is {_LEAST:g} times as far from the median last state of its text as from that of another text. This "
        f"ratio is below 1 in {_RIGHT:.0%} of all episodes, and {_TIMES:g} times as high as in them. A text of fewer than {_FEWEST} "
        "episodes is not looked at."
    )
    why = "A policy that is conditioned on texts learns to do another task than the task it is told."
    limits = "If the tasks do not end in poses of their own, such as where objects decide, nothing is found. Images are not looked at."
    merges = {"text": "max", "stop": "max", "state": "with stop"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.texts:
            return "the dataset has no texts"
        return data.texts if data.states else "no narrow observation has floating-point numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        lasts = np.append(block.starts[1:], len(block)) - 1
        states = [block.now(one)[lasts] for one in block.data.states]
        return {
            "text": block.now(key)[lasts, 0],
            "stop": block.start + lasts + 1,
            "state": np.hstack(states).astype(np.float64),
        }

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        for key, measures in measured.items():
            states = measures["state"]
            known = np.isfinite(states).all(axis=1)
            used, counts = np.unique(measures["text"][known], return_counts=True)
            used = used[counts >= _FEWEST]
            fit = np.flatnonzero(known & np.isin(measures["text"], used))
            if not 2 <= len(used) <= _TEXTS:
                continue
            own = np.searchsorted(used, measures["text"][fit])
            distances, nearest, others = _distances(states[fit], own, len(used))
            ratios = distances / np.maximum(others, 1e-12)
            usual = float(np.quantile(ratios, _RIGHT))
            if usual >= 1:
                continue
            wrong = np.flatnonzero(ratios > max(_LEAST, _TIMES * usual))
            texts, name = data.steps.stored.texts(key), data.field(key).name
            for number in wrong.tolist():
                episode = int(fit[number])
                text, other = texts[used[own[number]]], texts[used[nearest[number]]]
                yield Finding(
                    self.name,
                    "strong",
                    f"{name} of episode {episode:,} is {text!r}, but the last state is {ratios[number]:.1f} times nearer to the last states of "
                    f"{other!r} than to those of its own text, which {(ratios < 1).mean():.0%} of all episodes are nearest to",
                    episodes=(episode,),
                    evidence={"text": text, "nearest": other, "times": float(ratios[number])},
                    remedy=drop([episode]),
                    key=name,
                )


def _distances(
    states: NDArray[np.float64], own: NDArray[np.int64], texts: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the distance of the last state of each episode from its own text, the nearest other text, and the distance from it, [E].

    The distance from a text is the mean distance from the median last state of the text. The distance of an element counts in units
    of the usual distance from the own text.

    Args:
        states: Last state of each episode, [E, D].
        own: Number of the text of each episode, [E].
        texts: Number of texts.
    """
    middles = np.stack([np.median(states[own == text], axis=0) for text in range(texts)])
    usual = np.median(np.abs(states - middles[own]), axis=0)
    moving = usual > 0
    scaled, middles = states[:, moving] / usual[moving], middles[:, moving] / usual[moving]
    distances, others, nearest = np.zeros(len(states)), np.full(len(states), np.inf), np.zeros(len(states), np.int64)
    # A text at a time: all distances together would take more memory than the dataset.
    for text, middle in enumerate(middles):
        distance = np.abs(scaled - middle).sum(axis=1) / max(len(middle), 1)
        is_own = own == text
        distances[is_own] = distance[is_own]
        closer = ~is_own & (distance < others)
        others[closer], nearest[closer] = distance[closer], text
    return distances, nearest, others
