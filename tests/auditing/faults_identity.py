"""Faults of identity: episodes that are in the dataset twice."""

from __future__ import annotations

from dataclasses import replace

import clean
import numpy as np
from planting import Planted, Strength, fault


@fault(
    "duplicate_episodes",
    "cheetah",
    "maze",
    "arm",
    "texts",
    "agents",
    "teleop",
    "hopper",
    "leader",
    "patients",
    "building",
)
def episodes_twice(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    copies = {"weak": 1, "medium": 2, "strong": 4}[strength]
    originals = rng.choice(len(recording.episodes), copies, replace=False).tolist()
    episodes = (*recording.episodes, *(recording.episodes[number] for number in originals))
    return Planted(
        clean.Recording(recording.kind, episodes, recording.metadata),
        frozenset([*originals, *range(len(recording.episodes), len(episodes))]),
    )


@fault(
    "near_duplicates", "cheetah", "maze", "cartpole", "arm", "texts", "agents", "teleop", "pendulum", "leader", "ant"
)
def copies_changed(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Copies of three episodes. Strong: other actions. Medium: half precision, too. Weak: trimmed by up to 5 % at both ends, too."""
    fit = [number for number, one in enumerate(recording.episodes) if len(one) >= 20]
    originals = rng.choice(fit, 3, replace=False).tolist()
    copies = []
    for number in originals:
        one = recording.episodes[number]
        action = one.array(("action",))
        changed = {("action",): 0.5 * action + action.dtype.type(0.1) if action.dtype.kind == "f" else action}
        if strength != "strong":
            changed |= {
                key: value.astype(np.float16).astype(value.dtype)
                for key, value in one.states.items()
                if not isinstance(value, list) and value.dtype.kind == "f" and key != ("timestamp",)
            }
        if strength == "strong" and action.dtype.kind != "f":
            changed[("action",)] = action[::-1].copy()
        one = one.with_arrays(changed)
        if strength == "weak":
            first, last = (int(rng.integers(0, len(one) // 20 + 1)) for _ in range(2))
            one = one.part(first, len(one) - last)
        copies.append(one)
    count = len(recording.episodes)
    return Planted(
        replace(recording, episodes=(*recording.episodes, *copies)),
        frozenset([*originals, *range(count, count + len(copies))]),
    )


@fault("repeated_seeds", "cheetah", "maze", "cartpole", "agents", "pendulum", "hopper", "ant")
def seeds_again(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Episodes begin as others do, and go on differently after 1, 2 or 4 repetitions of a seed."""
    count = {"weak": 1, "medium": 2, "strong": 4}[strength]
    chosen = rng.choice(len(recording.episodes), 2 * count, replace=False).tolist()
    changed = {}
    for source, number in zip(chosen[:count], chosen[count:], strict=True):
        one, other = recording.episodes[source], recording.episodes[number]
        states = {key: np.concatenate([one.states[key][:1], value[1:]]) for key, value in other.states.items()}
        changed[number] = replace(other, states=states)
    return Planted(recording.replaced(changed), frozenset(chosen))


@fault("shared_splits", "cheetah", "maze", "arm", "texts", "agents", "teleop")
def copies_in_validation(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """Episodes of the training part are in the validation part, too."""
    copies = {"weak": 1, "medium": 2, "strong": 4}[strength]
    marked = [
        replace(one, metadata={**one.metadata, "split": "validation" if number >= 32 else "train"})
        for number, one in enumerate(recording.episodes)
    ]
    originals = rng.choice(32, copies, replace=False).tolist()
    twins = [
        replace(marked[number], metadata={**marked[number].metadata, "split": "validation"}) for number in originals
    ]
    count = len(marked)
    return Planted(
        replace(recording, episodes=(*marked, *twins)), frozenset([*originals, *range(count, count + copies)])
    )


@fault("shared_episodes", "cheetah", "maze", "arm", "texts", "agents", "teleop", "pendulum", "leader")
def parts_share_episodes(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The validation part is a dataset of its own, and has one, two or four episodes of the training part."""
    copies = {"weak": 1, "medium": 2, "strong": 4}[strength]
    training, validation = recording.episodes[:32], recording.episodes[32:]
    shared = tuple(training[number] for number in rng.choice(32, copies, replace=False).tolist())
    other = replace(recording, episodes=(*validation, *shared))
    return Planted(replace(recording, episodes=training), frozenset(), (other,))
