"""TensorDicts that are built and changed without the checks of tensordict, which cost more than the gather of a batch.

The only module that uses private names of tensordict for this. In a version of tensordict with other private names, the
public constructor and the public methods take their place.
"""

# ruff: noqa: SLF001 - see above

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from datasets_rl.ted.keys import Key, nest_keys


def _build(
    entries: dict[Any, Any], batch_size: torch.Size, device: torch.device | None, names: list[Any] | None = None
) -> TensorDict:
    built: Any = _new(TensorDict)
    built._tensordict, built._batch_size, built._device, built._td_dim_names = entries, batch_size, device, names
    result: TensorDict = built
    return result


_new = object.__new__


def _is_known() -> bool:
    """Return whether this version of tensordict has the private names, with the same meaning.

    A TensorDict of its constructor then has no other attributes, and attributes of the same types.
    """
    leaf, size, names = torch.zeros(2), torch.Size((2,)), ["time"]
    try:
        built, expected = (
            _build({"a": leaf}, size, leaf.device, names),
            TensorDict({"a": leaf}, batch_size=size, device=leaf.device, names=names),
        )
        attributes = [{name: type(value) for name, value in vars(one).items()} for one in (built, expected)]
        built._tensordict["b"] = leaf
        entries = dict(built.items())
        is_alike = built.batch_size == size and built.device == leaf.device and built.names == names
        locks = [built._is_locked, built.is_locked, built.lock_()._is_locked]
    except (AttributeError, TypeError, KeyError, RuntimeError):
        return False
    has_entries = list(entries) == ["a", "b"] and entries["b"] is leaf
    return attributes[0] == attributes[1] and is_alike and has_entries and locks == [False, False, True]


KNOWN = _is_known()
"""Whether the private names are used."""


def unchecked(
    entries: dict[Any, Any],
    batch_size: torch.Size,
    device: torch.device | None = None,
    names: list[Any] | None = None,
) -> TensorDict:
    """Return a TensorDict of tensors and TensorDicts that have the batch size and the device, without its checks.

    The TensorDict owns the entries.
    """
    if KNOWN and not is_dynamo_compiling():
        return _build(entries, batch_size, device, names)
    return TensorDict(entries, batch_size=batch_size, device=device, names=names)


def inner_of(data: Any) -> Any:
    """Return the TensorDict within a tensorclass, or a copy of it if the version of tensordict has no private name of it."""
    inner = getattr(data, "_tensordict", None) if KNOWN else None
    return inner if isinstance(inner, TensorDictBase) else data.to_tensordict()


def as_tensorclass(kind: Any, batch: TensorDict) -> Any:
    """Return a TensorDict as a tensorclass of the same entries."""
    build = getattr(kind, "_from_tensordict", kind.from_tensordict) if KNOWN else kind.from_tensordict
    return build(batch)


def entries_of(batch: Any) -> dict[Any, Any] | None:
    """Return the entries of a TensorDict, a dict that may be changed. None if only its methods may change the entries."""
    return batch._tensordict if KNOWN and type(batch) is TensorDict and not batch._is_locked else None


def add_rows(batch: Any, name: str, rows: Any) -> bool:
    """Add rows [B] to a batch [B] in main memory that has no such entry, and return whether this was possible."""
    entries = entries_of(batch)
    if entries is None or name in entries or type(rows) is not Tensor:
        return False
    if batch._device is not None or rows.shape != batch._batch_size:
        return False
    entries[name] = rows
    return True


def nest_leaves(
    leaves: Mapping[Key, Tensor | NDArray[Any]], batch_size: torch.Size, device: torch.device | None = None
) -> TensorDict:
    """Build a nested TensorDict from leaves with the batch size as their leading axes.

    In a TensorDict, the leaves are before the groups. A leaf that is an array becomes a tensor of the same memory.
    """
    return groups_of(tuple(leaves)).build(leaves, batch_size, device)


class Groups:
    """The keys of a TensorDict, nested by name, from which any number of TensorDicts is built.

    Args:
        keys: The keys of the leaves, or the keys of a group as a dict, by name.
    """

    __slots__ = ("_groups", "_leaves")

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._leaves = tuple((name, key) for name, key in keys.items() if not isinstance(key, dict))
        self._groups = tuple((name, Groups(key)) for name, key in keys.items() if isinstance(key, dict))

    def build(
        self,
        leaves: Mapping[Key, Tensor | NDArray[Any]],
        batch_size: torch.Size,
        device: torch.device | None = None,
    ) -> TensorDict:
        """Return a TensorDict of leaves, see `nest_leaves`."""
        entries: dict[str, Any] = {
            # The type: an instance check of torch takes longer than the view.
            name: torch.from_numpy(leaf) if type(leaf := leaves[key]) is np.ndarray else leaf
            for name, key in self._leaves
        }
        for name, group in self._groups:
            entries[name] = group.build(leaves, batch_size, device)
        return unchecked(entries, batch_size, device)

    def of_arrays(self, arrays: Any, batch_size: torch.Size, more: Mapping[str, Tensor] | None = None) -> TensorDict:
        """Return a TensorDict in main memory, of arrays that are all leaves, see `nest_leaves`.

        Args:
            arrays: The arrays by key, or a structured array with the keys as names of its fields.
            batch_size: The leading axes of the arrays.
            more: Further entries, which replace others of the same name.
        """
        entries: dict[str, Any] = {name: _from_numpy(arrays[key]) for name, key in self._leaves}
        for name, group in self._groups:
            entries[name] = group.of_arrays(arrays, batch_size)
        if more:
            entries.update(more)
        return _build(entries, batch_size, None) if KNOWN else TensorDict(entries, batch_size=batch_size)


_from_numpy = torch.from_numpy


@lru_cache(maxsize=256)
def groups_of(keys: tuple[Key, ...]) -> Groups:
    """Return the groups of keys."""
    return Groups(nest_keys({key: key for key in keys}))
