"""Steps that choose, name, cast and join fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import FIXED, mapped, need, rekeyed
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, as_key, dotted

__all__ = ["Cast", "Exclude", "FlatObservation", "Rename", "Select"]

_TO = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_MATRIX = 2
"""Axes of a field that goes into a vector, at most: pictures have more."""


def _kept(block: EpisodeBatch, kept: Iterable[Key]) -> EpisodeBatch:
    """Return the block with some fields and those that every dataset has."""
    keys = {*kept, *FIXED}
    return rekeyed(block, lambda key: key if key in keys else None)


def _below(block: EpisodeBatch, names: Iterable[str]) -> set[Key]:
    """Return the fields of these names, and those below them.

    Raises:
        InvalidArgumentError: If there is none of a name; all such at once.
    """
    every = {*block.steps, *block.states}
    found = {name: {key for key in every if key[: len(as_key(name))] == as_key(name)} for name in names}
    lacking = [name for name, keys in found.items() if not keys]
    if lacking:
        raise InvalidArgumentError(f"there is no field {', '.join(lacking)}")
    return set().union(*found.values())


@dataclass
class Select(Step):
    """Keep these fields, and those that every dataset has; a name stands for all below it."""

    keys: tuple[str, ...]

    summary = "these fields only"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with fewer fields."""
        return _kept(block, _below(block, self.keys))


@dataclass
class Exclude(Step):
    """Drop these fields; a name stands for all below it."""

    keys: tuple[str, ...]

    summary = "all but these fields"

    def __post_init__(self) -> None:
        if fixed := [name for name in self.keys if as_key(name) in FIXED]:
            raise InvalidArgumentError(f"every dataset has {', '.join(fixed)}")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with fewer fields."""
        gone = _below(block, self.keys)
        return _kept(block, [key for key in (*block.steps, *block.states) if key not in gone])


@dataclass
class Rename(Step):
    """Give a field, or all below a name, another name."""

    old: str
    new: str

    summary = "another name for a field"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with other names."""
        moved = _below(block, [self.old])
        old, new = as_key(self.old), as_key(self.new)

        def name(key: Key) -> Key:
            return (*new, *key[len(old) :]) if key in moved else key

        taken = {*block.steps, *block.states} - moved
        if clash := sorted(dotted(name(key)) for key in moved if name(key) in taken):
            raise InvalidArgumentError(f"there is {', '.join(clash)} already")
        if fixed := sorted(dotted(key) for key in moved & FIXED):
            raise InvalidArgumentError(f"every dataset has {', '.join(fixed)}")
        return rekeyed(block, name)


@dataclass
class Cast(Step):
    """Store fields as another dtype.

    Args:
        dtype: bool, uint8, int8 to int64, or float16 to float64.
        keys: The fields; by default all of floating point, for a dtype of floating point. Numbers must fit: whole ones
            come out as they went in.
    """

    dtype: str
    keys: tuple[str, ...] = ()

    summary = "fields as another dtype"

    def __post_init__(self) -> None:
        if self.dtype not in _TO:
            raise InvalidArgumentError(f"dtype is {self.dtype!r}; expected one of {', '.join(_TO)}")
        if not self.keys and not self.dtype.startswith("float"):
            raise InvalidArgumentError(f"keys is empty; expected the fields that become {self.dtype}")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with its fields cast."""
        every = {**block.steps, **block.states}
        keys = need(block, self.keys) or [key for key, values in every.items() if values.dtype.kind == "f"]
        if texts := sorted(dotted(key) for key in keys if key in block.vocabulary):
            raise InvalidArgumentError(f"{', '.join(texts)} holds text")
        return mapped(block, keys, self._cast)

    def _cast(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        dtype = np.dtype(self.dtype)
        if dtype == values.dtype:
            return values
        try:
            with np.errstate(over="raise", invalid="raise"):
                found = values.astype(dtype)
        except FloatingPointError as error:
            raise InvalidArgumentError(f"{dotted(key)} holds numbers that do not fit {self.dtype}") from error
        if dtype.kind != "f" and not np.can_cast(values.dtype, dtype) and (odd := values[found != values]).size:
            raise InvalidArgumentError(f"{dotted(key)} holds {odd.flat[0]}, which does not fit {self.dtype}")
        return found


@dataclass
class FlatObservation(Step):
    """Join states into one vector, [N, D], in the order of their dotted names; the order is stored.

        observation.position [2], observation.velocity [3]     ->     observation [5]: 2 of position, 3 of velocity

    Args:
        keys: The states, in the order in which they are joined; by default all below `key` that are no pictures, by
            their names.
        key: Where the vector goes.
    """

    keys: tuple[str, ...] = ()
    key: str = "observation"
    _order: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    requires_fit = True
    summary = "the parts of an observation as one vector"

    def fit(self, blocks: Iterable[EpisodeBatch]) -> None:
        """See what is there, in the first block."""
        block = next(iter(blocks))
        keys = need(block, self.keys) or sorted(
            key
            for key, values in block.states.items()
            if key[: len(as_key(self.key))] == as_key(self.key)
            and values.ndim - 1 <= _MATRIX
            and values.dtype != np.uint8
        )
        odd = [dotted(key) for key in keys if key not in block.states or key in block.vocabulary]
        if odd or not keys:
            raise InvalidArgumentError(
                f"{', '.join(odd)} is no state of numbers" if odd else f"no state of numbers below {self.key}"
            )
        into = as_key(self.key)
        if left := [dotted(key) for key in block.states if key[: len(into)] == into and key not in keys]:
            raise InvalidArgumentError(
                f"{', '.join(left)} would stay below {self.key}", hint="name another place with key=, or exclude it"
            )
        self._order = {dotted(key): int(np.prod(block.states[key].shape[1:])) for key in keys}

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The states in their order, with how many numbers each has: ``a 2, b 3``."""
        return {"order": ", ".join(f"{name} {width}" for name, width in self._order.items())}

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with the vector in the place of its parts."""
        keys = [as_key(name) for name in self._order]
        dtype = np.result_type(*(block.states[key].dtype for key in keys))
        if dtype.kind != "f":
            dtype = np.dtype(np.float32)

        def joined(arrays: Mapping[Key, NDArray[Any]], count: int) -> dict[Key, NDArray[Any]]:
            parts = [np.asarray(arrays[key]).reshape(count, -1).astype(dtype, copy=False) for key in keys]
            others = {key: values for key, values in arrays.items() if key not in keys}
            return {**others, as_key(self.key): np.concatenate(parts, axis=1)}

        return replace(
            block, states=joined(block.states, block.count), final_states=joined(block.final_states, len(block))
        )
