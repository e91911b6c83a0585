"""Stand-ins for the libraries of other projects, with the names and the rules that the adapters rely on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest


class ActionSpace(Enum):
    CONTINUOUS = 1
    DISCRETE = 2


@dataclass
class Signature:
    dtype: Any
    shape: Any


@dataclass(frozen=True)
class Episode:
    observations: Any
    actions: Any
    rewards: Any
    terminated: bool

    def size(self):
        return len(self.actions)

    @property
    def transition_count(self):
        return self.size() - (not self.terminated)

    @property
    def observation_signature(self):
        parts = self.observations if isinstance(self.observations, (list, tuple)) else [self.observations]
        return Signature([part.dtype for part in parts], [part.shape[1:] for part in parts])

    @property
    def action_signature(self):
        return Signature([self.actions.dtype], [self.actions.shape[1:]])

    @property
    def reward_signature(self):
        return Signature([self.rewards.dtype], [self.rewards.shape[1:]])


@dataclass(frozen=True)
class Transition:
    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    next_action: Any
    terminal: float
    interval: int
    rewards_to_go: Any


@dataclass(frozen=True)
class TransitionMiniBatch:
    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    next_actions: Any
    terminals: Any
    intervals: Any
    transitions: Any


class BasicTransitionPicker:
    """A step with the following step, or with zeros after a terminated step."""

    def __call__(self, episode, index):
        assert index < episode.transition_count
        ends = episode.terminated and index == episode.size() - 1

        def at(values, row):
            return [part[row] for part in values] if isinstance(values, list) else values[row]

        zeros = [
            np.zeros_like(part[0])
            for part in ([*episode.observations] if isinstance(episode.observations, list) else [episode.observations])
        ]
        following = (
            (zeros if isinstance(episode.observations, list) else zeros[0])
            if ends
            else at(episode.observations, index + 1)
        )
        return Transition(
            at(episode.observations, index),
            episode.actions[index],
            episode.rewards[index],
            following,
            np.zeros_like(episode.actions[index]) if ends else episode.actions[index + 1],
            float(ends),
            1,
            episode.rewards[index:],
        )


class ReplayBuffer:
    """A buffer that draws single transitions by numpy's global generator."""

    def __init__(self, buffer, transition_picker=None, trajectory_slicer=None, *, episodes=(), **info):
        self.buffer, self.transition_picker = buffer, transition_picker or BasicTransitionPicker()
        self.trajectory_slicer, self.dataset_info = trajectory_slicer, info
        for episode in episodes:
            for index in range(episode.transition_count):
                buffer.append(episode, index)

    episodes = property(lambda self: self.buffer.episodes)
    transition_count = property(lambda self: self.buffer.transition_count)

    def size(self):
        return len(self.episodes)

    def append_episode(self, episode):
        self.buffer.append(episode, 0)

    def sample_transition(self):
        episode, index = self.buffer[np.random.randint(self.transition_count)]  # noqa: NPY002 - as d3rlpy
        return self.transition_picker(episode, index)

    def sample_transition_batch(self, batch_size):
        found = [self.sample_transition() for _ in range(batch_size)]

        def stack(name):
            values = [getattr(one, name) for one in found]
            if isinstance(values[0], list):
                return [np.stack(parts).astype(np.float32) for parts in zip(*values, strict=True)]
            return np.stack(values).astype(np.float32)

        names = {"observations": "observation", "actions": "action", "rewards": "reward"}
        names |= {"next_observations": "next_observation", "next_actions": "next_action"}
        batch = {plural: stack(name) for plural, name in names.items()}
        batch |= {
            plural: stack(name)[:, None] for plural, name in {"terminals": "terminal", "intervals": "interval"}.items()
        }
        return TransitionMiniBatch(**batch, transitions=found)


@pytest.fixture
def d3rlpy(monkeypatch):
    """The module ``d3rlpy.dataset``, or a stand-in where d3rlpy is not installed."""
    if find_spec("d3rlpy") is None:
        package, constants, dataset = (ModuleType(name) for name in ("d3rlpy", "d3rlpy.constants", "d3rlpy.dataset"))
        constants.ActionSpace = ActionSpace
        for one in (Episode, Transition, TransitionMiniBatch, BasicTransitionPicker, ReplayBuffer):
            setattr(dataset, one.__name__, one)
        for module in (package, constants, dataset):
            monkeypatch.setitem(sys.modules, module.__name__, module)
    from d3rlpy import dataset

    return dataset
