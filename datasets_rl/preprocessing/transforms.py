"""Every transform of the library as a step.

One that looks at each step by itself is applied to the states of an episode once, and not to those at t and again to
those at t + 1. One that looks around in time (frame stacks, n-step rewards) sees whole episodes as a storage.
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

from datasets_rl import transforms as library
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step, snake
from datasets_rl.preprocessing.digests import digest
from datasets_rl.preprocessing.steps import known
from datasets_rl.preprocessing.steps._fields import mapped, need, rekeyed
from datasets_rl.preprocessing.steps.images import channels_first, channels_last, images
from datasets_rl.preprocessing.tensors import from_tensors, to_tensors
from datasets_rl.storages.packed import nest
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, Key, as_key, dotted
from datasets_rl.transforms import Reward2GoTransform, Transform, VecNorm
from datasets_rl.transforms._time import OverTime
from datasets_rl.transforms.images import ToTensorImage, _Picture

__all__ = ["TransformStep", "transforms"]

_NO_STEPS = frozenset(
    {
        "BurnInTransform",
        "Compose",
        "DeviceCastTransform",
        "Hash",
        "PinMemoryTransform",
        "RandomCropTensorDict",
        "Reward2GoTransform",
        "Tokenizer",
        "Transform",
        "UnaryTransform",
        "VecNorm",
    }
)
"""Those that need a model or a function, take text, do nothing to data on a disk, or depend on the order of batches;
and rewards to go, which are the step `returns_to_go`."""
_INSTEAD = {Reward2GoTransform: "returns_to_go", VecNorm: "normalise"}


@cache
def transforms() -> Mapping[str, type[Transform]]:
    """Return every transform that can be a step and has no step of its own, by its name: "cat_frames"."""
    found = {}
    for name in library.__all__:
        kind = getattr(library, name)
        if inspect.isclass(kind) and issubclass(kind, Transform) and name not in _NO_STEPS:
            found[snake(name.removesuffix("Transform"))] = kind
    return {name: kind for name, kind in sorted(found.items()) if name not in known()}


@dataclass
class TransformStep(Step):
    """A transform, applied to all that is stored.

    Args:
        transform: Any of the library's, or one of the user's.
        written: How a recipe has it.
    """

    transform: Any
    written: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, name in _INSTEAD.items():
            if isinstance(self.transform, kind):
                raise InvalidArgumentError(f"{kind.__name__} is for buffers", hint=f"the step {name} does it")

    @classmethod
    def of(cls, name: str, words: Sequence[Any], named: Mapping[str, Any]) -> TransformStep:
        """Make the step of a transform's name and arguments; dotted keys stand for nested ones.

        Raises:
            InvalidArgumentError: If the transform does not take them.
        """
        kind = transforms()[name]
        keys = {
            key: [tuple(one.split(".")) if isinstance(one, str) else one for one in _several(value)]
            for key, value in named.items()
            if "keys" in key
        }
        try:
            made = kind(*map(_dtype, words), **{**{key: _dtype(value) for key, value in named.items()}, **keys})
        except TypeError as error:
            raise InvalidArgumentError(f"{name} takes {inspect.signature(kind)}: {error}") from error
        return cls(made, {"use": name, **({"args": list(words)} if words else {}), **named})

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch | None:
        """Return the block, transformed."""
        if isinstance(self.transform, _Picture):
            return self._of_pictures(block)
        keys = [as_key(key) for key in getattr(self.transform, "in_keys", ())]
        # One of the user's own may read more than the keys that it names.
        own = self.transform.apply.__module__.startswith("datasets_rl.")
        states = own and bool(keys) and set(keys) <= block.states.keys()
        if states and not isinstance(self.transform, OverTime):
            return self._of_states(block, set(keys))
        named = {*keys, *(as_key(key) for key in getattr(self.transform, "out_keys", ()))}
        # Encoded pictures that it does not name need not be decoded for it; without any name it is for all fields.
        aside = _encoded(block) - named if named or isinstance(self.transform, OverTime) else set()
        transform = _at_both(self.transform) if states else self.transform
        found = _of_transitions(transform, rekeyed(block, lambda key: None if key in aside else key))
        if found is None or not aside:
            return found
        if not np.array_equal(found.lengths, block.lengths):
            # It ends episodes where none ended: the pictures there become final states.
            return _of_transitions(transform, block)
        return _with(found, block.only(aside))

    def _of_pictures(self, block: EpisodeBatch) -> EpisodeBatch:
        """Apply it to pictures, each once, in their own layout."""
        names = {
            as_key(new): as_key(old) for old, new in zip(self.transform.in_keys, self.transform.out_keys, strict=True)
        }
        # States are stored once: those at t + 1 are done with those at t.
        following = {(NEXT, *key) for key in names.values() if key in block.states}
        names = {new: old for new, old in names.items() if old not in following}
        # Without keys of its own it is for all pictures, whatever they are called.
        if self.written and not {"in_keys", "out_keys"} & self.written.keys():
            keys = images(block)
        else:
            need(block, map(dotted, names.values()))
            keys, block = list(names), _copied(block, names)
        if isinstance(self.transform, ToTensorImage):
            return mapped(block, keys, lambda _, values: self._picture(channels_last(values)))
        return mapped(block, keys, lambda _, values: channels_first(values, self._picture))

    def _picture(self, values: NDArray[Any]) -> NDArray[Any]:
        """Transform pictures, in the layout that the transform takes."""
        found: NDArray[Any] = np.ascontiguousarray(self.transform.each(torch.from_numpy(values)).numpy())
        return found

    def _of_states(self, block: EpisodeBatch, keys: set[Key]) -> EpisodeBatch:
        """Apply it to states alone: those of the rows, and the final ones."""

        def apply(arrays: Mapping[Key, Any], count: int) -> dict[Key, Any]:
            leaves = {key: torch.from_numpy(np.array(arrays[key])) for key in keys}
            came = self.transform(nest(leaves, torch.Size((count,))))
            names = came.keys(include_nested=True, leaves_only=True)
            return {as_key(name): np.ascontiguousarray(came.get(name).numpy()) for name in names}

        states, final_states = apply(block.states, block.count), apply(block.final_states, len(block))
        gone = keys - states.keys()
        for final in final_states.values():
            final[~block.final_known] = 0
        kept = {key: values for key, values in block.states.items() if key not in gone}
        kept_finals = {key: values for key, values in block.final_states.items() if key not in gone}
        return replace(block, states=kept | states, final_states=kept_finals | final_states)

    def to_json(self) -> dict[str, Any]:
        """Describe the transform as a recipe has it, or by its name and by what it does."""
        name = type(self.transform).__qualname__
        return dict(self.written) or {"use": "transform", "name": name, "digest": digest(self.transform)}


def _at_both(transform: OverTime) -> OverTime:
    """Return a transform of states that is applied to those at t + 1 too."""
    both = copy(transform)
    both.in_keys = [*transform.in_keys, *((NEXT, *as_key(key)) for key in transform.in_keys)]
    both.out_keys = [*transform.out_keys, *((NEXT, *as_key(key)) for key in transform.out_keys)]
    return both


def _of_transitions(transform: Any, block: EpisodeBatch) -> EpisodeBatch | None:
    """Apply a transform to the transitions of a block."""
    came = transform(to_tensors(block))
    if not came.get(NEXT_REWARD).is_floating_point():
        came.set(NEXT_REWARD, came.get(NEXT_REWARD).to(torch.get_default_dtype()))
    return from_tensors(came, block, whole=False)


def _copied(block: EpisodeBatch, names: Mapping[Key, Key]) -> EpisodeBatch:
    """Return the block with fields under new names too, new: old; what was there before is gone."""
    rest = rekeyed(block, lambda key: None if key in names and names[key] != key else key)

    def copied(kind: str) -> dict[Key, Any]:
        kept, given = dict(getattr(rest, kind)), getattr(block, kind)
        return kept | {new: given[old] for new, old in names.items() if old in given}

    return replace(rest, steps=copied("steps"), states=copied("states"), final_states=copied("final_states"))


def _encoded(block: EpisodeBatch) -> set[Key]:
    return {key for key, values in {**block.steps, **block.states}.items() if isinstance(values, EncodedImages)}


def _with(block: EpisodeBatch, other: EpisodeBatch) -> EpisodeBatch:
    """Return a block with the fields of another one too, whose steps are the same."""
    return replace(
        block,
        steps={**block.steps, **other.steps},
        states={**block.states, **other.states},
        final_states={**block.final_states, **other.final_states},
    )


def _dtype(value: Any) -> Any:
    """Read the name of a dtype, as a recipe has it; other values stay."""
    found = getattr(torch, value, None) if isinstance(value, str) else None
    return found if isinstance(found, torch.dtype) else value


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
