"""Access to the fields of a buffer by key: ``rb["observation"]``, ``rb["next", "reward"] = ...``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import Key, as_key, dotted_name, spelled_key

_ROOT = "_data"
"""Root key of the data in older TorchRL buffers, accepted as a name of the root."""


def key_of(index: Any) -> Key | None:
    """Return the key that an index names, () for the root, or None if the index is not a key."""
    key = (index,) if isinstance(index, str) else index
    if not (isinstance(key, tuple) and key and all(isinstance(name, str) for name in key)):
        return None
    return key[1:] if key[0] == _ROOT else key


def field_of(data: Any, key: Key) -> Any:
    """Return the field at a key of a TensorDict, a tensorclass, or a tree of dicts.

    Raises:
        UnknownKeyError: If there is no such key.
    """

    def names_at(path: Key) -> list[str]:
        group = data
        for name in path:
            group = group.get(name)
        return sorted(map(str, group.keys())) if hasattr(group, "keys") else []

    path = spelled_key(key, names_at)
    for depth, name in enumerate(path):
        if name not in (names := names_at(path[:depth])):
            raise UnknownKeyError(dotted_name(key), names)
    for name in path:
        data = data.get(name)
    return data


def leaves_by_key(values: Any) -> dict[Key, Any]:
    """Return the leaves of a TensorDict, or of a mapping of possibly nested keys and values, by full key."""
    leaves: dict[Key, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) or (is_tensor_collection(value) and not is_non_tensor(value))
        below = leaves_by_key(value) if nested else {(): value}
        leaves |= {(*as_key(key), *path): leaf for path, leaf in below.items()}
    return leaves


def overwrite_fields(storage: Storage, values: Mapping[Key, Any], rows: Tensor | None = None) -> None:
    """Overwrite fields of some steps in place.

    Args:
        storage: The storage of the steps.
        values: The new values by key, which are expanded to [*rows, *shape of the field].
        rows: The rows of the steps, int64 [...]. By default all, in the shape of the storage.

    Raises:
        UnknownKeyError: If there is no such key.
        InvalidArgumentError: If a value does not fit. The message lists all problems, and nothing is written.
    """
    problems: list[str] = []
    batch = torch.Size(getattr(storage, "shape", (len(storage),))) if rows is None else rows.shape
    pairs = [
        pair
        for key, value in values.items()
        for pair in _tensor_pairs(storage.writable_column(key), value, key, problems, batch)
    ]
    if problems:
        raise InvalidArgumentError(f"the fields cannot be replaced: {'; '.join(problems)}")
    pairs = [(column, value.reshape(batch.numel(), *column.shape[1:])) for column, value in pairs]
    with torch.no_grad():
        for slots in storage.rewriting():
            start, stop = slots.start * storage.envs, slots.stop * storage.envs
            if rows is None:
                for column, value in pairs:
                    column[start:stop].copy_(value[start:stop])
            else:
                flat = rows.reshape(-1)
                inside = (flat >= start) & (flat < stop)
                for column, value in pairs:
                    column[flat[inside].to(column.device)] = value[inside.to(value.device)].to(column.device)


def _tensor_pairs(
    column: Any, value: Any, key: Key, problems: list[str], batch: torch.Size
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of target and source tensors, and append problems to `problems`.

    Args:
        column: The field of all rows.
        value: The new values, which are expanded to the shape of the field.
        key: Key of the field, for messages.
        problems: List that problems are appended to.
        batch: Shape of the rows that the values are for.
    """
    if is_non_tensor(column):
        problems.append(f"{dotted_name(key)!r} holds non-tensor data: write whole steps instead")
        return []
    if isinstance(column, TensorDictBase):
        if not is_tensor_collection(value) or set(value.keys()) != set(column.keys()):
            problems.append(f"{dotted_name(key)!r} holds {', '.join(column.keys())}, expected a TensorDict of these")
            return []
        names = [*column.keys()]
        return [
            pair
            for name in names
            for pair in _tensor_pairs(column.get(name), value.get(name), (*key, name), problems, batch)
        ]
    new = torch.as_tensor(value)
    if not torch.can_cast(new.dtype, column.dtype):
        problems.append(f"the value of {dotted_name(key)!r} is {new.dtype}, expected {column.dtype}")
    shape = torch.Size((*batch, *column.shape[1:]))
    try:
        return [(column, new.expand(shape))]
    except RuntimeError:
        problems.append(f"the value of {dotted_name(key)!r} has shape {list(new.shape)}, expected {list(shape)}")
        return []
