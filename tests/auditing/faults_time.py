"""Faults of the order and of the ends of steps."""

from __future__ import annotations

import clean
import numpy as np
from planting import Planted, Strength, each_episode, fault

_STEPS = {"weak": 5, "medium": 10, "strong": 20}


@fault("frozen_frames", "arm", "teleop")
@each_episode
def camera_freezes(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = ("observation", "wrist") if ("observation", "wrist") in episode.states else ("observation", "front")
    images = episode.array(key)
    first = int(rng.integers(5, len(episode) - _STEPS[strength]))
    images[first : first + _STEPS[strength]] = images[first]
    return episode.with_arrays({key: images})


@fault("joined_episodes", "cheetah", "maze", "cartpole", "texts", "agents", "teleop", "pendulum", "reacher", "leader")
def episodes_joined(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Three pairs of neighbors become single episodes. Weak: the jump is a tenth of the way to the other episode."""
    share = {"weak": 0.3, "medium": 0.7, "strong": 1.0}[strength]
    episodes, joined, number = [], [], 0
    chosen = {4, 17, 30}
    while number < len(recording.episodes):
        one = recording.episodes[number]
        if number in chosen:
            other = recording.episodes[number + 1]
            joined.append(len(episodes))
            one = _join(one, other, share)
            number += 1
        episodes.append(one)
        number += 1
    return Planted(clean.Recording(recording.kind, tuple(episodes), recording.metadata), frozenset(joined))


def _join(one: clean.Recorded, other: clean.Recorded, share: float) -> clean.Recorded:
    def after(key: tuple[str, ...], value: object) -> object:
        if isinstance(value, list):
            return value
        values = np.asarray(other.states[key])
        if values.dtype.kind != "f":
            return values
        # The second episode is moved towards the end of the first: only a share of the jump is left.
        offset = (1 - share) * (np.asarray(value)[-1].astype(np.float64) - values[0])
        return (values + offset).astype(values.dtype)

    states = {}
    for key, value in one.states.items():
        if isinstance(value, list):
            states[key] = [*value[:-1], *other.states[key]]
        else:
            states[key] = np.concatenate([np.asarray(value)[:-1], np.asarray(after(key, value))])
    steps = {key: np.concatenate([value, other.steps[key]]) for key, value in one.steps.items()}
    return clean.Recorded(states, steps, other.terminated, other.metadata)
