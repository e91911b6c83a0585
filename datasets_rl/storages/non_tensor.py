"""Non-tensor leaves: objects that a TensorDict wraps as non-tensor data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack
from torch import Tensor

Objects = NDArray[np.object_]
"""A wrapped object per step, [slots, *envs]."""


def as_non_tensor(items: Any) -> Any:
    """Combine an array of wrapped objects into a non-tensor value of the shape of the array."""
    if not isinstance(items, np.ndarray):
        return items
    if not items.size:
        return NonTensorData(None, batch_size=items.shape)
    return NonTensorStack(*map(as_non_tensor, items))


def write_leaf(column: Any, index: int | slice | Tensor | tuple[Tensor, ...], leaf: Any) -> None:
    """Write a leaf [*axes, ...] into a column of tensors or of objects, with the axes of ``column[index]``."""
    if isinstance(column, Tensor):
        if isinstance(index, tuple):
            column.index_put_(tuple(numbers.to(column.device) for numbers in index), leaf.to(column.device))
        else:
            column[index].copy_(leaf)
        return
    rows = np.arange(column.size).reshape(column.shape)[index]
    flat = column.reshape(-1)
    # Item by item: numpy would convert a list to an array of items.
    for row, item in zip(np.ravel(rows).tolist(), _as_items(leaf, np.ndim(rows)), strict=True):
        flat[row] = item


def _as_items(value: Any, axes: int) -> list[Any]:
    return [item for part in value.unbind(0) for item in _as_items(part, axes - 1)] if axes else [value]
