"""Two episodes that are stored as a single episode: inside the episode is a step as no other step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import split_at
from datasets_rl.ted.keys import Key

_FEWEST = 500
_MARGIN = 0.5
_TIMES = 1.5
_SHARE = 0.1


class JoinedEpisodes(Check):
    name = "joined_episodes"
    rule = (
        "A step inside an episode fits neither of two linear models of all steps: the score, the mean of log(1 + error) over the "
        f"elements, exceeds the 99 % quantile q99 by {_MARGIN:g} and by {_TIMES:g} times q99 - q50, and is {_TIMES:g} times the highest "
        f"score of nine of ten episodes."
    )
    why = "The values of the states before the seam are learned from the start of another episode."
    limits = (
        "If an episode starts where the episode before ended, nothing jumps. Of elements that stand still in most steps nothing "
        "is known. If more than a tenth of the episodes jump, the jumps belong to the environment."
    )
    merges = {"forward": "max", "forward_row": "with forward", "joint": "max", "joint_row": "with joint"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data) < _FEWEST:
            return f"the dataset has fewer than {_FEWEST} steps"
        if not data.states or not data.dynamics.elements:
            return "no floating-point observation moves in most steps"
        return [()]

    def measure(self, block: Block, key: Key) -> Measures:
        scores = block.data.dynamics.scores(block)
        highest = block.maxima(scores)
        return {
            "forward": highest[:, 0],
            "forward_row": block.row_of(scores[:, 0], highest[:, 0]),
            "joint": highest[:, 1],
            "joint_row": block.row_of(scores[:, 1], highest[:, 1]),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        half, high = np.quantile(data.dynamics.usual, [0.5, 0.99], axis=0)
        scores = np.stack([measures["forward"], measures["joint"]], axis=1)
        most = _TIMES * np.quantile(scores, 1 - _SHARE, axis=0)
        scores /= np.maximum(high + np.maximum(_MARGIN, _TIMES * (high - half)), most)
        found = np.flatnonzero(scores.max(axis=1) > 1)
        rows = np.stack([measures["forward_row"], measures["joint_row"]], axis=1)
        for episode in found.tolist():
            row = int(rows[episode, scores[episode].argmax()])
            times = float(scores[episode].max())
            yield Finding(
                self.name,
                "strong",
                f"the observation jumps between the rows {row:,} and {row + 1:,} of episode {episode:,}, {times:.1f} times as far "
                "as the limit for steps of this dataset: two episodes may be joined there, or steps are missing",
                episodes=(episode,),
                rows=((row, row + 2),),
                evidence={"times_limit": times, "row": row},
                remedy=split_at(data, [row + 1]),
            )
