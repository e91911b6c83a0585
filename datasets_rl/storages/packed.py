"""Packed rows -> TensorDict without a copy: the torch side of `rows.py`.

A batch is gathered as B windows of bytes (see `rows.py`), and every leaf is a strided view of the windows:

    windows [B, W]    | s_i | a_i r_i flags_i | s_i+1 |
    leaves              observation [B, 17]     next.observation [B, 17]     action [B, 6]  ...

A single `split_with_sizes` per dtype creates all views of that dtype: a call per leaf would cost more than the gather
of a small batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.format.schema import Field, Schema
from datasets_rl.ted.keys import NEXT, Key


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype that represents the same values in the same bytes."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


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


def nest_leaves(leaves: dict[Key, Tensor], batch_size: torch.Size, device: torch.device | None = None) -> TensorDict:
    """Build a nested TensorDict from leaves with the batch size as their leading axes.

    The checks of the public constructor cost as much as ten gathers of a small batch. The leaves are the result of a
    single split and need no checks.
    """
    entries: dict[str, Any] = {}
    nested: dict[str, dict[Key, Tensor]] = {}
    for key, leaf in leaves.items():
        if len(key) == 1:
            entries[key[0]] = leaf
        else:
            nested.setdefault(key[0], {})[key[1:]] = leaf
    for name, below in nested.items():
        entries[name] = nest_leaves(below, batch_size, device)
    return unchecked(entries, batch_size, device)


def unchecked(entries: dict[Any, Any], batch_size: torch.Size, device: torch.device | None = None) -> TensorDict:
    """Return a TensorDict of tensors and TensorDicts that have the batch size and the device, without its checks."""
    built: TensorDict = TensorDict._new_unsafe(  # noqa: SLF001 - see `nest_leaves`
        source=entries, batch_size=batch_size, device=device, names=None, nested=False
    )
    return built
