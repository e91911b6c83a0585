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

from datasets_rl import transforms as library
from datasets_rl.errors import BadArgument
from datasets_rl.preprocess._base import Step, snake
from datasets_rl.preprocess.tensors import from_tensors, to_tensors
from datasets_rl.storages.packed import nest
from datasets_rl.ted.episodes import Episodes
from datasets_rl.ted.keys import NEXT, Key, as_key
from datasets_rl.transforms import Transform
from datasets_rl.transforms._time import OverTime

__all__ = ["Applied", "transforms"]

_NO_STEPS = frozenset(
    {
        "BurnInTransform",
        "Compose",
        "DeviceCastTransform",
        "PinMemoryTransform",
        "RandomCropTensorDict",
        "Transform",
        "UnaryTransform",
        "VecNorm",
    }
)
"""Those that need a model or a function, do nothing to data on a disk, or depend on the order of batches."""


@cache
def transforms() -> Mapping[str, type[Transform]]:
    """Return every transform that can be a step, by its name in recipes: "cat_frames", and "reward_2_go"."""
    found = {}
    for name in library.__all__:
        kind = getattr(library, name)
        if inspect.isclass(kind) and issubclass(kind, Transform) and name not in _NO_STEPS:
            found[snake(name.removesuffix("Transform")).replace("2_go", "_2_go")] = kind
    return dict(sorted(found.items()))


@dataclass
class Applied(Step):
    """A transform, applied to all that is stored.

    Args:
        transform: Any of the library's, or one of the user's.
        written: How a recipe has it.
    """

    transform: Any
    written: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, words: Sequence[Any], named: Mapping[str, Any]) -> Applied:
        """Make the step of a transform's name and arguments; dotted keys stand for nested ones.

        Raises:
            BadArgument: If the transform does not take them.
        """
        kind = transforms()[name]
        keys = {
            key: [tuple(one.split(".")) if isinstance(one, str) else one for one in _several(value)]
            for key, value in named.items()
            if "keys" in key
        }
        try:
            made = kind(*words, **{**named, **keys})
        except TypeError as error:
            raise BadArgument(f"{name} takes {inspect.signature(kind)}: {error}") from error
        return cls(made, {"use": name, **({"args": list(words)} if words else {}), **named})

    def __call__(self, block: Episodes) -> Episodes | None:
        """Return the block, transformed."""
        keys = [as_key(key) for key in getattr(self.transform, "in_keys", ())]
        states = bool(keys) and set(keys) <= block.states.keys()
        if states and not isinstance(self.transform, OverTime):
            return self._of_states(block, set(keys))
        transform = _at_both(self.transform) if states else self.transform
        return from_tensors(transform(to_tensors(block)), block, whole=False)

    def _of_states(self, block: Episodes, keys: set[Key]) -> Episodes:
        """Apply it to states alone: those of the rows, and the final ones."""

        def apply(arrays: Mapping[Key, Any], count: int) -> dict[Key, Any]:
            leaves = {key: torch.from_numpy(np.array(arrays[key])) for key in keys}
            came = self.transform(nest(leaves, torch.Size((count,))))
            names = came.keys(include_nested=True, leaves_only=True)
            return {as_key(name): np.ascontiguousarray(came.get(name).numpy()) for name in names}

        states, finals = apply(block.states, block.count), apply(block.finals, len(block))
        gone = keys - states.keys()
        for final in finals.values():
            final[~block.known] = 0
        kept = {key: values for key, values in block.states.items() if key not in gone}
        kept_finals = {key: values for key, values in block.finals.items() if key not in gone}
        return replace(block, states=kept | states, finals=kept_finals | finals)

    def to_json(self) -> dict[str, Any]:
        """Describe the transform as a recipe has it, or as it prints itself."""
        return dict(self.written) or {"use": "transform", "transform": repr(self.transform)}


def _at_both(transform: OverTime) -> OverTime:
    """Return a transform of states that is applied to those at t + 1 too."""
    both = copy(transform)
    both.in_keys = [*transform.in_keys, *((NEXT, *as_key(key)) for key in transform.in_keys)]
    both.out_keys = [*transform.out_keys, *((NEXT, *as_key(key)) for key in transform.out_keys)]
    return both


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
