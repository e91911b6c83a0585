"""The fields of a buffer by their keys: ``rb["observation"]``, ``rb["next", "reward"] = ...``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.ted.keys import Key, dotted

__all__ = ["field_of", "key_of", "write_field"]

_ROOT = "_data"
"""In TorchRL's older buffers the data lay below this key; it still names the root."""


def key_of(index: Any) -> Key | None:
    """Return the key that an index is, () for the root; None if it is none."""
    key = (index,) if isinstance(index, str) else index
    if not (isinstance(key, tuple) and key and all(isinstance(name, str) for name in key)):
        return None
    return key[1:] if key[0] == _ROOT else key


def field_of(data: Any, key: Key) -> Any:
    """Return what stands at a key in a TensorDict, a tensorclass, or a tree of dicts.

    Raises:
        UnknownKeyError: If there is no such key.
    """
    known: list[str] = []
    for name in key:
        known = sorted(map(str, data.keys())) if hasattr(data, "keys") else []
        if name not in known:
            raise UnknownKeyError(dotted(key), known)
        data = data.get(name)
    return data


def write_field(column: Any, value: Any, key: Key, parts: Iterable[slice]) -> None:
    """Write over a field: a tensor, or all those in a TensorDict.

    Args:
        column: The field of all slots.
        value: What to write; it expands to the shape of the field.
        key: Where the field stands.
        parts: The slots to write, part by part.

    Raises:
        InvalidArgumentError: If the value does not fit; all problems at once, and nothing has been written then.
    """
    problems: list[str] = []
    pairs = _pairs(column, value, key, problems)
    if problems:
        raise InvalidArgumentError(f"the field cannot be replaced: {'; '.join(problems)}")
    with torch.no_grad():
        for part in parts:
            for old, new in pairs:
                old[part].copy_(new[part])


def _pairs(column: Any, value: Any, key: Key, problems: list[str]) -> list[tuple[Tensor, Tensor]]:
    """Return what is to be copied where."""
    if is_non_tensor(column):
        problems.append(f"{dotted(key)!r} holds objects that are no tensors; write whole steps")
        return []
    if isinstance(column, TensorDictBase):
        if not is_tensor_collection(value) or set(value.keys()) != set(column.keys()):
            problems.append(f"{dotted(key)!r} holds {', '.join(column.keys())}; expected a TensorDict of these")
            return []
        names = [*column.keys()]
        return [pair for name in names for pair in _pairs(column.get(name), value.get(name), (*key, name), problems)]
    new = torch.as_tensor(value)
    if not torch.can_cast(new.dtype, column.dtype):
        problems.append(f"{dotted(key)!r} is {column.dtype}, and the value {new.dtype}")
    try:
        return [(column, new.expand(column.shape))]
    except RuntimeError:
        problems.append(f"{dotted(key)!r} has shape {list(column.shape)}, and the value {list(new.shape)}")
        return []
