"""Writing to a storage in a compiled function: an operator, which writes when the graph runs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

_writers: dict[int, weakref.WeakMethod[Callable[..., None]]] = {}
_numbers = itertools.count()
_WRITES = torch.zeros((), dtype=torch.int64)
"""Changed by each write, so that a compiled graph leaves none out."""
_KEY, _NAME = "\x1e", "\x1f"
"""Separators of keys, and of the names of a key."""


def register_writer(write: Callable[..., None]) -> int:
    """Return the number by which a compiled graph finds a method ``write(cursor, data, *, set_cursor)``."""
    number = next(_numbers)
    _writers[number] = weakref.WeakMethod(write, lambda _: _writers.pop(number, None))
    return number


@torch.library.custom_op("datasets_rl::write", mutates_args=("writes",))
def _write(
    writer: int, cursor: Tensor, keys: str, batch_dims: int, set_cursor: bool, writes: Tensor, leaves: list[Tensor]
) -> None:
    write = _writers[writer]()
    data: Any = leaves[0]
    if keys:
        batch = leaves[0].shape[:batch_dims]
        names = [tuple(key.split(_NAME)) for key in keys.split(_KEY)]
        data = TensorDict(dict(zip(names, leaves, strict=True)), batch_size=batch)
    if write is not None:
        write(int(cursor) if cursor.ndim == 0 else cursor, data, set_cursor=set_cursor)
    writes += 1


@_write.register_fake
def _(
    writer: int, cursor: Tensor, keys: str, batch_dims: int, set_cursor: bool, writes: Tensor, leaves: list[Tensor]
) -> None:
    pass


def write_in_graph(writer: int, cursor: Any, data: Any, *, set_cursor: bool) -> None:
    """Write a tensor or a TensorDict of tensors, in a function that is being compiled.

    Args:
        writer: The result of `register_writer`.
        cursor: An integer, a range, or an index tensor.
        data: The data to write.
        set_cursor: See `Storage.set`.
    """
    slots = (
        cursor if isinstance(cursor, Tensor) else torch.tensor(list(cursor) if isinstance(cursor, range) else cursor)
    )
    if isinstance(data, TensorDictBase):
        keys = list(data.keys(include_nested=True, leaves_only=True))
        names = _KEY.join([key if isinstance(key, str) else _NAME.join(key) for key in keys])
        leaves = [data.get(key).clone() for key in keys]
        torch.ops.datasets_rl.write(writer, slots, names, data.ndim, set_cursor, _WRITES, leaves)
    else:
        torch.ops.datasets_rl.write(writer, slots, "", 0, set_cursor, _WRITES, [data.clone()])
