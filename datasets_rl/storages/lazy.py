"""Storages that make their memory when the first data comes: packed rows, in RAM or on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets_rl.rows import WIDE_BYTES
from datasets_rl.storages._base import Storage
from datasets_rl.storages.packed import RowViews, Spot
from datasets_rl.storages.structure import Leaf, Structure
from datasets_rl.storages.tensor import TensorStorage

__all__ = ["LazyTensorStorage"]

_WORD = 8


class LazyTensorStorage(TensorStorage):
    """Steps in memory that is made when the first data comes.

    All narrow leaves of a step lie in one record, so that a batch is one gather and views; a leaf of 4,096 bytes and
    more has records of its own. Whole numbers and slices give views, which can be written to; other indices give
    memory of its own.

    Args:
        max_size: Steps that fit.
        device: Where the steps lie; "auto" for the device of the first data.
        ndim: Leading axes of the data that count positions.
    """

    def __init__(self, max_size: int, *, device: torch.device | str = "cpu", ndim: int = 1) -> None:
        Storage.__init__(self, max_size, ndim=ndim)
        self.device = None if device == "auto" else torch.device(device)

    def _start(self, structure: Structure, lane_shape: tuple[int, ...], device: torch.device) -> None:
        if not self.initialized:
            self.device = device if self.device is None else self.device
            self._make(structure, lane_shape, self.max_size // math.prod(lane_shape))

    def _make(self, structure: Structure, lane_shape: tuple[int, ...], slots: int) -> None:
        tables = layout(structure.leaves)
        self._lane_shape = lane_shape
        self._tables = [
            self._allocated(number, (slots, *lane_shape, words)) for number, (words, _) in enumerate(tables)
        ]
        self._views = [views for _, views in tables]
        self._structure = structure
        self._columns = self._leaves(self._tables)

    def _allocated(self, number: int, shape: tuple[int, ...]) -> Tensor:
        del number
        if self.device is None or self.device.type == "cpu":
            return torch.from_numpy(np.zeros(shape, np.int64))  # pages of zeros cost nothing until they are written
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _leaves(self, tables: Sequence[Tensor]) -> list[Any]:
        leaves: list[Any] = [None] * len(self._known().leaves)
        for views, table in zip(self._views, tables, strict=True):
            views(table, leaves)
        return leaves

    def _gather(self, rows: Tensor) -> Any:
        structure, steps = self._known(), len(self)
        flat = rows if rows.ndim == 1 else rows.reshape(-1)
        parts = [
            table.view(-1, table.shape[-1])[:steps].index_select(0, flat.to(table.device)).to(self.device)
            for table in self._tables
        ]
        if rows.ndim != 1:
            parts = [part.view(*rows.shape, part.shape[-1]) for part in parts]
        return structure.build(self._leaves(parts), rows.shape, self.device)

    def _view(self, where: tuple[Any, ...]) -> Any:
        structure, held = self._known(), self.held
        parts = [table[:held][where].to(self.device) for table in self._tables]
        return structure.build(self._leaves(parts), parts[0].shape[:-1], self.device)

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        fresh = [table.new_zeros((len(slots), *table.shape[1:])) for table in self._tables]
        for column, leaf in zip(self._leaves(fresh), leaves, strict=True):
            column.copy_(leaf)
        for table, part in zip(self._tables, fresh, strict=True):
            table.index_copy_(0, slots.to(table.device), part)


def layout(leaves: Sequence[Leaf]) -> list[tuple[int, RowViews]]:
    """Give every leaf its place: words and views of a row of each table; the first has the narrow leaves."""
    narrow: list[Spot] = []
    tables: list[tuple[int, RowViews]] = []
    offset = 0
    for number, leaf in sorted(enumerate(leaves), key=lambda item: -item[1].dtype.itemsize):
        size = leaf.dtype.itemsize * math.prod(leaf.shape)
        if size < WIDE_BYTES and leaf.dtype.itemsize <= _WORD:
            narrow.append(Spot(number, offset, leaf.dtype, leaf.shape))
            offset += size
        else:
            words = _words(size, leaf.dtype)
            tables.append((words, RowViews([Spot(number, 0, leaf.dtype, leaf.shape)], words * _WORD)))
    if narrow:
        words = max(_words(offset), 1)
        tables.insert(0, (words, RowViews(narrow, words * _WORD)))
    return tables


def _words(size: int, dtype: torch.dtype = torch.int64) -> int:
    step = max(dtype.itemsize, _WORD)
    return -(-size // step) * step // _WORD
