"""Steps that select, rename, cast and concatenate fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import FIXED, mapped, need, rekeyed
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, as_key, dotted

__all__ = ["Cast", "Exclude", "FlatObservation", "Rename", "Select"]

_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_MAX_AXES = 2
"""The maximum number of axes of a field that is concatenated into a vector: images have more."""


def _kept(batch: EpisodeBatch, kept: Iterable[Key]) -> EpisodeBatch:
    """Return the batch with only some fields, and those that every dataset has."""
    keys = {*kept, *FIXED}
    return rekeyed(batch, lambda key: key if key in keys else None)


def _below(batch: EpisodeBatch, names: Iterable[str]) -> set[Key]:
    """Return the keys of the fields with these names, and of those nested below them.

    Raises:
        InvalidArgumentError: If names match no field; the error has all of them.
    """
    all_keys = {*batch.steps, *batch.states}
    matches = {name: {key for key in all_keys if key[: len(as_key(name))] == as_key(name)} for name in names}
    missing = [name for name, keys in matches.items() if not keys]
    if missing:
        raise InvalidArgumentError(f"there is no field {', '.join(missing)}")
    return set().union(*matches.values())


@dataclass
class Select(Step):
    """Keep these fields, and those that every dataset has; a name includes the fields nested below it."""

    keys: tuple[str, ...]

    summary = "these fields only"

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        return _kept(batch, _below(batch, self.keys))


@dataclass
class Exclude(Step):
    """Drop these fields; a name includes the fields nested below it."""

    keys: tuple[str, ...]

    summary = "all but these fields"

    def __post_init__(self) -> None:
        if fixed := [name for name in self.keys if as_key(name) in FIXED]:
            raise InvalidArgumentError(f"every dataset has {', '.join(fixed)}")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        dropped = _below(batch, self.keys)
        return _kept(batch, [key for key in (*batch.steps, *batch.states) if key not in dropped])


@dataclass
class Rename(Step):
    """Rename a field, or all fields nested below a name."""

    old: str
    new: str

    summary = "another name for a field"

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        moved = _below(batch, [self.old])
        old, new = as_key(self.old), as_key(self.new)

        def name(key: Key) -> Key:
            return (*new, *key[len(old) :]) if key in moved else key

        taken = {*batch.steps, *batch.states} - moved
        if clash := sorted(dotted(name(key)) for key in moved if name(key) in taken):
            raise InvalidArgumentError(f"the field {', '.join(clash)} exists already")
        if fixed := sorted(dotted(key) for key in moved & FIXED):
            raise InvalidArgumentError(f"every dataset has {', '.join(fixed)}")
        return rekeyed(batch, name)


@dataclass
class Cast(Step):
    """Cast fields to another dtype.

    Args:
        dtype: bool, uint8, int8 to int64, or float16 to float64.
        keys: The fields; by default all floating-point fields if `dtype` is a floating-point dtype. The values must
            fit: they must be in the range of `dtype`, and a cast to an integer dtype must not change them.
    """

    dtype: str
    keys: tuple[str, ...] = ()

    summary = "fields as another dtype"

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgumentError(f"dtype is {self.dtype!r}; expected one of {', '.join(_DTYPES)}")
        if not self.keys and not self.dtype.startswith("float"):
            raise InvalidArgumentError(f"keys is empty; expected the fields that become {self.dtype}")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        arrays = {**batch.steps, **batch.states}
        keys = need(batch, self.keys) or [key for key, values in arrays.items() if values.dtype.kind == "f"]
        if texts := sorted(dotted(key) for key in keys if key in batch.vocabulary):
            raise InvalidArgumentError(f"{', '.join(texts)} holds text")
        return mapped(batch, keys, self._cast)

    def _cast(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        dtype = np.dtype(self.dtype)
        if dtype == values.dtype:
            return values
        try:
            with np.errstate(over="raise", invalid="raise"):
                result = values.astype(dtype)
        except FloatingPointError as error:
            raise InvalidArgumentError(f"{dotted(key)} holds numbers that do not fit {self.dtype}") from error
        if dtype.kind != "f" and not np.can_cast(values.dtype, dtype) and (changed := values[result != values]).size:
            raise InvalidArgumentError(f"{dotted(key)} holds {changed.flat[0]}, which does not fit {self.dtype}")
        return result


@dataclass
class FlatObservation(Step):
    """Concatenate states into one vector, [N, D], in the order of their dotted names; the order is stored.

        observation.position [2], observation.velocity [3]     ->     observation [5]: 2 of position, 3 of velocity

    Args:
        keys: The states, in the order of concatenation; by default all states below `key` except for images, sorted by
            name.
        key: The name of the vector.
    """

    keys: tuple[str, ...] = ()
    key: str = "observation"
    _order: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    requires_fit = True
    summary = "the parts of an observation as one vector"

    def fit(self, blocks: Iterable[EpisodeBatch]) -> None:
        """Determine the states and their sizes from the first batch."""
        batch = next(iter(blocks))
        keys = need(batch, self.keys) or sorted(
            key
            for key, values in batch.states.items()
            if key[: len(as_key(self.key))] == as_key(self.key)
            and values.ndim - 1 <= _MAX_AXES
            and values.dtype != np.uint8
        )
        not_numeric = [dotted(key) for key in keys if key not in batch.states or key in batch.vocabulary]
        if not_numeric or not keys:
            raise InvalidArgumentError(
                f"{', '.join(not_numeric)} is not a numeric state"
                if not_numeric
                else f"there is no numeric state below {self.key}"
            )
        target = as_key(self.key)
        if remaining := [dotted(key) for key in batch.states if key[: len(target)] == target and key not in keys]:
            raise InvalidArgumentError(
                f"{', '.join(remaining)} would stay below {self.key}",
                hint="choose another name with key=, or exclude it",
            )
        self._order = {dotted(key): int(np.prod(batch.states[key].shape[1:])) for key in keys}

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The names of the states in order, each with its number of elements: ``a 2, b 3``."""
        return {"order": ", ".join(f"{name} {width}" for name, width in self._order.items())}

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        keys = [as_key(name) for name in self._order]
        dtype = np.result_type(*(batch.states[key].dtype for key in keys))
        if dtype.kind != "f":
            dtype = np.dtype(np.float32)

        def joined(arrays: Mapping[Key, NDArray[Any]], count: int) -> dict[Key, NDArray[Any]]:
            parts = [np.asarray(arrays[key]).reshape(count, -1).astype(dtype, copy=False) for key in keys]
            others = {key: values for key, values in arrays.items() if key not in keys}
            return {**others, as_key(self.key): np.concatenate(parts, axis=1)}

        return replace(
            batch, states=joined(batch.states, batch.count), final_states=joined(batch.final_states, len(batch))
        )
