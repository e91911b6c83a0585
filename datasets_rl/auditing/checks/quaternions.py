"""Quaternions with another norm than 1, or with a sign that flips between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding, counted
from datasets_rl.auditing.remedy import align_signs, drop
from datasets_rl.ted.keys import Key

_TOLERANCE = 0.02
_FEWEST = 0.9
_USUAL = 0.2


class Quaternions(Check):
    name = "quaternions"
    rule = (
        f"Four neighboring elements of an observation or action have norm 1 in {_FEWEST:.0%} of all steps. In a step the norm differs "
        f"from 1 by more than {_TOLERANCE:g}, or the quaternion is about the negative of the one before."
    )
    why = "q and -q are one rotation: a network sees a jump where nothing turns."
    limits = (
        f"In more than {_USUAL:.0%} of the episodes, other norms are a hint. The norm in the first step is not looked at: simulators add noise. "
        "Axis angles are not looked at."
    )
    merges = {"norms": "sum", "flips": "sum", "row": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        keys = [key for key in [*data.states, *data.actions] if _groups(data, key)]
        return keys or "no four neighboring elements have norm 1"

    def measure(self, block: Block, key: Key) -> Measures:
        now, after = block.now(key).astype(np.float64), block.after(key).astype(np.float64)
        norms, flips = np.zeros(len(block), np.bool_), np.zeros(len(block), np.bool_)
        for first in _groups(block.data, key):
            one, two = now[:, first : first + 4], after[:, first : first + 4]
            norms |= np.abs(np.linalg.norm(one, axis=1) - 1) > _TOLERANCE
            flips |= ((one * two).sum(axis=1) < -0.7) & block.has_after
        # Simulators add noise to a quaternion at a reset, and scale it to norm 1 in the first step.
        norms &= block.time > 0
        rows = np.arange(block.start, block.stop)
        return {
            "norms": block.sums(norms),
            "flips": block.sums(flips),
            "row": block.maxima(np.where(norms | flips, rows, -1)),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        name = data.field(key).name
        first = _groups(data, key)[0]
        where = f"{data.element(key, first)} and the next three elements"
        for kind, what, remedy in (
            ("norms", "are not a unit quaternion", None),
            ("flips", "change their sign from one step to the next", align_signs(name, first)),
        ):
            counts = measures[kind]
            found = np.flatnonzero(counts)
            if not len(found):
                continue
            if len(found) > max(3, _USUAL * len(counts)):
                yield Finding(
                    self.name,
                    "hint" if kind == "norms" else "strong",
                    f"{where} {what} in {len(found):,} of {len(counts):,} episodes",
                    episodes=tuple(found.tolist()),
                    evidence={"steps": int(counts.sum()), "kind": kind},
                    remedy=remedy or drop(found.tolist()),
                    key=name,
                )
                continue
            for episode in found.tolist():
                row = int(measures["row"][episode])
                yield Finding(
                    self.name,
                    "strong",
                    f"{where} {what} in {counted(int(counts[episode]), 'step')} of episode {episode:,}, last in row {row:,}",
                    episodes=(episode,),
                    rows=((row, row + 1),),
                    evidence={"steps": int(counts[episode]), "kind": kind},
                    remedy=remedy or drop([episode]),
                    key=name,
                )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return (measures["norms"] + measures["flips"]).astype(np.float64)


def _groups(data: Data, key: Key) -> list[int]:
    """Return the first elements of groups of four elements with norm 1."""
    values = data.sample(key).now
    values = values[np.isfinite(values).all(axis=1)]
    if values.shape[1] < 4 or len(values) < 10:
        return []
    squares = np.pad(np.cumsum(values**2, axis=1), ((0, 0), (1, 0)))
    norms = np.sqrt(np.maximum(squares[:, 4:] - squares[:, :-4], 0))
    unit = (np.abs(norms - 1) < 0.01).mean(axis=0) >= _FEWEST
    # A one-hot code has norm 1, too, and pairs of sine and cosine have the norm of the square root of 2.
    varied = np.array([len(np.unique(values[:500, first : first + 4])) > 20 for first in range(len(unit))])
    found: list[int] = []
    for first in np.flatnonzero(unit & varied).tolist():
        if not found or first >= found[-1] + 4:
            found.append(first)
    return found
