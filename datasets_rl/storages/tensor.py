"""A storage over tensors that are there already: a tensor, a TensorDict, a tensorclass or a pytree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.errors import BadArgument, UnknownKey
from datasets_rl.storages._base import Storage
from datasets_rl.storages.positions import Run, note, positions, target
from datasets_rl.storages.structure import Structure, stacked
from datasets_rl.ted.keys import Key, dotted, nested

__all__ = ["TensorStorage"]


class TensorStorage(Storage):
    """Steps in tensors that the caller has made; writes reach them, and it is full from the start.

    Whole numbers and slices give views, which can be written to; other indices give memory of its own.

    Args:
        storage: A tensor, a TensorDict, a tensorclass, or a pytree of these, [slots, *lanes, ...].
        max_size: Steps that fit; if given, the number of those in `storage`.
        device: Where batches go; "auto" leaves them where `storage` is.
        ndim: Leading axes that count positions.

    Raises:
        BadArgument: If `storage` has a leaf that is no tensor, or the sizes differ.
    """

    _structure: Structure | None = None
    _lane_shape: tuple[int, ...] = ()
    _columns: Sequence[Any] = ()
    """Every leaf, [slots, *lanes, *shape]: views of the memory that holds it."""

    def __init__(
        self, storage: Any, max_size: int | None = None, *, device: torch.device | str = "cpu", ndim: int = 1
    ) -> None:
        structure = Structure.of(storage, ndim)
        sizes, columns = structure.flatten(storage, [None] * ndim)
        steps = math.prod(sizes)
        if max_size is not None and max_size != steps:
            raise BadArgument(f"max_size is {max_size}, and the storage has {list(sizes)} steps; expected {steps}")
        super().__init__(steps, ndim=ndim)
        self._storage = storage
        self._structure, self._lane_shape, self._columns = structure, sizes[1:], columns
        self.device = columns[0].device if device == "auto" else torch.device(device)
        self._counts[:2] = sizes[0]

    @property
    def initialized(self) -> bool:
        """Whether it is known what one element is."""
        return self._structure is not None

    @property
    def lanes(self) -> int:
        """Steps of one slot."""
        return math.prod(self._lane_shape) if self.initialized else 1

    @property
    def shape(self) -> torch.Size:
        """Slots held, and the axes of the lanes."""
        return torch.Size((self.held, *self._lane_shape))

    def get(self, index: Any) -> Any:
        """Return the data at an index along the leading axes, [held, *lanes].

        Args:
            index: Whole numbers, slices with a step above 0, None and Ellipsis give a view; lists, masks, and index
                tensors give a batch of its own in their shape. A tuple has one of them for each axis.

        Raises:
            IndexError: If the index reaches outside the steps held.
        """
        where = positions(index, (self.held, *self._lane_shape))
        return self._gather(where) if isinstance(where, Tensor) else self._view(where)

    def take(self, rows: Tensor) -> Any:
        """Return the steps of these rows, int64 [B], as one batch [B] in memory of its own."""
        return self._gather(rows)

    def _gather(self, rows: Tensor) -> Any:
        held = self.held
        flat = rows.reshape(-1).to(self._columns[0].device)
        leaves = [
            column[:held]
            .flatten(0, self.ndim - 1)
            .index_select(0, flat)
            .reshape(*rows.shape, *column.shape[self.ndim :])
            for column in self._columns
        ]
        return self._known().build(leaves, rows.shape, self.device)

    def _view(self, where: tuple[Any, ...]) -> Any:
        held = self.held
        leaves = [column[:held][where] for column in self._columns]
        structure = self._known()
        batch = leaves[0].shape[: leaves[0].ndim - len(structure.leaves[0].shape)]
        return structure.build(leaves, batch, self.device)

    def _known(self) -> Structure:
        if self._structure is None and not self.initialized:
            raise IndexError(f"this {type(self).__name__} is empty: nothing has been written to it")
        return self._structure

    def set(self, cursor: Any, data: Any) -> None:
        """Write data into slots.

        A run of slots may go through the end of the ring to its start; of more data than there are slots the last
        is kept. The first data fixes what one element is.

        Args:
            cursor: A whole number for the data of one slot; a slice, range, list or index tensor [n] for that of n.
            data: One element [*lanes], or several [n, *lanes]; a list of elements is stacked.

        Raises:
            BadArgument: If the data does not fit; all faults at once, and nothing has been written.
            IndexError: If a slot is out of range, or slots before it would be left unwritten.
        """
        one = isinstance(cursor, (int, np.integer)) or (isinstance(cursor, Tensor) and cursor.ndim == 0)
        structure, sizes, leaves = self._read(data, one=one)
        lane_shape = sizes[0 if one else 1 :]
        slots = self.max_size // max(math.prod(lane_shape), 1)
        goal = target(cursor, 1 if one else sizes[0], held=self.held, slots=slots)
        self._start(structure, lane_shape, leaves[0].device)
        with torch.no_grad():
            if isinstance(goal, Run):
                for first, begin, count in goal.pieces(slots):
                    self._copy(first, count, [leaf if one else leaf[begin : begin + count] for leaf in leaves], one=one)
            else:
                self._scatter(goal, leaves)
        note(self._counts, goal, slots)

    def _read(self, data: Any, *, one: bool) -> tuple[Structure, tuple[int, ...], list[Any]]:
        if isinstance(data, list) and not one:
            data = stacked(data)
        lanes = self._lane_shape if self.initialized else (None,) * (self.ndim - 1)
        lead = lanes if one else (None, *lanes)
        structure = self._structure or Structure.of(data, len(lead))
        return structure, *structure.flatten(data, lead)

    def size_of(self, data: Any) -> int:
        """Return how many slots `data` fills, given as for `set` with several slots; the first data fixes the lanes."""
        structure, sizes, leaves = self._read(data, one=False)
        self._start(structure, sizes[1:], leaves[0].device)
        return sizes[0]

    def _start(self, structure: Structure, lane_shape: tuple[int, ...], device: torch.device) -> None:
        """Make the memory when the first data comes."""

    def _copy(self, first: int, count: int, leaves: Sequence[Any], *, one: bool) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            (column[first] if one else column[first : first + count]).copy_(leaf)

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column[slots.to(column.device)] = leaf.to(column.device)

    def column(self, key: Key) -> Any:
        """Return one field of all rows held, [rows, ...], or a TensorDict of those below a key; views, not copies.

        Raises:
            UnknownKey: If there is no such key.
        """
        structure, held = self._known(), self.held
        found = structure.under(tuple(key))
        if not found:
            raise UnknownKey(dotted(key), [".".join(map(str, leaf.path)) for leaf in structure.leaves])
        views = {path: self._columns[number][:held].flatten(0, self.ndim - 1) for path, number in found.items()}
        if () in views:
            return views[()]
        return TensorDict(nested(views), batch_size=[len(self)])

    def unravel(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows, [...], as one index for each of the leading axes."""
        return torch.unravel_index(rows, (self.slots, *self._lane_shape)) if self.ndim > 1 else (rows,)

    def ravel(self, index: Any) -> Tensor:
        """Return as rows, int64 [...], what `unravel` returned, or the same stacked along the last axis."""
        if self.ndim == 1:
            return super().ravel(index)
        parts = index if isinstance(index, tuple) else torch.as_tensor(index).unbind(-1)
        rows = torch.as_tensor(parts[0], dtype=torch.int64)
        for part, size in zip(parts[1:], self._lane_shape, strict=True):
            rows = rows * size + torch.as_tensor(part, dtype=torch.int64)
        return rows

    def empty(self) -> None:
        """Forget all steps; the memory stays."""
        self._counts[:2] = 0
        self._counts[2] += 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} of {self.max_size:,} steps, {self._structure or 'of a kind not known yet'})"
