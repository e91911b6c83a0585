"""Recordings at the edge of what checks expect: the audit finishes, and finds nothing that is not there."""

from __future__ import annotations

from collections.abc import Mapping

import clean
import numpy as np


def _episode(
    states: np.ndarray, rng: np.random.Generator, *, key: tuple[str, ...] = ("observation",)
) -> clean.Recorded:
    steps = len(states) - 1
    return clean.Recorded(
        states={key: states},
        steps={
            ("action",): rng.normal(size=(steps, 2)).astype(np.float32),
            clean.REWARD: rng.normal(size=(steps, 1)).astype(np.float32),
        },
    )


def _recordings() -> dict[str, clean.Recording]:
    rng = np.random.default_rng(0)

    def walk(steps: int) -> np.ndarray:
        return np.cumsum(rng.normal(size=(steps + 1, 3)), axis=0).astype(np.float32)

    return {
        "one episode": clean.Recording("edge", (_episode(walk(60), rng),)),
        "three steps": clean.Recording("edge", (_episode(walk(3), rng),)),
        "episodes of one step": clean.Recording("edge", tuple(_episode(walk(1), rng) for _ in range(30))),
        "no states": clean.Recording("edge", tuple(_episode(walk(30), rng, key=("camera",)) for _ in range(30))),
        "NaN everywhere": clean.Recording(
            "edge", tuple(_episode(np.full((31, 3), np.nan, np.float32), rng) for _ in range(30))
        ),
        "integer states": clean.Recording(
            "edge", tuple(_episode(rng.integers(0, 9, (31, 3)).astype(np.int64), rng) for _ in range(30))
        ),
        "states that rest": clean.Recording(
            "edge", tuple(_episode(np.zeros((31, 3), np.float32) + number, rng) for number in range(30))
        ),
        "actions without effect": clean.Recording("edge", tuple(_episode(walk(40), rng) for _ in range(30))),
    }


RECORDINGS: Mapping[str, clean.Recording] = _recordings()
"""Recordings by what is unusual about each."""
