"""Steps that select, rename, cast and concatenate fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import FIXED, map_fields, rename_fields, require_keys
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, as_key, dotted_name, natural_order
from datasets_rl.ted.rewards import reward_dtype

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_MAX_AXES = 2
"""The maximum number of axes of a field that is concatenated into a vector: images have more."""


def _with_keys(batch: EpisodeBatch, kept: Iterable[Key]) -> EpisodeBatch:
    """Return the batch with only some fields, and those that every dataset has."""
    keys = {*kept, *FIXED}
    return rename_fields(batch, lambda key: key if key in keys else None)


def _keys_below(batch: EpisodeBatch, names: Iterable[str]) -> set[Key]:
    """Return the keys of the fields with these names, and of those nested below them."""
    all_keys = {*batch.steps, *batch.states}
    matches = {name: {key for key in all_keys if key[: len(as_key(name))] == as_key(name)} for name in names}
    missing = [name for name, keys in matches.items() if not keys]
    if missing:
        raise InvalidArgumentError(f"there is no field {', '.join(missing)}")
    return set().union(*matches.values())


def _names_in(batch: EpisodeBatch, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that match fields of a batch, or fields nested below them."""
    keys = {*batch.steps, *batch.states} - FIXED
    return tuple(name for name in names if any(key[: len(as_key(name))] == as_key(name) for key in keys))


@dataclass
class Select(Step):
    """Keep these fields, and the fields that every dataset has. A name includes the fields that are nested below it."""

    keys: tuple[str, ...]

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        return _with_keys(batch, _keys_below(batch, self.keys))

    @override
    def for_environment(self, fields: EpisodeBatch) -> Select:
        return Select(_names_in(fields, self.keys))


@dataclass
class Exclude(Step):
    """Drop these fields. A name includes the fields nested below it."""

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        if fixed := [name for name in self.keys if as_key(name) in FIXED]:
            raise InvalidArgumentError(f"{', '.join(fixed)} cannot be excluded: every dataset has this field")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        dropped = _keys_below(batch, self.keys)
        return _with_keys(batch, [key for key in (*batch.steps, *batch.states) if key not in dropped])

    @override
    def for_environment(self, fields: EpisodeBatch) -> Exclude | None:
        names = _names_in(fields, self.keys)
        return Exclude(names) if names else None


@dataclass
class Rename(Step):
    """Rename a field, or all fields nested below a name."""

    old: str
    new: str

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        moved = _keys_below(batch, [self.old])

        def name(key: Key) -> Key:
            return self._renamed(key) if key in moved else key

        taken = {*batch.steps, *batch.states} - moved
        if clash := sorted(dotted_name(name(key)) for key in moved if name(key) in taken):
            raise InvalidArgumentError(f"the field {', '.join(clash)} exists already")
        if fixed := sorted(dotted_name(key) for key in moved & FIXED):
            raise InvalidArgumentError(f"{', '.join(fixed)} cannot be renamed: every dataset has this field")
        return rename_fields(batch, name)

    def _renamed(self, key: Key) -> Key:
        old = as_key(self.old)
        return (*as_key(self.new), *key[len(old) :]) if key[: len(old)] == old else key

    @override
    def for_environment(self, fields: EpisodeBatch) -> Rename | None:
        return self if _names_in(fields, [self.old]) else None

    @override
    def invert_actions(
        self, actions: Mapping[Key, NDArray[Any]], before: Mapping[Key, NDArray[Any]]
    ) -> Mapping[Key, NDArray[Any]]:
        return {key: actions[self._renamed(key)] for key in before}


