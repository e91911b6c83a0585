"""Faults of identity: episodes that are in the dataset twice."""

from __future__ import annotations

import clean
import numpy as np
from planting import Planted, Strength, fault


@fault("duplicate_episodes", "cheetah", "maze", "arm", "texts", "agents", "teleop")
def episodes_twice(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    copies = {"weak": 1, "medium": 2, "strong": 4}[strength]
    originals = rng.choice(len(recording.episodes), copies, replace=False).tolist()
    episodes = (*recording.episodes, *(recording.episodes[number] for number in originals))
    return Planted(
        clean.Recording(recording.kind, episodes, recording.metadata),
        frozenset([*originals, *range(len(recording.episodes), len(episodes))]),
    )
