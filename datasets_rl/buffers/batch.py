"""What a buffer does to whole batches: stacking items, turning the time axis to the front, page-locked memory."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection, lazy_stack
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from datasets_rl.errors import InvalidArgumentError

__all__ = ["pinned", "stacked", "time_first"]


def stacked(items: Any) -> Any:
    """Stack a list of items: TensorDicts (lazily where their shapes differ), tensors, numbers, or trees of these.

    Raises:
        InvalidArgumentError: If they are something else.
    """
    if not isinstance(items, list) or not items:
        return items
    if all(map(is_tensor_collection, items)):
        shapes = {tuple((key, leaf.shape) for key, leaf in item.items(True, True, sort=True)) for item in items}
        return lazy_stack(items) if len(shapes) > 1 else torch.stack(items)
    try:
        # Torch's own collate function makes lists of tuples.
        return tree_map(lambda *leaves: default_collate(list(leaves)), *items)
    except (TypeError, RuntimeError, ValueError) as error:
        kinds = ", ".join(sorted({type(item).__name__ for item in items}))
        raise InvalidArgumentError(
            f"a batch of {kinds} cannot be stacked: {error}",
            hint="give the buffer a collate_fn; `lambda items: items` returns them as a list",
        ) from error


def time_first(data: Any, axis: int) -> Any:
    """Turn an axis of every leaf to the front: [B, T, ...] becomes [T, B, ...] for axis 1.

    Raises:
        InvalidArgumentError: If something has no such axis.
    """
    if getattr(data, "ndim", axis + 1) <= axis:
        raise InvalidArgumentError(
            f"{type(data).__name__} of shape {list(data.shape)} was to be written along axis {axis}, which it lacks",
            hint="a storage with ndim=2 takes [lanes, time, ...]: give one step of each lane to add, several to extend",
        )
    if is_tensor_collection(data):
        return data.permute(axis, *(other for other in range(data.ndim) if other != axis))
    return data.movedim(axis, 0) if isinstance(data, Tensor) else tree_map(lambda one: time_first(one, axis), data)


def pinned(data: Any) -> Any:
    """Copy a batch to page-locked memory: a TensorDict into one piece, which one copy then takes to a GPU."""
    if isinstance(data, TensorDictBase):
        return data.consolidate(pin_memory=True)
    return tree_map(lambda leaf: leaf.pin_memory() if isinstance(leaf, Tensor) else leaf, data)
