"""Faults of single values."""

from __future__ import annotations

import clean
import numpy as np
from planting import Strength, each_episode, fault

_COUNT = {"weak": 1, "medium": 5, "strong": 25}


@fault("not_finite", "cheetah", "maze", "agents", "teleop")
@each_episode
def nan_in_actions(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    actions = episode.array(("action",))
    rows = rng.choice(len(actions), min(_COUNT[strength], len(actions)), replace=False)
    actions[rows, ..., 0] = np.nan
    return episode.with_arrays({("action",): actions})
