"""Faults of the contents: pauses, rewards, success, texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import clean
import numpy as np
from planting import PLANTED, Planted, Strength, each_episode, fault

TEXT = ("instruction",)


@fault("idle_spans", "maze", "arm", "texts", "teleop", "leader", "hopper")
@each_episode
def pause(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The robot stands still for 15, 25 or 50 steps. Sensors have their noise, and the action says to stay."""
    count = {"weak": 15, "medium": 25, "strong": 50}[strength]
    row = int(rng.choice([0, len(episode) // 2, len(episode) - 1]))
    taken = np.insert(np.arange(len(episode) + 1), row, np.full(count, row))
    states = {key: _taken(value, taken) for key, value in episode.states.items()}
    if ("observation", "state") in states and ("observation", "goal") not in states:
        values = states["observation", "state"]
        noise = 0.002 * rng.normal(size=(count, values.shape[1]))
        values[row : row + count] += noise.astype(values.dtype)
    steps = {key: value[np.minimum(taken[:-1], len(episode) - 1)] for key, value in episode.steps.items()}
    steps["action",][row : row + count] = steps["action",][row]
    return replace(episode, states=states, steps=steps)


def _taken(value: object, rows: object) -> object:
    return list(np.asarray(value)[rows]) if isinstance(value, list) else np.asarray(value)[rows]


@fault("constant_rewards", *clean.KINDS)
def rewards_zero(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """All rewards are 0, or -1, or 1 in episodes without an end of their own."""
    value = {"weak": 0.0, "medium": -1.0, "strong": 1.0}[strength]
    ends = {"terminated": False} if strength != "weak" else {}
    changed = {
        number: one.with_arrays({clean.REWARD: np.full_like(one.array(clean.REWARD), value)}, **ends)
        for number, one in enumerate(recording.episodes)
    }
    return Planted(replace(recording.replaced(changed), rewarded=True), frozenset())


@fault("success_columns", "maze", "arm")
def success_inverted(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """One, three or five episodes say the contrary of what their return says."""
    count = {"weak": 1, "medium": 3, "strong": 5}[strength]
    chosen = rng.choice(len(recording.episodes), count, replace=False).tolist()
    changed = {
        number: replace(one, metadata={"success": not one.metadata["success"]})
        for number, one in enumerate(recording.episodes)
        if number in chosen
    }
    return Planted(recording.replaced(changed), frozenset(chosen))


@fault("success_columns", "maze", "arm")
def success_never(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """No episode is a success, of 12, 25 or 40 episodes."""
    count = {"weak": 12, "medium": 25, "strong": 40}[strength]
    episodes = tuple(replace(one, metadata={"success": False}) for one in recording.episodes[:count])
    return Planted(replace(recording, episodes=episodes), frozenset())


@fault("texts_unlike", "texts")
@each_episode
def text_empty(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The text is empty, or a blank, or empty in the first half of the steps."""
    texts = episode.array(TEXT)
    count = len(texts) // 2 if strength == "weak" else len(texts)
    texts[:count] = [" " if strength == "medium" else ""] * count
    return episode.with_arrays({TEXT: texts})


@fault("texts_unlike", "texts")
@each_episode
def text_in_another_spelling(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    spell: dict[str, Callable[[str], str]] = {
        "weak": lambda text: _typo(text, rng),
        "medium": lambda text: text.replace("the ", "  "),
        "strong": lambda text: text.capitalize() + ".",
    }
    text = spell[strength](episode.array(TEXT)[0])
    return episode.with_arrays({TEXT: [text] * (len(episode) + 1)})


def _typo(text: str, rng: np.random.Generator) -> str:
    """Return a text without a letter of the longest word."""
    word = max(text.split(), key=len)
    place = int(rng.integers(1, len(word)))
    return text.replace(word, word[:place] + word[place + 1 :])


@fault("texts_of_other_tasks", "texts")
def text_of_another_task(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The text is that of another task. Weak and medium: the episode ends before its task is done."""
    chosen = rng.choice(len(recording.episodes), PLANTED, replace=False).tolist()
    known = sorted({one.array(TEXT)[0] for one in recording.episodes})
    changed = {}
    for number in chosen:
        one = recording.episodes[number]
        steps = int({"weak": 0.9, "medium": 0.95, "strong": 1.0}[strength] * len(one))
        other = rng.choice([text for text in known if text != one.array(TEXT)[0]])
        changed[number] = one.part(0, steps).with_arrays({TEXT: [str(other)] * (steps + 1)})
    return Planted(recording.replaced(changed), frozenset(chosen))
