"""Faults of values, and of time stamps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import clean
import numpy as np
from planting import Plant, Planted, Strength, each_episode, fault

ACTION = ("action",)
_MOVING = ("cheetah", "maze", "arm", "texts", "agents", "teleop")
_MORE = (*_MOVING, "hopper", "pendulum", "reacher", "leader")
_COUNT = {"weak": 1, "medium": 5, "strong": 25}


def state_of(episode: clean.Recorded) -> tuple[str, ...]:
    """Return the key of the observation with numbers."""
    return next(key for key in episode.states if key in {("observation",), ("observation", "state")})


def _rows(episode: clean.Recorded, count: int, rng: np.random.Generator) -> Any:
    """Return chosen steps of an episode, neither the first nor the last."""
    return np.sort(rng.choice(np.arange(1, len(episode) - 1), min(count, len(episode) - 2), replace=False))


def _everywhere(change: Any) -> Plant:
    """Return the plant of a fault of the whole dataset, which changes all episodes."""

    def plant(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
        changed = {number: change(one, strength, rng) for number, one in enumerate(recording.episodes)}
        return Planted(recording.replaced(changed), frozenset())

    plant.__name__ = change.__name__
    return plant


@fault("not_finite", "cheetah", "maze", "agents", "teleop", "ant", "patients", "prices")
@each_episode
def nan_in_actions(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    actions = episode.array(ACTION)
    actions[_rows(episode, _COUNT[strength], rng), ..., 0] = np.nan
    return episode.with_arrays({ACTION: actions})


@fault("not_finite", *_MORE)
@each_episode
def infinite_states(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    states = episode.array(state_of(episode))
    states[_rows(episode, _COUNT[strength], rng), ..., -1] = np.inf
    return episode.with_arrays({state_of(episode): states})


@fault("outliers", *_MORE, "cartpole", "building")
def spikes_in_states(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """A single value of an element, 4, 20 or 1,000 times the range of the element away."""
    key = state_of(recording.episodes[0])
    return _spikes(recording, key, {"weak": 4.0, "medium": 20.0, "strong": 1000.0}[strength], rng)


@fault("outliers", *_MOVING)
def spikes_in_actions(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    return _spikes(recording, ACTION, {"weak": 4.0, "medium": 20.0, "strong": 1000.0}[strength], rng)


def _spikes(recording: clean.Recording, key: tuple[str, ...], ranges: float, rng: np.random.Generator) -> Planted:
    values = np.concatenate([one.array(key) for one in recording.episodes])
    size = float(np.ptp(values[..., 0]))

    @each_episode
    def spike(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
        array = episode.array(key)
        array[_rows(episode, 1, rng), ..., 0] += rng.choice([-1, 1]) * ranges * size
        return episode.with_arrays({key: array})

    return spike(recording, "weak", rng)


@fault("saturated_actions", "cheetah", "arm", "texts", "teleop")
@each_episode
def actions_clipped(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """An element is clipped so that it is at its limit in 25 %, 45 % or 70 % of the steps."""
    actions = episode.array(ACTION)
    share = {"weak": 0.25, "medium": 0.45, "strong": 0.7}[strength]
    actions[:, 0] = np.minimum(actions[:, 0], np.quantile(actions[:, 0], 1 - share))
    return episode.with_arrays({ACTION: actions})


@fault("actions_outside_space", "cheetah", "maze", "agents")
@each_episode
def actions_too_large(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    actions = episode.array(ACTION)
    excess = {"weak": 0.001, "medium": 0.05, "strong": 1.0}[strength]
    actions[_rows(episode, _COUNT[strength], rng), ..., 0] = 1 + excess
    return episode.with_arrays({ACTION: actions})


@fault("actions_outside_space", "cartpole")
@each_episode
def unknown_actions(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    actions = episode.array(ACTION)
    actions[_rows(episode, _COUNT[strength], rng)] = {"weak": 2, "medium": 2, "strong": -1}[strength]
    return episode.with_arrays({ACTION: actions})


@fault("angle_wraps", "teleop")
@each_episode
def heading_wraps(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The heading crosses the limit once in the middle of the episode, or turns further."""
    key = ("observation", "heading")
    return episode.with_arrays({key: _wrapped(episode.array(key), strength)})


