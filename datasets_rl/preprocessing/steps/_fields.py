"""What several steps need: fields by their names, and numbers that look drawn by chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.episode import known_only
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, as_key

__all__ = ["FIXED", "as_fractions", "drawn", "mapped", "need", "rekeyed", "with_steps"]

FIXED = frozenset({NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED})
"""What every dataset has under these names."""

V = TypeVar("V")
Change = Callable[[Key, NDArray[Any]], NDArray[Any]]


def need(block: EpisodeBatch, names: Iterable[str]) -> list[Key]:
    """Return the keys of these fields.

    Raises:
        InvalidArgumentError: If one is not there; all such at once.
    """
    keys = [as_key(name) for name in names]
    lacking = [".".join(key) for key in keys if key not in block.steps and key not in block.states]
    if lacking:
        raise InvalidArgumentError(f"there is no field {', '.join(lacking)}")
    return keys


def with_steps(block: EpisodeBatch, steps: Mapping[Key, NDArray[Any]]) -> EpisodeBatch:
    """Return the block with some of what happens once a step added or changed."""
    return replace(block, steps={**block.steps, **steps})


def mapped(block: EpisodeBatch, keys: Iterable[Key], change: Change) -> EpisodeBatch:
    """Return the block with some fields changed value by value; states at t and final ones alike, each once."""
    steps, states, final_states = dict(block.steps), dict(block.states), dict(block.final_states)
    for key in keys:
        if key in steps:
            steps[key] = change(key, np.asarray(steps[key]))
        else:
            states[key] = change(key, np.asarray(states[key]))
            final_states[key] = known_only(change(key, np.asarray(final_states[key])), block.final_known)
    return replace(block, steps=steps, states=states, final_states=final_states)


def rekeyed(block: EpisodeBatch, name: Callable[[Key], Key | None]) -> EpisodeBatch:
    """Return the block with other keys, and without the fields for which there is None."""

    def renamed(values: Mapping[Key, V]) -> dict[Key, V]:
        return {new: value for key, value in values.items() if (new := name(key)) is not None}

    return replace(
        block,
        steps=renamed(block.steps),
        states=renamed(block.states),
        final_states=renamed(block.final_states),
        vocabulary=renamed(block.vocabulary),
    )


def drawn(seed: int, numbers: NDArray[Any], places: NDArray[Any]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each step, [N]: from the seed, its episode's number and its place alone.

    The finaliser of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators"), once
    for each of the three.
    """
    state = np.full(len(numbers), seed % (1 << 64), np.uint64)
    for word in (numbers, places):
        state = _mixed(state) + word.astype(np.uint64)
    return as_fractions(_mixed(state))


def as_fractions(vocabulary: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return whole numbers of 64 bits as fractions of their range, in [0, 1)."""
    return (vocabulary >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
