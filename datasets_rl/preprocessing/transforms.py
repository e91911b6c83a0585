"""Transforms of this package as steps of recipes.

A transform that treats each step separately is applied to each state of an episode once, instead of once at t and once
at t + 1. A transform over time (frame stacks, n-step rewards) is applied to whole episodes, as in a storage.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datasets_rl import transforms as library
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.digests import code_digest
from datasets_rl.preprocessing.steps import STEPS, snake, step_class
from datasets_rl.preprocessing.steps._fields import FIXED, Change, map_fields, rename_fields, require_keys
from datasets_rl.preprocessing.steps.images import apply_channels_first, image_keys, to_channels_last
from datasets_rl.preprocessing.tensors import from_tensors, to_tensors
from datasets_rl.ted.episode import StoredImages, zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, as_key, dotted_name
from datasets_rl.ted.table import concatenated_ranges
from datasets_rl.ted.unchecked import nest_leaves
from datasets_rl.transforms import CatFrames, Transform
from datasets_rl.transforms._time import OverTime
from datasets_rl.transforms.base import key_list
from datasets_rl.transforms.images import ToTensorImage, _ImageTransform

_BLOCK_VALUES = 1 << 16
"""Number of values that are computed in float64 at once."""
_MAX_STATED = 1 << 10
"""Largest number of elements of an argument that a manifest states."""


@cache
def transforms_by_name() -> Mapping[str, type[Transform]]:
    """Return all transforms by name in snake case: "reward_sum", "cat_frames"."""
    classes = {name: getattr(library, name) for name in library.__all__}
    return {snake(name): cls for name, cls in classes.items() if inspect.isclass(cls) and issubclass(cls, Transform)}


@dataclass
class TransformStep(Step):
    """A transform as a step, applied to the stored data.

    Args:
        transform: A transform of this package or of the user.
        written: The step as written in a recipe, if the arguments describe the transform.
    """

    transform: Any
    written: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.transform.instead and not self.transform.per_step:
            raise InvalidArgumentError(
                f"{type(self.transform).__name__} is for buffers", hint=f"use the step {self.transform.instead}"
            )

    @classmethod
    def of(cls, transform: Transform) -> TransformStep:
        """Return the step for a transform from Python, described by the arguments if a recipe can state them."""
        name, kind = snake(type(transform).__name__), type(transform)
        if name not in STEPS or step_class(name) is not kind:
            return cls(transform)
        arguments = _stated_arguments(transform)
        return cls(transform) if arguments is None else cls.from_arguments(name, kind, (), arguments)

    @classmethod
    def from_arguments(
        cls, name: str, transform_class: type[Transform], positional: Sequence[Any], named: Mapping[str, Any]
    ) -> TransformStep:
        """Return the step for the name and the arguments of a transform. Dotted keys become nested keys.

        Raises:
            InvalidArgumentError: If the transform does not accept the arguments.
        """
        signature = inspect.signature(transform_class)
        try:
            bound = signature.bind(*positional, **named)
            written = {"use": name, **bound.arguments}
            for key, value in bound.arguments.items():
                bound.arguments[key] = _parsed(value, signature.parameters[key])
            transform = transform_class(*bound.args, **bound.kwargs)
        except InvalidArgumentError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"{name} takes {signature}: {error}") from error
        return cls(transform, written)

    @property
    @override
    def is_digest(self) -> bool:
        return not self.written

    @property
    @override
    def window(self) -> int:
        return self.transform.N if isinstance(self.transform, CatFrames) else 1

    @override
    def for_environment(self, fields: EpisodeBatch) -> TransformStep | None:
        if not self.written:
            raise InvalidArgumentError("the manifest has a digest of the transform, but not its arguments")
        keys = {*fields.steps, *fields.states} - FIXED
        if isinstance(self.transform, OverTime):
            stacks_states = isinstance(self.transform, CatFrames) and self.transform.is_of_past
            others = fields.steps.keys() if stacks_states else keys
            if replaced := [dotted_name(key) for key in map(as_key, self.transform.out_keys) if key in others]:
                raise InvalidArgumentError(f"{', '.join(replaced)} depends on other steps")
            if not stacks_states:
                return None
        if self._reads_all_images:
            return self if fields.states else None
        missing = [key for key in map(as_key, self.transform.in_keys) if key not in keys]
        if not missing:
            return self
        if len(missing) == len(self.transform.in_keys):
            return None
        return self._without(missing)

    def _without(self, missing: Sequence[Key]) -> TransformStep:
        """Return the step without some of the entries."""
        old, new = self.transform.in_keys, self.transform.out_keys
        if len(old) != len(new):
            raise InvalidArgumentError(f"the environment does not give {', '.join(map(dotted_name, missing))}")
        pairs = [pair for pair in zip(old, new, strict=True) if as_key(pair[0]) not in missing]
        transform = self.transform.clone()
        transform.in_keys, transform.out_keys = ([pair[number] for pair in pairs] for number in (0, 1))
        return TransformStep(transform, {**self.written, "in_keys": transform.in_keys})

    @override
    def invert_actions(
        self, actions: Mapping[Key, NDArray[Any]], before: Mapping[Key, NDArray[Any]]
    ) -> Mapping[Key, NDArray[Any]]:
        # A result under another name is a copy, and the action is unchanged.
        changed = {as_key(key) for key in self.transform.in_keys} & {as_key(key) for key in self.transform.out_keys}

        def inverted(key: Key) -> NDArray[Any]:
            value: NDArray[Any] = self.transform.invert_value(torch.from_numpy(np.array(actions[key]))).numpy()
            return value

        return {key: inverted(key) if key in changed else actions[key] for key in before}

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        transform, names = self.transform, self._names(batch)
        kind = type(transform)
        is_own = kind.__module__.startswith("datasets_rl.")
        if isinstance(transform, _ImageTransform):
            return _apply_to_fields(batch, names, self._transform_images)
        if isinstance(transform, CatFrames) and transform.is_of_past:
            return _apply_to_states_in_time(transform, batch, names)
        if is_own and kind.transform_batch is Transform.transform_batch and _has_numbers(batch, names):
            return _apply_to_fields(batch, names, self._transform_values)
        keys = [as_key(key) for key in getattr(transform, "in_keys", ())]
        has_own_rule = transform.transform_batch.__module__.startswith("datasets_rl.")
        only_states = has_own_rule and bool(keys) and set(keys) <= batch.states.keys()
        if only_states and not isinstance(transform, OverTime):
            return self._apply_to_states(batch, set(keys))
        return _apply_to_transitions(_with_next_keys(transform) if only_states else transform, batch, is_own=is_own)

    def _names(self, batch: EpisodeBatch) -> Mapping[Key, Key]:
        """Return the fields that the transform reads by the names of the results, each state once: without `next`.

        Raises:
            InvalidArgumentError: If no state holds images, and the transform applies to all images.
        """
        if self._reads_all_images:
            return {key: key for key in image_keys(batch)}
        old, new = (map(as_key, getattr(self.transform, name, ())) for name in ("in_keys", "out_keys"))
        names = dict(zip(new, old, strict=False))
        following = {(NEXT, *key) for key in names.values() if key in batch.states}
        return {key: name for key, name in names.items() if name not in following}

    @property
    def _reads_all_images(self) -> bool:
        """Whether the transform applies to all images, of any name: the recipe has no explicit keys."""
        is_named = not self.written or bool({"in_keys", "out_keys"} & self.written.keys())
        return bool(self.transform.of_images) and not is_named

    def _transform_images(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        """Return transformed images, each in the layout of the given image."""
        del key

        def change(images: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(self.transform.transform_value(torch.from_numpy(images)).numpy())

        if isinstance(self.transform, ToTensorImage):
            return change(to_channels_last(values))
        return apply_channels_first(values, change)

    def _transform_values(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        """Return the transformed values of a field. Rewards keep the dtype."""
        transform = copy(self.transform)
        transform.in_keys = transform.out_keys = [key]

        def change(rows: NDArray[Any], *size: int) -> NDArray[Any]:
            leaves = nest_leaves({key: torch.from_numpy(rows)}, torch.Size(size))
            result: NDArray[Any] = transform(leaves).get(key).numpy()
            return result

        if not transform.in_double:
            result = change(np.array(values), len(values))
            return np.ascontiguousarray(result.astype(values.dtype, copy=False) if key == NEXT_REWARD else result)
        # A single step refuses an argument that has a number for each step of a batch.
        change(np.zeros(values.shape[1:]))
        result = np.empty(values.shape, values.dtype if values.dtype.kind == "f" else np.float32)
        # In blocks, so that the float64 values stay in the cache.
        for start in range(0, len(values), block := max(1, _BLOCK_VALUES * len(values) // max(values.size, 1))):
            rows = values[start : start + block].astype(np.float64)
            result[start : start + block] = change(rows, len(rows))
        return result

    def _apply_to_states(self, batch: EpisodeBatch, keys: set[Key]) -> EpisodeBatch:
        """Apply a transform of several entries to states: the states of the steps, and the final states."""

        def apply(arrays: Mapping[Key, Any], count: int) -> dict[Key, Any]:
            leaves = {key: torch.from_numpy(np.array(arrays[key])) for key in keys}
            result = self.transform(nest_leaves(leaves, torch.Size((count,))))
            names = result.keys(include_nested=True, leaves_only=True)
            return {as_key(name): np.ascontiguousarray(result.get(name).numpy()) for name in names}

        states, final_states = apply(batch.states, batch.count), apply(batch.final_states, len(batch))
        removed = keys - states.keys()
        for values in final_states.values():
            values[~batch.final_known] = 0
        other_states = {key: values for key, values in batch.states.items() if key not in removed}
        other_final_states = {key: values for key, values in batch.final_states.items() if key not in removed}
        return replace(batch, states=other_states | states, final_states=other_final_states | final_states)

    def to_json(self) -> dict[str, Any]:
        """Return the description for the manifest: the step as written in a recipe, or the name and a digest."""
        name = type(self.transform).__qualname__
        return dict(self.written) or {"use": "transform", "name": name, "digest": code_digest(self.transform)}


def _with_next_keys(transform: OverTime) -> OverTime:
    """Return a transform of states that also applies to the states at t + 1."""
    extended = copy(transform)
    extended.in_keys = [*transform.in_keys, *((NEXT, *as_key(key)) for key in transform.in_keys)]
    extended.out_keys = [*transform.out_keys, *((NEXT, *as_key(key)) for key in transform.out_keys)]
    return extended


def _has_numbers(batch: EpisodeBatch, names: Mapping[Key, Key]) -> bool:
    """Return whether all of some fields exist, and neither these fields nor the results mark the ends of episodes."""
    fields = {*batch.steps, *batch.states} - {NEXT_TERMINATED, NEXT_TRUNCATED}
    return bool(names) and fields.issuperset(names.values()) and not {NEXT_TERMINATED, NEXT_TRUNCATED} & names.keys()


def _apply_to_fields(batch: EpisodeBatch, names: Mapping[Key, Key], change: Change) -> EpisodeBatch:
    """Apply a function to some fields, given as new: old, and to the final states of fields that are states."""
    require_keys(batch, map(dotted_name, names.values()))
    return map_fields(_copy_fields(batch, names), names, change)


def _apply_to_states_in_time(transform: CatFrames, batch: EpisodeBatch, names: Mapping[Key, Key]) -> EpisodeBatch:
    """Apply a transform of each state and the previous states to some fields, given as new: old.

    The frames of the final state of an episode are the last frames, and the final state.
    """
    require_keys(batch, map(dotted_name, names.values()))
    batch = _copy_fields(batch, names)
    steps, states, final_states = dict(batch.steps), dict(batch.states), dict(batch.final_states)
    rows, starts = np.arange(batch.count), np.repeat(batch.table.starts, batch.lengths)
    before = np.minimum(batch.lengths, transform.N - 1)
    ends = np.cumsum(before)
    last = ends + np.arange(len(batch))
    for key in names:
        frames = np.asarray(states[key] if key in states else steps[key])
        (states if key in states else steps)[key] = transform.stack_rows(frames, rows, starts)
        if key in states:
            kept = frames[concatenated_ranges(batch.table.stops - before, before)]
            stacks = transform.stack_rows(np.insert(kept, ends, final_states[key], axis=0), last, last - before)
            final_states[key] = zero_unknown_states(stacks, batch.final_known)
    return replace(batch, steps=steps, states=states, final_states=final_states)


def _apply_to_transitions(transform: Any, batch: EpisodeBatch, *, is_own: bool) -> EpisodeBatch | None:
    """Apply a transform to the transitions of a batch.

    Images that the transform does not name are not decoded. A transform that states the keys that it reads is given
    only these keys.
    """
    read = transform.read_keys() if is_own else None
    names = {as_key(key) for name in ("in_keys", "out_keys") for key in getattr(transform, name, ())}
    if read is None:
        # A transform of the user may read more keys than in_keys, and a transform without keys applies to all fields.
        untouched = _stored_image_keys(batch) - names if names or isinstance(transform, OverTime) else set()
    else:
        names |= _read_fields(batch, map(as_key, read))
        untouched = {*batch.steps, *batch.states} - FIXED - names - {key[1:] for key in names if key[0] == NEXT}
    given = rename_fields(batch, lambda key: None if key in untouched else key)
    in_double = is_own and read is not None and transform.in_double
    data = to_tensors(given)
    result = from_tensors(transform(data.apply(_widened) if in_double else data), given, whole=False)
    if in_double and result is not None:
        steps, states, final_states = (
            _narrowed(arrays, given) for arrays in (result.steps, result.states, result.final_states)
        )
        result = replace(result, steps=steps, states=states, final_states=final_states)
    if result is None or (read is None and not untouched):
        return result
    if not np.array_equal(result.lengths, batch.lengths):
        # The transform split episodes: states at the new ends become final states, which requires all fields.
        return from_tensors(transform(to_tensors(batch)), batch, whole=False)
    return _with_fields(result, batch, untouched - {*result.steps, *result.states})


def _read_fields(batch: EpisodeBatch, keys: Iterable[Key]) -> set[Key]:
    """Return the fields of some keys of transitions: a state for a key under `next`, and the fields below a group.

    Raises:
        InvalidArgumentError: If there is no such field. The error names all missing fields.
    """
    fields = {*batch.steps, *batch.states, *((NEXT, *key) for key in batch.states)}
    found = {key: {field for field in fields if field[: len(key)] == key} for key in keys}
    if missing := [dotted_name(key) for key, below in found.items() if not below]:
        raise InvalidArgumentError(f"there is no field {', '.join(missing)}")
    return {field[field[0] == NEXT and field not in batch.steps :] for below in found.values() for field in below}


def _widened(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def _narrowed(arrays: Mapping[Key, Any], given: EpisodeBatch) -> dict[Key, Any]:
    """Return fields that were computed in float64 in the dtypes of the given fields.

    New fields have the dtype of the rewards.
    """
    dtypes = {key: values.dtype for key, values in {**given.steps, **given.states}.items()}
    return {
        key: values.astype(dtypes.get(key, dtypes[NEXT_REWARD]), copy=False) if values.dtype == np.float64 else values
        for key, values in arrays.items()
    }


def _copy_fields(batch: EpisodeBatch, names: Mapping[Key, Key]) -> EpisodeBatch:
    """Return the batch with copies of fields under new names, given as new: old. The copies replace existing fields."""
    others = rename_fields(batch, lambda key: None if key in names and names[key] != key else key)

    def copied(attribute: str) -> dict[Key, Any]:
        result, sources = dict(getattr(others, attribute)), getattr(batch, attribute)
        return result | {new: sources[old] for new, old in names.items() if old in sources}

    compressed = others.compressed | {new for new, old in names.items() if old in batch.compressed}
    return replace(
        others,
        steps=copied("steps"),
        states=copied("states"),
        final_states=copied("final_states"),
        compressed=compressed,
    )


def _stored_image_keys(batch: EpisodeBatch) -> set[Key]:
    return {key for key, values in {**batch.steps, **batch.states}.items() if isinstance(values, StoredImages)}


def _with_fields(result: EpisodeBatch, batch: EpisodeBatch, keys: Collection[Key]) -> EpisodeBatch:
    """Return a result with some fields of the original batch, in the order of the batch."""

    def merged(name: str) -> dict[Key, Any]:
        given, computed = getattr(batch, name), getattr(result, name)
        kept = {key: computed.get(key, values) for key, values in given.items() if key in keys or key in computed}
        return {**kept, **computed}

    return replace(
        result,
        steps=merged("steps"),
        states=merged("states"),
        final_states=merged("final_states"),
        vocabulary={**{key: words for key, words in batch.vocabulary.items() if key in keys}, **result.vocabulary},
        compressed=result.compressed | batch.compressed.intersection(keys),
    )


def _parsed(value: Any, parameter: inspect.Parameter) -> Any:
    """Return the value of an argument as the transform takes it, given as a recipe states it."""
    kind = str(parameter.annotation)
    if "Keys" in kind and value is not None:
        items = value if isinstance(value, (list, tuple)) else [value]
        return [tuple(item.split(".")) if isinstance(item, str) else item for item in items]
    if kind == "Number" and value is not None:
        return torch.as_tensor(value, dtype=torch.float64)  # a number of Python would become float32
    if parameter.kind is parameter.VAR_POSITIONAL:
        return tuple(map(_as_dtype, value))
    return _as_dtype(value)


def _as_dtype(value: Any) -> Any:
    """Return the dtype with a name, as recipes write it. Other values are returned unchanged."""
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return dtype if isinstance(dtype, torch.dtype) else value


def _stated_arguments(transform: Transform) -> dict[str, Any] | None:
    """Return the arguments of a transform as a recipe states them, or None if they do not describe the transform.

    They do not if an argument is an object, or if the transform has changed since the creation.
    """
    kind, (positional, named) = type(transform), transform.__dict__.get("_arguments", ((), {}))
    parameters = inspect.signature(kind).parameters
    arguments = inspect.signature(kind).bind(*positional, **named).arguments
    if kind.of_images:
        arguments.setdefault("in_keys", transform.in_keys)
    given = {key: value for key, value in arguments.items() if value is not parameters[key].default}
    kinds = {key: str(parameters[key].annotation) for key in given}
    keys = {key: key_list(getattr(transform, key)) for key, kind in kinds.items() if "Keys" in kind}
    try:
        stated = {key: _stated(keys.get(key, value), kinds[key]) for key, value in given.items()}
    except TypeError:
        return None
    return stated if code_digest(kind(*positional, **named)) == code_digest(transform) else None


def _stated(value: Any, kind: str) -> Any:
    """Return the value of an argument as a recipe states it.

    Raises:
        TypeError: If a recipe cannot state the value.
    """
    if "Key" in kind and value is not None:
        return [dotted_name(as_key(key)) for key in value] if isinstance(value, list) else dotted_name(as_key(value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = np.asarray(value)
        if value.size > _MAX_STATED:
            raise TypeError
        return value.tolist()
    return json.loads(json.dumps(value))
