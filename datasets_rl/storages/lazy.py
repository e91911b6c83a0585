"""A storage that allocates its memory at the first write: packed rows, in RAM or on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

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
    """Steps in memory that is allocated when the first data are written.

    All narrow leaves of a step are stored in one record, so that a batch takes one gather and views of the result; a
    leaf of 4,096 bytes or more has its own records. Integers and slices give views, which the caller can write to;
    other indices give copies.

        slot    | observation | action | reward | flags | pad |      table 0, int64 [slots, *envs, W]
                | image ..................................... |      table 1

    Args:
        max_size: Maximum number of steps.
        device: Device of the memory; "auto" for the device of the first data.
        ndim: Number of leading axes of the data that index steps.
        compilable: Accepted for compatibility with TorchRL; has no effect.
        consolidated: Accepted for compatibility with TorchRL; the records are contiguous in any case.
        shared_init: Not supported: use `LazyMemmapStorage`.
        cleanup_memmap: Accepted together with `shared_init`; has no effect.

    Raises:
        InvalidArgumentError: If `shared_init` is True, a size is below 1, or there is no such device; at the first
            write, if the steps do not fit in memory.
    """

    _layout = "rows"
    _views: Sequence[RowViews] = ()
    _objects: Mapping[int, Objects] = MappingProxyType({})
    """The columns of non-tensor leaves, by leaf number."""

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
                "a LazyTensorStorage cannot be initialized by several processes",
                hint="use a LazyMemmapStorage: any process that has it may write the first data",
            )
        Storage.__init__(self, max_size, ndim=ndim)
        self.device = None if device == "auto" else device_of(device)

    def _initialize(self, structure: Structure, env_shape: tuple[int, ...], leaves: Sequence[Any]) -> None:
        if self.device is None:
            self.device = leaves[0].device
        self._allocate(structure, env_shape)

    def _allocate(self, structure: Structure, env_shape: tuple[int, ...]) -> None:
        shape = (self._slots_for(env_shape), *env_shape)
        self._use_tables(
            structure, env_shape, [self._zero_tensor((*shape, words)) for words, _ in row_layout(structure)]
        )

    def _zero_tensor(self, shape: tuple[int, ...]) -> Tensor:
        if self.device is None or self.device.type == "cpu":
            try:
                return torch.from_numpy(np.zeros(shape, np.int64))  # the system allocates a page at its first write
            except (MemoryError, OverflowError, ValueError) as error:
                raise InvalidArgumentError(
                    f"{self.max_size:,} steps need {math.prod(shape) * _WORD:,} bytes of memory, which is not available",
                    hint="choose a smaller max_size, or a LazyMemmapStorage on a disk with enough space",
                ) from error
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _use_tables(self, structure: Structure, env_shape: tuple[int, ...], tables: Sequence[Tensor]) -> None:
        self._structure, self._env_shape, self._tables = structure, env_shape, tables
        self._views = [views for _, views in row_layout(structure)]
        slots = (self._slots_for(env_shape), *env_shape)
        self._objects = {
            number: np.empty(slots, object) for number, leaf in enumerate(structure.leaves) if leaf.dtype is None
        }
        self._columns = self._unpack_leaves(tables)
        for number, column in self._objects.items():
            self._columns[number] = column

    def _unpack_leaves(self, parts: Sequence[Tensor]) -> list[Any]:
        leaves: list[Any] = [None] * len(self._initialized_structure().leaves)
        for views, part in zip(self._views, parts, strict=True):
            views(part, leaves)
        return leaves

    def _select_rows(self, flat: Tensor, steps: int) -> list[Tensor]:
        if not self._tables[0].is_cpu:
            return super()._select_rows(flat, steps)
        return [table.view(-1, table.shape[-1])[:steps].index_select(0, flat) for table in self._tables]

    def _leaves(self, parts: Sequence[Tensor], rows: Tensor, batch: torch.Size) -> Sequence[Any]:
        leaves = self._unpack_leaves(parts)
        for number, column in self._objects.items():
            leaves[number] = as_non_tensor(column.reshape(-1)[rows.numpy().reshape(batch)])
        return leaves

    def _view(self, where: tuple[Any, ...]) -> tuple[Sequence[Any], torch.Size]:
        parts = [self._move_to_device(table[: self.filled_count][where]) for table in self._tables]
        leaves = self._unpack_leaves(parts)
        for number, column in self._objects.items():
            leaves[number] = as_non_tensor(column[: self.filled_count][where])
        return leaves, parts[0].shape[:-1]

    def _flat(self, column: Any) -> Any:
        return as_non_tensor(column.reshape(-1)) if isinstance(column, np.ndarray) else super()._flat(column)

    def _move_to_device(self, part: Tensor) -> Tensor:
        """Move rows gathered from a table to the device of the batches."""
        return part

    def _copy(self, slots: int | slice, leaves: Sequence[Any]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            if isinstance(column, np.ndarray):
                write_objects(column, slots, leaf)
            else:
                column[slots].copy_(leaf)

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        new_rows = [table.new_zeros((len(slots), *table.shape[1:])) for table in self._tables]
        for number, (column, leaf) in enumerate(zip(self._unpack_leaves(new_rows), leaves, strict=True)):
            if number in self._objects:
                write_objects(self._objects[number], slots.numpy(), leaf)
            else:
                column.copy_(leaf)
        for table, rows in zip(self._tables, new_rows, strict=True):
            table.index_copy_(0, slots.to(table.device), rows)

    def _saved_tables(self) -> Sequence[Tensor]:
        return self._tables

    def _table_shapes(self, structure: Structure) -> list[tuple[torch.dtype | None, tuple[int, ...]]]:
        return [(torch.int64, (words,)) for words, _ in row_layout(structure)]

    @override
    def share(self) -> None:
        self._check_only_tensors("be shared between processes")
        super().share()

    def _check_only_tensors(self, verb: str) -> None:
        names = [repr(leaf.path) for leaf in self._structure.leaves if leaf.dtype is None] if self._structure else []
        if names:
            raise InvalidArgumentError(
                f"non-tensor data cannot {verb}: {', '.join(names)}",
                hint="drop these keys, or encode the values as tensors",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the structure of a step and all stored steps; the tensors are views of this storage's memory.

        Raises:
            InvalidArgumentError: If a leaf is not a tensor.
        """
        self._check_only_tensors("be saved")
        return super().state_dict()

    def _restore(self, state: Mapping[str, Any]) -> None:
        if self.device is None:
            self.device = state["tables"][0][0].device if state["tables"][0] else torch.device("cpu")
        self._allocate(Structure.from_json(state["structure"]), tuple(state["env_shape"]))

    def _pickle_state(self, state: dict[str, Any]) -> dict[str, Any]:
        derived = {"_views", "_columns", "_ledger", "_shared_words"}
        state = {name: value for name, value in state.items() if name not in derived}
        if not self.shared:
            # The pickler of torch.multiprocessing would share the tables, but not the counts.
            state["_tables"] = [table.clone() for table in self._tables]
        return state

    def _restore_views(self) -> None:
        if self._structure is not None:
            objects = self._objects
            self._use_tables(self._structure, self._env_shape, self._tables)
            for number, column in objects.items():
                self._objects[number][...] = column


def row_layout(structure: Structure) -> list[tuple[int, RowViews]]:
    """Return, for each table, the number of words in a row and the views of its leaves.

    The narrow leaves share the first table. They are sorted by item size, so that all are aligned, and then by name, so
    that two storages of the same leaves have the same layout. Each wide leaf has its own table.
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
            unit = max(dtype.itemsize, _WORD)
            row_bytes = max(-(-size // unit) * unit, unit)
            wide.append((row_bytes // _WORD, RowViews([RowSlot(number, 0, dtype, shape)], row_bytes)))
    words = max(-(-offset // _WORD), 1)
    return [(words, RowViews(narrow, words * _WORD)), *wide] if narrow or not wide else wide