@dataclass
class Cast(Step):
    """Cast fields to another dtype.

    The values must fit: they must be in the range of `dtype`, and a cast to an integer dtype must not change them. Rewards
    become float32 or float64 only.

    Args:
        dtype: bool, uint8, int8 to int64, or float16 to float64.
        keys: The fields. By default all fields of the dtype `only`, or else all floating-point fields if `dtype` is a
            floating-point dtype.
        only: The dtype of the fields to cast: ``cast:float32,only=float64`` does not change float16.
    """

    dtype: str
    keys: tuple[str, ...] = ()
    only: str = ""

    def __post_init__(self) -> None:
        for name, dtype in {"dtype": self.dtype, "only": self.only or self.dtype}.items():
            if dtype not in DTYPES:
                raise InvalidArgumentError(f"{name} is {dtype!r}, expected one of {', '.join(DTYPES)}")
        if not (self.keys or self.only or self.dtype.startswith("float")):
            raise InvalidArgumentError(f"keys is empty, expected the fields that become {self.dtype}")
        if not self._suits_rewards and any(as_key(name) == NEXT_REWARD for name in self.keys):
            raise InvalidArgumentError(f"next.reward cannot become {self.dtype}, expected float32 or float64")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        keys = [key for key in require_keys(batch, self.keys) or self._castable_keys(batch) if self._casts(batch, key)]
        if texts := sorted(dotted_name(key) for key in keys if key in batch.vocabulary):
            raise InvalidArgumentError(f"{', '.join(texts)} holds text")
        return map_fields(batch, keys, self._cast)

    @override
    def for_environment(self, fields: EpisodeBatch) -> Cast | None:
        names = tuple(name for name in self.keys if as_key(name) in {**fields.steps, **fields.states})
        return None if self.keys and not names else replace(self, keys=names)

    def _castable_keys(self, batch: EpisodeBatch) -> list[Key]:
        """Return the numeric fields that may have the dtype, without those that mark the ends of episodes."""
        fixed = {NEXT_TERMINATED, NEXT_TRUNCATED, *batch.vocabulary}
        fixed |= set() if self._suits_rewards else {NEXT_REWARD}
        return [key for key in (*batch.steps, *batch.states) if key not in fixed]

    @property
    def _suits_rewards(self) -> bool:
        return np.dtype(self.dtype) == reward_dtype(self.dtype)

    def _casts(self, batch: EpisodeBatch, key: Key) -> bool:
        dtype = (batch.steps[key] if key in batch.steps else batch.states[key]).dtype
        return dtype == self.only if self.only else bool(self.keys) or dtype.kind == "f"

    def _cast(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        dtype = np.dtype(self.dtype)
        if dtype == values.dtype:
            return values
        try:
            with np.errstate(over="raise", invalid="raise"):
                result = values.astype(dtype)
        except FloatingPointError as error:
            raise InvalidArgumentError(f"{dotted_name(key)} holds numbers that do not fit {self.dtype}") from error
        if dtype.kind != "f" and not np.can_cast(values.dtype, dtype) and (changed := values[result != values]).size:
            raise InvalidArgumentError(f"{dotted_name(key)} holds {changed.flat[0]}, which does not fit {self.dtype}")
        return result


@dataclass
class Concatenate(Step):
    """Concatenate fields into one vector, or along an axis. The order of the fields is stored.

        observation.position [2], observation.velocity [3]     ->     observation [5]: 2 of position, 3 of velocity

    All of them are states, or none is.

    Args:
        keys: The fields, in the order of concatenation. A name of several fields stands for those that are numeric and
            not images, sorted by name: ``joint_2`` before ``joint_10``. By default all states below `key`.
        key: The name of the result, which replaces them.
        dim: The axis of concatenation, counted from the last axis, -1. By default all axes of a field become one.
            Without it, the result holds floating-point numbers.
    """

    keys: tuple[str, ...] = ()
    key: str = "observation"
    dim: int | None = None
    _order: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    requires_fit = True

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim >= 0:
            raise InvalidArgumentError(f"dim is {self.dim}, expected a negative axis, counted from the last one")
        if fixed := [name for name in (self.key, *self.keys) if as_key(name) in FIXED]:
            raise InvalidArgumentError(f"{', '.join(fixed)} cannot be concatenated: every dataset has this field")

    def fit(self, batches: Iterable[EpisodeBatch]) -> None:
        """Determine the fields and their sizes from the first batch."""
        batch = next(iter(batches))
        target = as_key(self.key)
        keys = self._given_keys(batch) if self.keys else _numeric_below(batch, target, batch.states)
        if not keys:
            raise InvalidArgumentError(f"there is no numeric state below {self.key}")
        if texts := [dotted_name(key) for key in keys if key in batch.vocabulary]:
            raise InvalidArgumentError(f"{', '.join(texts)} is not numeric")
        if others := [dotted_name(key) for key in keys if key not in batch.states and keys[0] in batch.states]:
            raise InvalidArgumentError(
                f"{', '.join(others)} is not a state, as {dotted_name(keys[0])} is, expected only states, or only fields of steps"
            )
        if others := [dotted_name(key) for key in keys if key in batch.states and keys[0] not in batch.states]:
            raise InvalidArgumentError(
                f"{', '.join(others)} is a state, and {dotted_name(keys[0])} is not, expected only states, or only fields of steps"
            )
        below = [key for key in (*batch.steps, *batch.states) if key[: len(target)] == target and key not in keys]
        if remaining := list(map(dotted_name, below)):
            raise InvalidArgumentError(
                f"{', '.join(remaining)} would stay nested below {self.key}, which the step replaces",
                hint="choose another name with key=, or exclude it",
            )
        arrays = {**batch.steps, **batch.states}
        self._order = {dotted_name(key): self._flatten(arrays[key]).shape[self.dim or -1] for key in keys}

    def _given_keys(self, batch: EpisodeBatch) -> list[Key]:
        arrays = {**batch.steps, **batch.states}
        found = {name: _numeric_below(batch, as_key(name), arrays) for name in self.keys if as_key(name) not in arrays}
        require_keys(batch, [name for name in self.keys if not found.get(name)])
        return list(dict.fromkeys(key for name in self.keys for key in found.get(name, [as_key(name)])))

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The concatenated fields in order, each with its size along the concatenated axis, as a text: ``a 2, b 3``."""
        return {"order": ", ".join(f"{name} {width}" for name, width in self._order.items())}

    @override
    def restore(self, fitted: Mapping[str, Any]) -> None:
        sizes = [text.rpartition(" ") for text in str(fitted["order"]).split(", ")]
        self._order = {name: int(size) for name, _, size in sizes}

    @override
    def for_environment(self, fields: EpisodeBatch) -> Concatenate | None:
        keys = {**fields.steps, **fields.states}
        missing = [name for name in self._order if as_key(name) not in keys]
        if missing and len(missing) < len(self._order):
            raise InvalidArgumentError(f"the environment does not give {', '.join(missing)}")
        return None if missing else self

    @override
    def invert_actions(
        self, actions: Mapping[Key, NDArray[Any]], before: Mapping[Key, NDArray[Any]]
    ) -> Mapping[Key, NDArray[Any]]:
        stops = np.cumsum(list(self._order.values()))[:-1]
        parts = np.split(actions[as_key(self.key)], stops, axis=self.dim or -1)
        split = {as_key(name): part for name, part in zip(self._order, parts, strict=True)}
        return {key: split[key].reshape(before[key].shape) if key in split else actions[key] for key in before}

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        keys = [as_key(name) for name in self._order]
        if keys[0] in batch.steps:
            return replace(batch, steps=self._concatenate(batch.steps, keys))
        states, final_states = (self._concatenate(arrays, keys) for arrays in (batch.states, batch.final_states))
        return replace(batch, states=states, final_states=final_states)

    def _concatenate(self, arrays: Mapping[Key, NDArray[Any]], keys: Sequence[Key]) -> dict[Key, NDArray[Any]]:
        parts = [self._flatten(arrays[key]) for key in keys]
        try:
            result = np.concatenate(parts, axis=self.dim or -1)
        except ValueError as error:
            shapes = ", ".join(
                f"{dotted_name(key)} {list(part.shape[1:])}" for key, part in zip(keys, parts, strict=True)
            )
            raise InvalidArgumentError(f"{shapes} cannot be concatenated along axis {self.dim}") from error
        if self.dim is None and result.dtype.kind != "f":
            result = result.astype(np.float32)
        return {**{key: values for key, values in arrays.items() if key not in keys}, as_key(self.key): result}

    def _flatten(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values with one axis for each step, [N, D], unless there is an axis of concatenation."""
        return np.asarray(values).reshape(len(values), -1) if self.dim is None else np.asarray(values)


def _numeric_below(batch: EpisodeBatch, group: Key, arrays: Mapping[Key, NDArray[Any]]) -> list[Key]:
    """Return the keys below a group whose values are numbers and not images, sorted by name."""
    found = (
        key
        for key, values in arrays.items()
        if key[: len(group)] == group
        and key not in FIXED
        and key not in batch.vocabulary
        and values.ndim - 1 <= _MAX_AXES
        and values.dtype != np.uint8
    )
    return sorted(found, key=natural_order)
