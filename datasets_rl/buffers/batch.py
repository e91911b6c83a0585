"""Operations on whole batches: stacking, moving the time axis to the front, page-locked memory."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection, lazy_stack
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from datasets_rl.errors import InvalidArgumentError


def stack_items(items: Any) -> Any:
    """Stack a list of items: TensorDicts (lazily if their shapes differ), tensors, numbers, or trees of such values.

    Raises:
        InvalidArgumentError: If the items are of another type.
    """
    if not isinstance(items, list) or not items:
        return items
    if all(map(is_tensor_collection, items)):
        shapes = {tuple((key, leaf.shape) for key, leaf in item.items(True, True, sort=True)) for item in items}
        return lazy_stack(items) if len(shapes) > 1 else torch.stack(items)
    try:
        # Torch's default collate function converts tuples to lists.
        return tree_map(lambda *leaves: default_collate(list(leaves)), *items)
    except (TypeError, RuntimeError, ValueError) as error:
        type_names = ", ".join(sorted({type(item).__name__ for item in items}))
        raise InvalidArgumentError(
            f"a batch of {type_names} cannot be stacked: {error}",
            hint="pass a collate_fn to the buffer: `lambda items: items` returns the list",
        ) from error


def move_time_first(data: Any, axis: int) -> Any:
    """Move an axis of every leaf to the front: [B, T, ...] becomes [T, B, ...] for axis 1.

    Raises:
        InvalidArgumentError: If a leaf has no such axis.
    """
    if getattr(data, "ndim", axis + 1) <= axis:
        raise InvalidArgumentError(
            f"{type(data).__name__} of shape {list(data.shape)} has no axis {axis} to write along",
            hint="pass [envs, time, ...] to extend for a storage with ndim=2, or a step of each environment to add",
        )
    if is_tensor_collection(data):
        return data.permute(axis, *(other for other in range(data.ndim) if other != axis))
    return (
        data.movedim(axis, 0) if isinstance(data, Tensor) else tree_map(lambda leaf: move_time_first(leaf, axis), data)
    )


def split_data(data: Any, part: slice) -> Any:
    """Return some of several steps: of a list, a sequence of objects, or a tree of leaves that share the first axis."""
    if isinstance(data, (dict, tuple)):
        return tree_map(lambda leaf: leaf[part], data, is_leaf=is_tensor_collection)
    return data[part]


def pin_batch(data: Any) -> Any:
    """Copy a batch to page-locked memory. A TensorDict becomes a single block, which a single copy moves to a GPU."""
    if isinstance(data, TensorDictBase):
        return data.consolidate(pin_memory=True)
    return tree_map(lambda leaf: leaf.pin_memory() if isinstance(leaf, Tensor) else leaf, data)
