"""Non-tensor leaves: objects that a TensorDict wraps as non-tensor data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack

__all__ = ["Objects", "as_non_tensor", "write_objects"]

Objects = NDArray[np.object_]
"""One wrapped object per step, [slots, *envs]."""


def as_non_tensor(items: Any) -> Any:
    """Combine an array of wrapped objects into one non-tensor value of the shape of the array."""
    if not isinstance(items, np.ndarray):
        return items
    if not items.size:
        return NonTensorData(None, batch_size=items.shape)
    return NonTensorStack(*map(as_non_tensor, items))


def write_objects(column: Objects, slots: Any, value: Any) -> None:
    """Write non-tensor data [*axes], where `axes` are those of ``column[slots]``."""
    rows = np.arange(column.size).reshape(column.shape)[slots]
    flat = column.reshape(-1)
    # One at a time: numpy would convert a list to an array of items.
    for row, item in zip(np.ravel(rows).tolist(), _as_items(value, np.ndim(rows)), strict=True):
        flat[row] = item


def _as_items(value: Any, axes: int) -> list[Any]:
    return [item for part in value.unbind(0) for item in _as_items(part, axes - 1)] if axes else [value]
