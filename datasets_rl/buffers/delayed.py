"""Buffers whose components are created at their first use."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets_rl.buffers.replay import ReplayBuffer

__all__ = ["delay"]

_COMPONENTS = frozenset(
    {
        "_storage",
        "_sampler",
        "_sample_unit",
        "_writer",
        "_transforms",
        "_collate_fn",
        "_pin_memory",
        "_dim_extend",
        "batch_size",
        "_ran_out",
        "_iterator",
        "_lock",
        "_graph",
        "_prefetch",
    }
)
"""The attributes that are created at the first use of one of them."""
_creation = threading.RLock()
"""Held while components are created."""


def delay(buffer: ReplayBuffer, arguments: Mapping[str, Any]) -> None:
    """Create the components of a buffer from these arguments when it is used first.

    Until then, the buffer has another class: a class with ``__getattr__`` takes longer for every attribute, and batches
    of a buffer with components would be slower.
    """
    buffer._delayed = dict(arguments)  # noqa: SLF001 - the other half of the buffer
    buffer.__class__ = _delayed_class(type(buffer))  # type: ignore[arg-type]  # mypy takes the hash of an instance


@cache
def _delayed_class(final: type[ReplayBuffer]) -> type[ReplayBuffer]:
    def create(self: Any, name: str) -> Any:
        if name in _COMPONENTS:
            with _creation:
                _create_components(self, final)
        return object.__getattribute__(self, name)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _restore, (final, dict(self.__dict__))

    methods = {"__getattr__": create, "__reduce__": reduce, "__module__": final.__module__, "__doc__": final.__doc__}
    return type(final.__name__, (final,), methods)


def _create_components(buffer: Any, final: type[ReplayBuffer]) -> None:
    """Create the components, unless another thread was first; after an error, the next use tries again."""
    arguments = buffer.__dict__.pop("_delayed", None)
    if arguments is None:
        return
    try:
        buffer._create_components(**arguments)  # noqa: SLF001 - the other half of the buffer
    except BaseException:
        for created in _COMPONENTS & buffer.__dict__.keys():
            del buffer.__dict__[created]
        buffer._delayed = arguments  # noqa: SLF001 - the other half of the buffer
        raise
    buffer.__class__ = final


def _restore(final: type[ReplayBuffer], state: dict[str, Any]) -> Any:
    buffer = final.__new__(final)
    arguments = state.pop("_delayed")
    buffer.__dict__.update(state)
    delay(buffer, arguments)
    return buffer
