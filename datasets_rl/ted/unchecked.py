"""TensorDicts that are built and changed without the checks of tensordict, which cost more than the gather of a batch.

The only module that uses private names of tensordict for this. In a version of tensordict with other private names, the
public constructor and the public methods take their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.ted.keys import Key, nest_keys


def _build(entries: dict[Any, Any], batch_size: torch.Size, device: torch.device | None) -> TensorDict:
    built: TensorDict = TensorDict._new_unsafe(  # noqa: SLF001 - see the module
        source=entries, batch_size=batch_size, device=device, names=None, nested=False
    )
    return built


def _is_known() -> bool:
    """Return whether this version of tensordict has the private names, with the same meaning."""
    leaf, size = torch.zeros(2), torch.Size((2,))
    try:
        built = _build({"a": leaf}, size, None)
        built._tensordict["b"] = leaf  # noqa: SLF001 - see the module
        entries = dict(built.items())
    except (AttributeError, TypeError, KeyError, RuntimeError):
        return False
    return list(entries) == ["a", "b"] and entries["b"] is leaf and built.batch_size == size and not built.is_locked


KNOWN = _is_known()
"""Whether the private names are used."""


def unchecked(entries: dict[Any, Any], batch_size: torch.Size, device: torch.device | None = None) -> TensorDict:
    """Return a TensorDict of tensors and TensorDicts that have the batch size and the device, without its checks."""
    return _build(entries, batch_size, device) if KNOWN else TensorDict(entries, batch_size=batch_size, device=device)


def entries_of(batch: Any) -> dict[Any, Any] | None:
    """Return the entries of a TensorDict, a dict that may be changed. None if only its methods may change the entries."""
    return batch._tensordict if KNOWN and type(batch) is TensorDict and not batch.is_locked else None  # noqa: SLF001 - see the module


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
        keys: The keys of the leaves, or of a group, by name.
    """

    __slots__ = ("_groups", "_leaves")

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._leaves = tuple((name, key) for name, key in keys.items() if isinstance(key, tuple))
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


@lru_cache(maxsize=256)
def groups_of(keys: tuple[Key, ...]) -> Groups:
    """Return the groups of keys."""
    return Groups(nest_keys({key: key for key in keys}))
