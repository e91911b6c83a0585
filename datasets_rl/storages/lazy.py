"""A storage that makes its memory when the first data comes: packed rows, in RAM or on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import WIDE_BYTES
from datasets_rl.storages.base import Storage, device_of
from datasets_rl.storages.non_tensor import Objects, as_non_tensor, write_objects
from datasets_rl.storages.packed import RowSlot, RowViews
from datasets_rl.storages.structure import Structure
from datasets_rl.storages.tensor import TensorStorage

__all__ = ["LazyTensorStorage"]

_WORD = 8


class LazyTensorStorage(TensorStorage):
    """Steps in memory that is made when the first data comes.

    All narrow leaves of a step lie in one record, so that a batch is one gather and views; a leaf of 4,096 bytes and
    more has records of its own. Whole numbers and slices give views, which can be written to; other indices give
    memory of its own.

        slot    | observation | action | reward | flags | pad |      table 0, int64 [slots, *lanes, W]
                | image ..................................... |      table 1

    Args:
        max_size: Steps that fit.
        device: Where the steps lie; "auto" for the device of the first data.
        ndim: Leading axes of the data that count positions.
        compilable: Taken because the reference has it; nothing here stands in the way of a compiler or a process.
        consolidated: Taken because the reference has it: the records lie in one piece anyway.
        shared_init: Refused: `LazyMemmapStorage` does that.
        cleanup_memmap: Belongs to `shared_init`.

    Raises:
        InvalidArgumentError: If `shared_init` is asked for, a size is below 1, or there is no such device; when the first data
            comes, if the steps do not fit in the memory.
    """

    _layout = "rows"
    _views: Sequence[RowViews] = ()
    _objects: Mapping[int, Objects] = MappingProxyType({})
    """The columns of leaves that are no tensors."""

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
    ) -> None:
        del compilable, consolidated, cleanup_memmap
        if shared_init:
            raise InvalidArgumentError(
                "a LazyTensorStorage cannot be started by several processes",
                hint="use a LazyMemmapStorage: the first data may come from any process that has it",
            )
        Storage.__init__(self, max_size, ndim=ndim)
        self.device = None if device == "auto" else device_of(device)

    def _make(self, structure: Structure, lane_shape: tuple[int, ...], leaves: Sequence[Any]) -> None:
        if self.device is None:
            self.device = leaves[0].device
        self._allocate(structure, lane_shape)

    def _allocate(self, structure: Structure, lane_shape: tuple[int, ...]) -> None:
        shape = (self._slots_for(lane_shape), *lane_shape)
        self._use(structure, lane_shape, [self._zeros((*shape, words)) for words, _ in layout(structure)])

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        if self.device is None or self.device.type == "cpu":
            try:
                return torch.from_numpy(np.zeros(shape, np.int64))  # pages of zeros cost nothing until they are written
            except (MemoryError, OverflowError, ValueError) as error:
                raise InvalidArgumentError(
                    f"{self.max_size:,} steps need {math.prod(shape) * _WORD:,} bytes, more than this machine gives",
                    hint="choose a smaller max_size, or a LazyMemmapStorage on a disk that has the room",
                ) from error
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _use(self, structure: Structure, lane_shape: tuple[int, ...], tables: Sequence[Tensor]) -> None:
        self._structure, self._lane_shape, self._tables = structure, lane_shape, tables
        self._views = [views for _, views in layout(structure)]
        slots = (self._slots_for(lane_shape), *lane_shape)
        self._objects = {
            number: np.empty(slots, object) for number, leaf in enumerate(structure.leaves) if leaf.dtype is None
        }
        self._columns = self._unpacked(tables)
        for number, column in self._objects.items():
            self._columns[number] = column

    def _unpacked(self, parts: Sequence[Tensor]) -> list[Any]:
        leaves: list[Any] = [None] * len(self._known().leaves)
        for views, part in zip(self._views, parts, strict=True):
            views(part, leaves)
        return leaves

    def _selected(self, flat: Tensor, steps: int) -> list[Tensor]:
        if not self._tables[0].is_cpu:
            return super()._selected(flat, steps)
        return [table.view(-1, table.shape[-1])[:steps].index_select(0, flat) for table in self._tables]

    def _leaves(self, parts: Sequence[Tensor], rows: Tensor, batch: torch.Size) -> Sequence[Any]:
        leaves = self._unpacked(parts)
        for number, column in self._objects.items():
            leaves[number] = as_non_tensor(column.reshape(-1)[rows.numpy().reshape(batch)])
        return leaves

    def _view(self, where: tuple[Any, ...]) -> tuple[Sequence[Any], torch.Size]:
        parts = [self._delivered(table[: self.held][where]) for table in self._tables]
        leaves = self._unpacked(parts)
        for number, column in self._objects.items():
            leaves[number] = as_non_tensor(column[: self.held][where])
        return leaves, parts[0].shape[:-1]

    def _flat(self, column: Any) -> Any:
        return as_non_tensor(column.reshape(-1)) if isinstance(column, np.ndarray) else super()._flat(column)

    def _delivered(self, part: Tensor) -> Tensor:
        """Bring a part of a table to where batches go."""
        return part

    def _copy(self, slots: int | slice, leaves: Sequence[Any]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            if isinstance(column, np.ndarray):
                write_objects(column, slots, leaf)
            else:
                column[slots].copy_(leaf)

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        fresh = [table.new_zeros((len(slots), *table.shape[1:])) for table in self._tables]
        for number, (column, leaf) in enumerate(zip(self._unpacked(fresh), leaves, strict=True)):
            if number in self._objects:
                write_objects(self._objects[number], slots.numpy(), leaf)
            else:
                column.copy_(leaf)
        for table, part in zip(self._tables, fresh, strict=True):
            table.index_copy_(0, slots.to(table.device), part)

    def _saved(self) -> Sequence[Tensor]:
        return self._tables

    def _table_shapes(self, structure: Structure) -> list[tuple[torch.dtype | None, tuple[int, ...]]]:
        return [(torch.int64, (words,)) for words, _ in layout(structure)]

    def share(self) -> None:
        """Let processes that get this storage from now on read and write the same memory.

        Raises:
            InvalidArgumentError: If there is no memory yet, or objects that are no tensors.
        """
        self._expect_tensors("be shared between processes")
        super().share()

    def _expect_tensors(self, verb: str) -> None:
        names = [repr(leaf.path) for leaf in self._structure.leaves if leaf.dtype is None] if self._structure else []
        if names:
            raise InvalidArgumentError(
                f"data that is no tensor cannot {verb}: {', '.join(names)}",
                hint="leave it out, or encode it as a tensor",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what one element is and all steps held; the tensors are views of this storage's memory.

        Raises:
            InvalidArgumentError: If there are objects that are no tensors.
        """
        self._expect_tensors("be saved")
        return super().state_dict()

    def _restore(self, state: Mapping[str, Any]) -> None:
        if self.device is None:
            self.device = state["tables"][0][0].device if state["tables"][0] else torch.device("cpu")
        self._allocate(Structure.from_json(state["structure"]), tuple(state["lanes"]))

    def _pickled(self, state: dict[str, Any]) -> dict[str, Any]:
        made = {"_views", "_columns", "_ledger", "_shared_words"}
        state = {name: value for name, value in state.items() if name not in made}
        if not self.shared:
            # The pickler of torch.multiprocessing would share the tables, and leave the counts behind.
            state["_tables"] = [table.clone() for table in self._tables]
        return state

    def _remake(self) -> None:
        if self._structure is not None:
            objects = self._objects
            self._use(self._structure, self._lane_shape, self._tables)
            for number, column in objects.items():
                self._objects[number][...] = column


def layout(structure: Structure) -> list[tuple[int, RowViews]]:
    """Give every leaf its place: the words of one row, and the views of it, for each table.

    The narrow leaves share the first table, sorted by item size so that all are aligned, and then by name so that two
    storages of the same leaves agree; each wide one has its own.
    """
    narrow: list[RowSlot] = []
    wide: list[tuple[int, RowViews]] = []
    offset = 0
    leaves = ((number, structure.leaves[number]) for number in structure.by_name)
    numbered = [(leaf.dtype, number, leaf.shape) for number, leaf in leaves if leaf.dtype is not None]
    for dtype, number, shape in sorted(numbered, key=lambda item: -item[0].itemsize):
        size = dtype.itemsize * math.prod(shape)
        if size < WIDE_BYTES and dtype.itemsize <= _WORD:
            narrow.append(RowSlot(number, offset, dtype, shape))
            offset += size
        else:
            step = max(dtype.itemsize, _WORD)
            taken = max(-(-size // step) * step, step)
            wide.append((taken // _WORD, RowViews([RowSlot(number, 0, dtype, shape)], taken)))
    words = max(-(-offset // _WORD), 1)
    return [(words, RowViews(narrow, words * _WORD)), *wide] if narrow or not wide else wide
