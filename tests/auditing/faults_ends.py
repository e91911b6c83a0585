"""Faults of the ends of episodes."""

from __future__ import annotations

from dataclasses import replace

import clean
import numpy as np
from planting import Planted, Strength, fault


@fault("ends_at_limit", "cheetah", "maze", "agents", "cartpole")
def limits_are_terminal(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Episodes of the greatest length are marked as terminated. Weak: a third of the episodes."""
    limit = max(map(len, recording.episodes))
    cut = [number for number, one in enumerate(recording.episodes) if len(one) == limit]
    share = {"weak": 0.34, "medium": 0.67, "strong": 1.0}[strength]
    chosen = rng.choice(cut, max(3, round(share * len(cut))), replace=False).tolist()
    return Planted(
        recording.replaced({number: replace(recording.episodes[number], terminated=True) for number in chosen}),
        frozenset(chosen),
    )


@fault("missing_ends", "maze", "cartpole", "arm", "texts")
def ends_unmarked(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Terminated episodes are marked as cut off. Weak: two. Strong: all, where time limits are recorded, too."""
    limit = max(map(len, recording.episodes))
    ended = [number for number, one in enumerate(recording.episodes) if one.terminated and len(one) < limit]
    everything = strength == "strong" and recording.kind in {"maze", "cartpole"}
    count = len(ended) if everything else min(len(ended), {"weak": 2, "medium": 4, "strong": 6}[strength])
    chosen = rng.choice(ended, count, replace=False).tolist()
    return Planted(
        recording.replaced({number: replace(recording.episodes[number], terminated=False) for number in chosen}),
        frozenset(chosen),
    )


@fault(
    "final_is_reset",
    "cheetah",
    "maze",
    "cartpole",
    "arm",
    "texts",
    "agents",
    "teleop",
    "hopper",
    "pendulum",
    "reacher",
    "leader",
)
def final_of_the_next_episode(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Weak: in one episode. Strong: in all."""
    episodes = recording.episodes
    count = {"weak": 1, "medium": 5, "strong": len(episodes) - 1}[strength]
    chosen = rng.choice(len(episodes) - 1, count, replace=False).tolist()
    changed = {}
    for number in chosen:
        one, other = episodes[number], episodes[number + 1]
        states = {
            key: [*value[:-1], other.states[key][0]]
            if isinstance(value, list)
            else np.concatenate([value[:-1], other.states[key][:1]])
            for key, value in one.states.items()
        }
        changed[number] = replace(one, states=states)
    return Planted(recording.replaced(changed), frozenset(chosen))