@fault("angle_wraps", "arm", "texts", "teleop")
def joint_wraps(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """A joint is stored in degrees, and crosses the limit in some episodes."""
    key = state_of(recording.episodes[0])
    chosen = rng.choice(len(recording.episodes), 3, replace=False).tolist()
    changed = {}
    for number, one in enumerate(recording.episodes):
        values = one.array(key).astype(np.float64)
        if number in chosen:
            values[:, :1] = _wrapped(values[:, :1], strength)
        values[:, 0] *= 180 / np.pi
        changed[number] = one.with_arrays({key: values.astype(np.float32)})
    return Planted(recording.replaced(changed), frozenset(chosen))


def _wrapped(angles: Any, strength: Strength) -> Any:
    """Return angles [T + 1, 1] in radians that cross the limit: about once, a few times, or all the time."""
    times = {"weak": 1.0, "medium": 1.5, "strong": 3.0}[strength]
    turned = times * (angles.astype(np.float64) - angles[len(angles) // 2]) + np.pi
    return ((turned + np.pi) % (2 * np.pi) - np.pi).astype(angles.dtype)


@fault("stuck_elements", *_MORE)
@each_episode
def sensor_sticks(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = state_of(episode)
    return episode.with_arrays({key: _stuck(episode.array(key), strength, rng)})


@fault("stuck_elements", "cheetah", "arm", "texts", "teleop")
@each_episode
def actuator_sticks(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    return episode.with_arrays({ACTION: _stuck(episode.array(ACTION), strength, rng)})


def _stuck(values: Any, strength: Strength, rng: np.random.Generator) -> Any:
    count = int({"weak": 0.4, "medium": 0.6, "strong": 1.0}[strength] * len(values))
    first = int(rng.integers(0, len(values) - count + 1))
    values[first : first + count, ..., 1] = values[first, ..., 1]
    return values


@fault("constant_fields", *_MORE, "cartpole")
@_everywhere
def sensor_missing(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = state_of(episode)
    states = episode.array(key)
    states[..., : {"weak": 1, "medium": 2, "strong": states.shape[-1]}[strength]] = 0
    return episode.with_arrays({key: states})


@fault("constant_fields", *_MORE, "cartpole")
@_everywhere
def actuator_missing(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    actions = episode.array(ACTION)
    actions[..., : {"weak": 1, "medium": 2, "strong": actions.shape[-1]}[strength]] = 0
    return episode.with_arrays({ACTION: actions})


@fault("unit_changes", *_MOVING, "hopper", "pendulum", "leader", "ant")
@each_episode
def states_in_degrees(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    key = state_of(episode)
    return episode.with_arrays({key: _scaled(episode.array(key), 180 / np.pi, strength)})


@fault("unit_changes", *_MOVING)
@each_episode
def actions_in_tenths(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    return episode.with_arrays({ACTION: _scaled(episode.array(ACTION), 0.1, strength)})


def _scaled(values: Any, factor: float, strength: Strength) -> Any:
    first = int({"weak": 0.7, "medium": 0.4, "strong": 0.0}[strength] * len(values))
    values[first:] = values[first:] * factor
    return values


@fault("normalized_twice", *_MOVING)
def states_normalized(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    return _normalized(recording, state_of(recording.episodes[0]), strength, rng)


@fault("normalized_twice", "cheetah", "arm", "texts", "agents", "teleop")
def actions_normalized(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    return _normalized(recording, ACTION, strength, rng)


def _normalized(
    recording: clean.Recording, key: tuple[str, ...], strength: Strength, rng: np.random.Generator
) -> Planted:
    """In some episodes, or in their last half, or in their last third, the mean is subtracted and the deviation divided by."""
    values = np.concatenate([one.array(key) for one in recording.episodes]).astype(np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0) + 1e-8

    @each_episode
    def normalize(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
        array = episode.array(key)
        first = int({"weak": 2 / 3, "medium": 0.5, "strong": 0.0}[strength] * len(array))
        array[first:] = (array[first:] - mean) / deviation
        return episode.with_arrays({key: array})

    return normalize(recording, strength, rng)


_SHARES = {"weak": 0.15, "medium": 0.25, "strong": 0.4}


@fault("normalized_twice", "cheetah", "texts", "agents", "teleop")
def part_normalized(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The last 15 %, 25 % or 40 % of the episodes have normalized states and actions."""
    first = len(recording.episodes) - round(_SHARES[strength] * len(recording.episodes))
    changed = {number: recording.episodes[number] for number in range(first, len(recording.episodes))}
    for key in (state_of(recording.episodes[0]), ACTION):
        values = np.concatenate([one.array(key) for one in recording.episodes]).astype(np.float64)
        mean, deviation = values.mean(axis=0), values.std(axis=0) + 1e-8
        for number, one in changed.items():
            array = ((one.array(key) - mean) / deviation).astype(np.float32)
            changed[number] = one.with_arrays({key: array})
    return Planted(replace(recording.replaced(changed), bounds=None), frozenset(changed))


@fault("unit_changes", *_MOVING)
def part_in_degrees(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The states of the last 15 %, 25 % or 40 % of the episodes are in degrees."""
    first = len(recording.episodes) - round(_SHARES[strength] * len(recording.episodes))
    key = state_of(recording.episodes[0])
    changed = {
        number: one.with_arrays({key: (one.array(key) * 180 / np.pi).astype(np.float32)})
        for number, one in enumerate(recording.episodes)
        if number >= first
    }
    return Planted(recording.replaced(changed), frozenset(changed))


_ORIENTATION = ("observation", "orientation")


@fault("quaternions", "teleop")
@each_episode
def norms_off(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    values = episode.array(_ORIENTATION)
    factor = {"weak": 1.04, "medium": 1.2, "strong": 0.0}[strength]
    values[_rows(episode, _COUNT[strength], rng)] *= factor
    return episode.with_arrays({_ORIENTATION: values})


@fault("quaternions", "teleop")
@each_episode
def signs_flip(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    values = episode.array(_ORIENTATION)
    for row in _rows(episode, _COUNT[strength], rng).tolist():
        values[row:] *= -1
    return episode.with_arrays({_ORIENTATION: values})


_STAMP = ("timestamp",)


@fault("time_gaps", "teleop", "leader")
@each_episode
def frames_missing(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """One, three or ten frames in a row are missing."""
    count = {"weak": 1, "medium": 3, "strong": 10}[strength]
    first = int(rng.integers(5, len(episode) - count - 5))
    kept = np.delete(np.arange(len(episode) + 1), np.arange(first, first + count))
    return replace(
        episode,
        states={key: np.asarray(value)[kept] for key, value in episode.states.items()},
        steps={key: value[kept[:-1]] for key, value in episode.steps.items()},
    )


@fault("time_gaps", "teleop", "leader")
@each_episode
def time_goes_back(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """A stamp is repeated, two stamps are exchanged, or the clock is set back by a second."""
    times = episode.array(_STAMP)
    row = int(_rows(episode, 1, rng)[0])
    if strength == "weak":
        times[row + 1] = times[row]
    elif strength == "medium":
        times[[row, row + 1]] = times[[row + 1, row]]
    else:
        times[row:] -= 1
    return episode.with_arrays({_STAMP: times})


@fault("time_jitter", "teleop")
@each_episode
def clock_jitters(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    return episode.with_arrays({_STAMP: _jittered(episode.array(_STAMP), strength, rng)})


@fault("time_jitter", "teleop")
@_everywhere
def all_clocks_jitter(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    return episode.with_arrays({_STAMP: _jittered(episode.array(_STAMP), strength, rng)})


def _jittered(times: Any, strength: Strength, rng: np.random.Generator) -> Any:
    """Return ascending times with steps that deviate from the usual step by 20 %, 30 % or 40 %, in the mean."""
    share = {"weak": 0.2, "medium": 0.3, "strong": 0.4}[strength]
    steps = np.diff(times, axis=0) * (1 + share * rng.choice([-1, 1], (len(times) - 1, 1)))
    return np.concatenate([times[:1], times[:1] + np.cumsum(steps, axis=0)])
