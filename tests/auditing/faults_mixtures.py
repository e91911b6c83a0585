"""Faults of mixtures: members with other conventions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import clean
import numpy as np
from planting import Planted, Strength, fault

ACTION = ("action",)
_MOVING = ("cheetah", "maze", "arm", "texts", "agents", "teleop")


def _split(recording: clean.Recording, change: Callable[[clean.Recorded], clean.Recorded], **changes: Any) -> Planted:
    """Return a mixture of the first half of the episodes, and of the changed second half."""
    half = len(recording.episodes) // 2
    other = replace(recording, episodes=tuple(map(change, recording.episodes[half:])), bounds=None, **changes)
    return Planted(replace(recording, episodes=recording.episodes[:half]), frozenset(), (other,))


@fault("conventions", *_MOVING)
def actions_in_another_unit(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    factor = {"weak": 0.2, "medium": 0.1, "strong": 180 / np.pi}[strength]
    return _split(recording, lambda one: one.with_arrays({ACTION: (one.array(ACTION) * factor).astype(np.float32)}))


@fault("conventions", *clean.KINDS)
def rates_differ(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    rate = {"weak": 25.0, "medium": 15.0, "strong": 5.0}[strength]
    return _split(replace(recording, metadata={"fps": 30.0}), lambda one: one, metadata={"fps": rate})


@fault("conventions", "arm")
def gripper_sign(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The gripper is -1 or 1 in place of 0 or 1, or is open with 1, in the state, too, or in the action alone."""
    state = ("observation", "state")

    def change(one: clean.Recorded) -> clean.Recorded:
        actions, states = one.array(ACTION), one.array(state)
        if strength == "medium":
            actions[:, -1] = 2 * actions[:, -1] - 1
            return one.with_arrays({ACTION: actions})
        actions[:, -1] = 1 - actions[:, -1]
        if strength == "weak":
            states[:, -1] = 1 - states[:, -1]
        return one.with_arrays({ACTION: actions, state: states})

    return _split(recording, change)


@fault("conventions", "arm", "texts", "teleop", "cheetah")
def action_sign(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The first element, the first two, or all elements of the action have the other sign."""
    count = {"weak": 1, "medium": 2, "strong": 100}[strength]

    def change(one: clean.Recorded) -> clean.Recorded:
        actions = one.array(ACTION)
        actions[:, :count] *= -1
        return one.with_arrays({ACTION: actions})

    return _split(recording, change)


@fault("conventions", "arm", "teleop")
def cameras_named_otherwise(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """A camera has another name, in another folder, or is missing."""
    camera = ("observation", "front") if recording.kind == "arm" else ("observation", "wrist")
    name = {"weak": ("observation", "cam_high"), "medium": ("images", camera[1]), "strong": None}[strength]

    def change(one: clean.Recorded) -> clean.Recorded:
        states = {(name if key == camera and name else key): value for key, value in one.states.items()}
        if name is None:
            del states[camera]
        return replace(one, states=states)

    return _split(recording, change)
