"""Faults of the alignment of states, actions and rewards."""

from __future__ import annotations

from dataclasses import replace

import clean
import numpy as np
from planting import Planted, Strength, each_episode, fault

_ACTION = ("action",)
_STATES = (
    "cheetah",
    "maze",
    "cartpole",
    "arm",
    "texts",
    "agents",
    "teleop",
    "pendulum",
    "reacher",
    "hopper",
    "stations",
    "leader",
)


@fault("action_shift", *_STATES)
@each_episode
def actions_shifted(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """Weak: in the second half of the episode. Strong: by two steps."""
    return _shifted(episode, _ACTION, strength, -1 if rng.random() < 0.5 else 1)


@fault("action_shift", *_STATES)
def all_actions_shifted(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Weak: in seven of ten episodes."""
    share = 0.7 if strength == "weak" else 1.0
    steps = (2 if strength == "strong" else 1) * (-1 if rng.random() < 0.5 else 1)
    episodes = [
        _moved(one, _ACTION, steps, 0) if number < share * len(recording.episodes) else one
        for number, one in enumerate(recording.episodes)
    ]
    return Planted(replace(recording, episodes=tuple(episodes)), frozenset())


@fault("reward_shift", "cheetah", "agents", "pendulum")
@each_episode
def rewards_shifted(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """Weak: in the second half of the episode. Strong: by two steps."""
    return _shifted(episode, clean.REWARD, strength, -1 if rng.random() < 0.5 else 1)


@fault("reward_shift", "maze", "texts", "arm", "stations")
@each_episode
def rewards_early(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The reward at the end is stored one, two or three steps early."""
    steps = {"weak": 1, "medium": 2, "strong": 3}[strength]
    rewards = np.zeros_like(episode.array(clean.REWARD))
    rewards[-1 - steps] = 1
    return episode.with_arrays({clean.REWARD: rewards}, terminated=True)


@fault("reward_shift", "cheetah")
def all_rewards_early(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Weak: in seven of ten episodes."""
    share = 0.7 if strength == "weak" else 1.0
    episodes = [
        _moved(one, clean.REWARD, -2 if strength == "strong" else -1, 0)
        if number < share * len(recording.episodes)
        else one
        for number, one in enumerate(recording.episodes)
    ]
    return Planted(replace(recording, episodes=tuple(episodes)), frozenset())


@fault("observation_shift", *_STATES)
def observations_after(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The observation after each action is stored as the one before it, and the last one twice. Weak: in one episode."""
    count = {"weak": 1, "medium": 5, "strong": len(recording.episodes)}[strength]
    chosen = rng.choice(len(recording.episodes), count, replace=False).tolist()
    changed = {}
    for number in chosen:
        one = recording.episodes[number]
        states = {
            key: [*value[1:], value[-1]] if isinstance(value, list) else np.concatenate([value[1:], value[-1:]])
            for key, value in one.states.items()
        }
        changed[number] = replace(one, states=states)
    return Planted(recording.replaced(changed), frozenset(chosen))


def _shifted(one: clean.Recorded, key: tuple[str, ...], strength: Strength, sign: int) -> clean.Recorded:
    start = len(one) // 2 if strength == "weak" else 0
    return _moved(one, key, sign * (2 if strength == "strong" else 1), start)


def _moved(one: clean.Recorded, key: tuple[str, ...], steps: int, start: int) -> clean.Recorded:
    """Return the episode with the values from a step on so many steps later."""
    values = one.array(key)
    source = np.clip(np.arange(start, len(one)) - steps, start, len(one) - 1)
    values[start:] = one.array(key)[source]
    return one.with_arrays({key: values})
