"""Transforms of this package as steps of recipes.

A transform that treats each step separately is applied to each state of an episode once, instead of once at t and once
at t + 1. A transform over time (frame stacks, n-step rewards) is applied to whole episodes, as in a storage.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import transforms as library
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step, snake
from datasets_rl.preprocessing.digests import code_digest
from datasets_rl.preprocessing.steps._fields import FIXED, map_fields, rename_fields, require_keys, with_steps
from datasets_rl.preprocessing.steps.images import apply_channels_first, image_keys, to_channels_last
from datasets_rl.preprocessing.tensors import from_tensors, to_tensors
from datasets_rl.storages.packed import nest_leaves
from datasets_rl.ted.episode import StoredImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, as_key, dotted_name
from datasets_rl.transforms import CatFrames, Reward2GoTransform, Transform, VecNorm
from datasets_rl.transforms._time import OverTime
from datasets_rl.transforms.images import ToTensorImage, _ImageTransform

_INSTEAD = {Reward2GoTransform: "returns_to_go", VecNorm: "normalize"}


@cache
def transforms_by_name() -> Mapping[str, type[Transform]]:
    """Return all transforms by their names in snake case: "reward_sum", "cat_frames"."""
    classes = {name: getattr(library, name) for name in library.__all__}
    return {
        snake(name.removesuffix("Transform")): cls
        for name, cls in classes.items()
        if inspect.isclass(cls) and issubclass(cls, Transform)
    }


@dataclass
class TransformStep(Step):
    """A transform as a step, applied to the stored data.

    Args:
        transform: A transform of this package or of the user.
        written: The step as written in a recipe, if it is from one.
    """

    transform: Any
    written: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cls, name in _INSTEAD.items():
            if isinstance(self.transform, cls):
                raise InvalidArgumentError(f"{cls.__name__} is for buffers", hint=f"use the step {name}")

    @classmethod
    def from_arguments(
        cls, name: str, transform_class: type[Transform], positional: Sequence[Any], named: Mapping[str, Any]
    ) -> TransformStep:
        """Return the step for the name and the arguments of a transform; dotted keys become nested keys.

        Raises:
            InvalidArgumentError: If the transform does not accept the arguments.
        """
        keys = {
            key: [tuple(item.split(".")) if isinstance(item, str) else item for item in _as_list(value)]
            for key, value in named.items()
            if "keys" in key
        }
        keywords = {**{key: _parse_dtype(value) for key, value in named.items()}, **keys}
        try:
            transform = transform_class(*map(_parse_dtype, positional), **keywords)
        except InvalidArgumentError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"{name} takes {inspect.signature(transform_class)}: {error}") from error
        return cls(transform, {"use": name, **({"args": list(positional)} if positional else {}), **named})

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
        if self._reads_all_images:
            return self if fields.states else None
        keys = {*fields.steps, *fields.states} - FIXED
        if isinstance(self.transform, OverTime) and not isinstance(self.transform, CatFrames):
            if replaced := [dotted_name(key) for key in map(as_key, self.transform.out_keys) if key in keys]:
                raise InvalidArgumentError(f"{', '.join(replaced)} depends on other steps")
            return None
        missing = [key for key in map(as_key, self.transform.in_keys) if key not in keys]
        if not missing:
            return self
        if len(missing) == len(self.transform.in_keys):
            return None
        return self._without(missing)

    def _without(self, missing: Sequence[Key]) -> TransformStep:
        """Return the step without some of its entries."""
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
        if isinstance(self.transform, _ImageTransform):
            return self._apply_to_images(batch)
        keys = [as_key(key) for key in getattr(self.transform, "in_keys", ())]
        # A transform of the user may read more keys than its in_keys.
        is_own = self.transform.transform_batch.__module__.startswith("datasets_rl.")
        if self._concerns_steps(batch, keys):
            return self._apply_to_steps(batch, keys)
        only_states = is_own and bool(keys) and set(keys) <= batch.states.keys()
        if only_states and not isinstance(self.transform, OverTime):
            return self._apply_to_states(batch, set(keys))
        named = {*keys, *(as_key(key) for key in getattr(self.transform, "out_keys", ()))}
        # Images that the transform does not name are not decoded; without any keys it applies to all fields.
        untouched = _stored_image_keys(batch) - named if named or isinstance(self.transform, OverTime) else set()
        transform = _with_next_keys(self.transform) if only_states else self.transform
        result = _apply_to_transitions(transform, rename_fields(batch, lambda key: None if key in untouched else key))
        if result is None or not untouched:
            return result
        if not np.array_equal(result.lengths, batch.lengths):
            # The transform split episodes: images at the new ends become final states, which requires all fields.
            return _apply_to_transitions(transform, batch)
        return _add_fields(result, batch.select_fields(untouched))

    def _apply_to_images(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Apply an image transform to each image once, in the layout of the image."""
        names = {
            as_key(new): as_key(old) for old, new in zip(self.transform.in_keys, self.transform.out_keys, strict=True)
        }
        # A state is stored once: its values at t + 1 are transformed together with those at t.
        following = {(NEXT, *key) for key in names.values() if key in batch.states}
        names = {new: old for new, old in names.items() if old not in following}
        if self._reads_all_images:
            keys = image_keys(batch)
        else:
            require_keys(batch, map(dotted_name, names.values()))
            keys, batch = list(names), _copy_fields(batch, names)
        if isinstance(self.transform, ToTensorImage):
            return map_fields(batch, keys, lambda _, values: self._transform_images(to_channels_last(values)))
        return map_fields(batch, keys, lambda _, values: apply_channels_first(values, self._transform_images))

    @property
    def _reads_all_images(self) -> bool:
        """Whether the transform applies to all images, whatever their names: the recipe has no explicit keys."""
        is_named = not self.written or bool({"in_keys", "out_keys"} & self.written.keys())
        return isinstance(self.transform, _ImageTransform) and not is_named

    def _transform_images(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return transformed images, given in the layout that the transform requires."""
        result: NDArray[Any] = np.ascontiguousarray(self.transform.transform_value(torch.from_numpy(values)).numpy())
        return result

    def _concerns_steps(self, batch: EpisodeBatch, keys: Sequence[Key]) -> bool:
        """Return whether the transform changes each of these fields by itself, and all are fields of steps."""
        kind, results = type(self.transform), set(map(as_key, getattr(self.transform, "out_keys", ())))
        by_itself = kind.__module__.startswith("datasets_rl.") and kind.transform_batch is Transform.transform_batch
        numbers = batch.steps.keys() - _stored_image_keys(batch) - {NEXT_TERMINATED, NEXT_TRUNCATED}
        others = {*batch.states, *batch.steps} - numbers
        return by_itself and bool(keys) and set(keys) <= numbers and not results & others

    def _apply_to_steps(self, batch: EpisodeBatch, keys: Sequence[Key]) -> EpisodeBatch:
        """Apply the transform to fields of the steps alone. Rewards keep their dtype."""
        leaves = {key: torch.from_numpy(np.array(batch.steps[key])) for key in keys}
        result = self.transform(nest_leaves(leaves, torch.Size((batch.count,))))
        changed = {key: np.ascontiguousarray(result.get(key).numpy()) for key in map(as_key, self.transform.out_keys)}
        if NEXT_REWARD in changed:
            changed[NEXT_REWARD] = changed[NEXT_REWARD].astype(batch.steps[NEXT_REWARD].dtype, copy=False)
        return with_steps(batch, changed)

    def _apply_to_states(self, batch: EpisodeBatch, keys: set[Key]) -> EpisodeBatch:
        """Apply the transform to states: those of the steps, and the final ones."""

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
        """Return the description for the manifest: the step as written in a recipe, or its name and a digest."""
        name = type(self.transform).__qualname__
        return dict(self.written) or {"use": "transform", "name": name, "digest": code_digest(self.transform)}


def _with_next_keys(transform: OverTime) -> OverTime:
    """Return a transform of states that also applies to the states at t + 1."""
    extended = copy(transform)
    extended.in_keys = [*transform.in_keys, *((NEXT, *as_key(key)) for key in transform.in_keys)]
    extended.out_keys = [*transform.out_keys, *((NEXT, *as_key(key)) for key in transform.out_keys)]
    return extended


def _apply_to_transitions(transform: Any, batch: EpisodeBatch) -> EpisodeBatch | None:
    """Apply a transform to the transitions of a batch."""
    result = transform(to_tensors(batch))
    return from_tensors(result, batch, whole=False)


def _copy_fields(batch: EpisodeBatch, names: Mapping[Key, Key]) -> EpisodeBatch:
    """Return the batch with copies of fields under new names, given as new: old; they replace existing fields."""
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


def _add_fields(batch: EpisodeBatch, other: EpisodeBatch) -> EpisodeBatch:
    """Return a batch with the fields of another batch of the same steps added."""
    return replace(
        batch,
        steps={**batch.steps, **other.steps},
        states={**batch.states, **other.states},
        final_states={**batch.final_states, **other.final_states},
        compressed=batch.compressed | other.compressed,
    )


def _parse_dtype(value: Any) -> Any:
    """Return the dtype with a name, as recipes write it; other values are returned unchanged."""
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return dtype if isinstance(dtype, torch.dtype) else value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
