"""Helpers that several steps share: access to fields by name, and pseudorandom numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.split_mix import GOLDEN, mix_bits
from datasets_rl.ted.episode import zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, as_key

FIXED = frozenset({NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED})
"""The keys of the fields that every dataset has."""

V = TypeVar("V")
Change = Callable[[Key, NDArray[Any]], NDArray[Any]]


def require_keys(batch: EpisodeBatch, names: Iterable[str]) -> list[Key]:
    """Return the keys of the fields with these names.

    Raises:
        InvalidArgumentError: If fields are missing. The error names all of these fields.
    """
    keys = [as_key(name) for name in names]
    missing = [".".join(key) for key in keys if key not in batch.steps and key not in batch.states]
    if missing:
        raise InvalidArgumentError(f"there is no field {', '.join(missing)}")
    return keys


def with_steps(batch: EpisodeBatch, steps: Mapping[Key, NDArray[Any]]) -> EpisodeBatch:
    """Return the batch with some fields of its steps, as opposed to states, added or replaced."""
    return replace(batch, steps={**batch.steps, **steps})


def map_fields(batch: EpisodeBatch, keys: Iterable[Key], change: Change) -> EpisodeBatch:
    """Return the batch with a function applied to some fields, and to the final states of a field that is a state."""
    steps, states, final_states = dict(batch.steps), dict(batch.states), dict(batch.final_states)
    for key in keys:
        if key in steps:
            steps[key] = change(key, np.asarray(steps[key]))
        else:
            states[key] = change(key, np.asarray(states[key]))
            final_states[key] = zero_unknown_states(change(key, np.asarray(final_states[key])), batch.final_known)
    return replace(batch, steps=steps, states=states, final_states=final_states)


def rename_fields(batch: EpisodeBatch, name: Callable[[Key], Key | None]) -> EpisodeBatch:
    """Return the batch with its fields renamed by a function.

    Fields for which the function returns None are dropped.
    """

    def renamed(values: Mapping[Key, V]) -> dict[Key, V]:
        return {new: value for key, value in values.items() if (new := name(key)) is not None}

    return replace(
        batch,
        steps=renamed(batch.steps),
        states=renamed(batch.states),
        final_states=renamed(batch.final_states),
        vocabulary=renamed(batch.vocabulary),
        compressed=frozenset(renamed(dict.fromkeys(batch.compressed, True))),
    )


def random_floats(seed: int, numbers: NDArray[Any], places: NDArray[Any]) -> NDArray[np.float64]:
    """Return a pseudorandom float in [0, 1) for each step, [N].

    It depends only on the seed, the number of the episode and the index of the step in its episode (`places`): the
    finalizer of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators") is applied
    once for each of the three.
    """
    state = np.full(len(numbers), seed % (1 << 64), np.uint64)
    for values in (numbers, places):
        state = mix_bits(state + GOLDEN) + values.astype(np.uint64)
    return unit_floats(mix_bits(state + GOLDEN))


def unit_floats(integers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return 64-bit integers divided by 2^64, rounded down to 53 bits, in [0, 1)."""
    return (integers >> np.uint64(11)).astype(np.float64) * 2.0**-53
