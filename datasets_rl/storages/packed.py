"""Packed rows -> leaves without a copy: the side of `rows.py` in memory.

A batch is gathered as B windows of bytes (see `rows.py`), and every leaf is a strided view of the windows:

    windows [B, W]    | s_i | a_i r_i flags_i | s_i+1 |
    leaves              observation [B, 17]     next.observation [B, 17]     action [B, 6]  ...

`RowArrays` makes the views of windows in arrays, and `RowViews` of windows in tensors, which may be on a device. For a small
batch, views made by slices of tensors would cost more than the gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets_rl.format.schema import Field, Schema
from datasets_rl.ted.keys import NEXT, Key

Column: TypeAlias = "Tensor | NDArray[Any]"
"""A leaf of a batch, [B, ...]: an array, which torch has not seen yet, or a tensor."""


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype that represents the same values in the same bytes."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the dtype of numpy that represents the same values in the same bytes.

    Raises:
        TypeError: If numpy has no such dtype.
    """
    return torch.empty(0, dtype=dtype).numpy().dtype


def as_tensor(column: Column) -> Tensor:
    """Return a leaf as a tensor, which shares the memory."""
    return column if isinstance(column, Tensor) else torch.from_numpy(column)


def as_array(column: Any) -> Any:
    """Return a leaf as an array, which shares the memory of a leaf in main memory. Other values are returned unchanged."""
    return column.numpy(force=True) if isinstance(column, Tensor) else column


@dataclass(frozen=True, slots=True)
class RowSlot:
    """Position and dtype of a leaf in a window."""

    name: Any
    """Name of the view in the result: a key of a dict, or an index into a list."""
    offset: int
    """Bytes from the start of the window, a multiple of the item size."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Shape of a step."""
    memory_dtype: torch.dtype | None = None
    """The dtype of the result, or None if equal to `dtype`."""

    @property
    def end(self) -> int:
        """Bytes from the start of the window to the end of the leaf."""
        return self.offset + self.dtype.itemsize * math.prod(self.shape)


def row_slots(schema: Schema) -> list[RowSlot]:
    """Return the positions of the narrow fields of a stored dataset, and of the next value of every shared field."""
    slots = [_row_slot(field, field.key, field.offset) for field in schema.narrow]
    return slots + [
        _row_slot(field, (NEXT, *field.key), schema.record_bytes + field.offset)
        for field in schema.narrow
        if field.shared
    ]


def _row_slot(field: Field, key: Key, offset: int) -> RowSlot:
    memory_dtype = torch_dtype(field.memory_dtype) if field.memory_dtype is not None else None
    return RowSlot(key, offset, torch_dtype(field.dtype), field.shape, memory_dtype)


class RowArrays:
    """Views of all leaves of a window in main memory. A view takes numpy a quarter of the time that torch takes.

    Args:
        slots: The positions of the leaves, of dtypes that numpy has.
        window_bytes: Size of a window in bytes.
    """

    def __init__(self, slots: Sequence[RowSlot], window_bytes: int) -> None:
        fields = [str(number) for number in range(len(slots))]
        formats = [(numpy_dtype(slot.dtype), slot.shape) for slot in slots]
        offsets = [slot.offset for slot in slots]
        self._window = np.dtype({"names": fields, "formats": formats, "offsets": offsets, "itemsize": window_bytes})
        self.fields = {slot.name: field for slot, field in zip(slots, fields, strict=True)}
        """The name of the field of each leaf in a structured array of windows, in the order of the slots."""
        self._wider = tuple(
            (slot.name, numpy_dtype(slot.memory_dtype)) for slot in slots if slot.memory_dtype is not None
        )

    def __call__(self, windows: NDArray[np.int64]) -> dict[Any, Column]:
        """Return a view of every leaf by name, [..., *shape], or a copy of a leaf of another dtype in the result.

        Args:
            windows: Words of 8 bytes, [..., W], contiguous.
        """
        records = self.records(windows)
        arrays: dict[Any, Any] = {name: records[field] for name, field in self.fields.items()}
        for name, dtype in self._wider:
            arrays[name] = arrays[name].astype(dtype)
        return arrays

    @property
    def are_views(self) -> bool:
        """Whether each leaf is a view of its field, and not a copy of another dtype."""
        return not self._wider

    def records(self, windows: NDArray[np.int64]) -> Any:
        """Return windows, words [..., W], contiguous, as a structured array [...] of the same memory."""
        return np.ndarray(windows.shape[:-1], self._window, windows)


@dataclass(frozen=True, slots=True)
class _DtypeGroup:
    """All leaves of a dtype in a window."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    """Number of elements of each piece, including the gaps between leaves. The sum is the window."""
    leaves: tuple[tuple[int, Any, tuple[int, ...] | None, torch.dtype | None], ...]
    """Index of the piece, name, shape of a step (None for a single axis), memory dtype (None if unchanged)."""
    scalars: tuple[tuple[int, Any, torch.dtype | None], ...]
    """Element, name and memory dtype (None if unchanged) of leaves with a single number per step."""


class RowViews:
    """Views of all leaves of a window, compiled once.

    Args:
        slots: The positions of the leaves.
        window_bytes: Size of a window in bytes.
    """

    def __init__(self, slots: Sequence[RowSlot], window_bytes: int) -> None:
        self._groups = tuple(
            _dtype_group(dtype, [slot for slot in slots if slot.dtype == dtype], window_bytes)
            for dtype in dict.fromkeys(slot.dtype for slot in slots)
        )

    def __call__(self, windows: Tensor, leaves: Any) -> None:
        """Add a view of every leaf to `leaves`.

        Args:
            windows: [..., W], contiguous along the last axis, of any dtype.
            leaves: A dict or list that receives the views, [..., *shape], by name.
        """
        for group in self._groups:
            items = windows if windows.dtype is group.dtype else windows.view(group.dtype)
            pieces = items.split_with_sizes(group.sizes, -1) if group.leaves else ()
            for number, name, shape, memory_dtype in group.leaves:
                piece = pieces[number]
                if shape is not None:
                    piece = piece.view(*piece.shape[:-1], *shape)
                leaves[name] = piece if memory_dtype is None else piece.to(memory_dtype)
            for element, name, memory_dtype in group.scalars:
                piece = items.select(-1, element)
                leaves[name] = piece if memory_dtype is None else piece.to(memory_dtype)


def _dtype_group(dtype: torch.dtype, slots: Sequence[RowSlot], window_bytes: int) -> _DtypeGroup:
    sizes: list[int] = []
    leaves: list[tuple[int, Any, tuple[int, ...] | None, torch.dtype | None]] = []
    end = 0
    for slot in sorted((slot for slot in slots if slot.shape), key=lambda slot: slot.offset):
        gap = slot.offset // dtype.itemsize - end
        if gap:
            sizes.append(gap)
        leaves.append((len(sizes), slot.name, None if len(slot.shape) == 1 else slot.shape, slot.memory_dtype))
        sizes.append(math.prod(slot.shape))
        end = slot.offset // dtype.itemsize + sizes[-1]
    rest = window_bytes // dtype.itemsize - end
    scalars = tuple((slot.offset // dtype.itemsize, slot.name, slot.memory_dtype) for slot in slots if not slot.shape)
    return _DtypeGroup(dtype, tuple(sizes + [rest] * bool(rest)), tuple(leaves), scalars)
