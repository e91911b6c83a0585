"""What the constructor and the setters of a buffer are given: sizes, parts, transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms.base import Compose

__all__ = [
    "InBuffer",
    "Inverted",
    "Transform",
    "axis_problems",
    "part_of",
    "size_problems",
    "transformed",
    "transforms_of",
]

Transform = Callable[[Any], Any]


class Inverted:
    """A transform with its two directions exchanged."""

    def __init__(self, transform: Transform) -> None:
        self.inv = transform
        self._forward = getattr(transform, "inv", None)

    def __call__(self, data: Any) -> Any:
        """Apply the inverse, if there is one."""
        return data if self._forward is None else self._forward(data)

    def __repr__(self) -> str:
        return f"inverted {self.inv!r}"


class InBuffer(Compose):
    """The transforms of a buffer as one; what is put into it, the buffer applies from then on.

    Args:
        transforms: Those of the buffer, the list itself.
        insert: Puts a further one into the buffer.
    """

    def __init__(self, transforms: list[Transform], insert: Callable[[int, Transform], Any]) -> None:
        super().__init__()
        self.transforms = transforms
        self._insert = insert

    def insert(self, index: int, transform: Any) -> InBuffer:
        """Put a transform at a place of the order, and return this; see `ReplayBuffer.insert_transform`."""
        self._expect_place(index)
        self._insert(index, transform)
        return self


def size_problems(**sizes: Any) -> list[str]:
    """Say which sizes are no whole numbers from 1; None is no size."""
    return [
        f"{name} is {size!r}; expected a whole number from 1"
        for name, size in sizes.items()
        if size is not None and (not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1)
    ]


def axis_problems(**axes: Any) -> list[str]:
    """Say which axes are no whole numbers from 0; None is no axis."""
    return [
        f"{name} is {axis!r}; expected an axis from 0"
        for name, axis in axes.items()
        if axis is not None and (not isinstance(axis, (int, np.integer)) or isinstance(axis, bool) or axis < 0)
    ]


def part_of(part: Any, verb: str, problems: list[str], default: Callable[[], Any]) -> Any:
    """Return a part that was given as such, as its class, as a factory, or not at all.

    Args:
        part: What was given.
        verb: The method by which a part is known.
        problems: Gets what is wrong.
        default: Makes the part if none was given.
    """
    if part is None:
        return default()
    if not isinstance(part, type) and callable(getattr(part, verb, None)):
        return part
    try:
        made = part() if callable(part) else None
    except TypeError as error:
        problems.append(f"{part!r} cannot be called without arguments: {error}")
        return None
    if not callable(getattr(made, verb, None)):
        problems.append(f"{part!r} has no method {verb}; expected an instance of a class that has")
    return made


def transforms_of(transform: Any, problems: list[str]) -> list[Transform]:
    """Return the transforms that were given: none, one, or a sequence; `problems` gets what is wrong."""
    if transform is not None and not callable(transform) and not isinstance(transform, Sequence):
        problems.append(f"transform {transform!r} is no callable, and no sequence of callables")
        return []
    listed = [] if transform is None else [transform] if callable(transform) else list(transform)
    problems += [f"transform {one!r} is no callable" for one in listed if not callable(one)]
    return listed


def transformed(transforms: Sequence[Transform], data: Any) -> Any:
    """Return what transforms, applied in order, make of data.

    Raises:
        InvalidArgumentError: If one returns nothing.
    """
    for transform in transforms:
        data = transform(data)
        if data is None:
            raise InvalidArgumentError(f"the transform {transform!r} returned None", hint="return the batch from it")
    return data
