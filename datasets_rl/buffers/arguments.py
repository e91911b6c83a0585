"""Parsing of the arguments of a buffer: sizes, components and transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from typing_extensions import override

from datasets_rl.transforms.compose import Compose

__all__ = [
    "MAX_BATCH",
    "InBuffer",
    "Inverted",
    "Transform",
    "axis_problems",
    "batch_size_problems",
    "build_component",
    "deployment_problems",
    "size_problems",
    "transforms_of",
]

Transform = Callable[[Any], Any]


class Inverted:
    """A transform with its two directions swapped."""

    def __init__(self, transform: Transform) -> None:
        self.inv = transform
        self._forward = getattr(transform, "inv", None)

    def __call__(self, data: Any) -> Any:
        """Apply the inverse of the transform, if it has one."""
        return data if self._forward is None else self._forward(data)

    def __repr__(self) -> str:
        return f"inverted {self.inv!r}"


class InBuffer(Compose):
    """View of the transforms of a buffer as one `Compose`; a change of this object changes the buffer.

    Args:
        transforms: The list of transforms of the buffer; the list is shared, not copied.
        locked: Function that returns a context in which the buffer may be changed.
    """

    def __init__(self, transforms: list[Transform], locked: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(transforms)
        self._buffer_transforms, self._locked = transforms, locked

    @override
    def _replace(self, transforms: list[Any]) -> None:
        super()._replace(transforms)
        with self._locked():
            self._buffer_transforms[:] = transforms


def size_problems(**sizes: Any) -> list[str]:
    """Return which sizes are not integers >= 1; None is allowed."""
    return [
        f"{name} is {size!r}; expected an integer >= 1"
        for name, size in sizes.items()
        if size is not None and (not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1)
    ]


MAX_BATCH = 2**31 - 1
"""Greatest number of steps in a batch; the indices alone of a larger one take more than 16 GiB."""


def batch_size_problems(batch_size: Any) -> list[str]:
    """Return why a value is not a number of steps in a batch; None is allowed."""
    problems = size_problems(batch_size=batch_size)
    if not problems and batch_size is not None and batch_size > MAX_BATCH:
        problems.append(f"batch_size is {batch_size:,}; expected at most {MAX_BATCH:,} steps")
    return problems


def axis_problems(**axes: Any) -> list[str]:
    """Return which axes are not integers >= 0; None is allowed."""
    return [
        f"{name} is {axis!r}; expected an integer >= 0"
        for name, axis in axes.items()
        if axis is not None and (not isinstance(axis, (int, np.integer)) or isinstance(axis, bool) or axis < 0)
    ]


def deployment_problems(
    service_backend: str, service_backend_options: Any, transport: str, transport_options: Any
) -> list[str]:
    """Return which arguments ask for a buffer in another process: a buffer lives in the process that creates it."""
    problems = []
    if service_backend != "direct":
        problems.append(f"service_backend is {service_backend!r}; expected 'direct', a buffer in this process")
    if transport not in {"auto", "direct"}:
        problems.append(f"transport is {transport!r}; expected 'auto' or 'direct': there is no remote buffer")
    options = {"service_backend_options": service_backend_options, "transport_options": transport_options}
    return problems + [
        f"{name} is {value!r}; expected None: there is no remote buffer" for name, value in options.items() if value
    ]


def build_component(part: Any, verb: str, problems: list[str], default: Callable[[], Any]) -> Any:
    """Return a component that is given as an instance, a class, a factory or None.

    Args:
        part: The argument.
        verb: Name of the method that every such component has.
        problems: List that problems are appended to.
        default: Creates the component if none is given.
    """
    if part is None:
        return default()
    if not isinstance(part, type) and callable(getattr(part, verb, None)):
        return part
    try:
        component = part() if callable(part) else None
    except TypeError as error:
        problems.append(f"{part!r} cannot be called without arguments: {error}")
        return None
    if not callable(getattr(component, verb, None)):
        problems.append(f"{part!r} has no method {verb}; expected an object with this method")
    return component


def transforms_of(transform: Any, problems: list[str]) -> list[Transform]:
    """Return the transforms that are given as None, one callable or a sequence; append problems to `problems`."""
    if transform is not None and not callable(transform) and not isinstance(transform, Sequence):
        problems.append(f"transform is {transform!r}; expected a callable or a sequence of callables")
        return []
    listed = [] if transform is None else [transform] if callable(transform) else list(transform)
    problems += [f"transform {item!r} is not callable" for item in listed if not callable(item)]
    return listed
