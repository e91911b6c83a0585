"""A storage of any objects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.errors import BadArgument
from datasets_rl.storages._base import Storage
from datasets_rl.storages.positions import Run, names_one, note, positions, target

__all__ = ["ListStorage"]


class ListStorage(Storage):
    """Any objects, in a list.

    Several elements are given as a list, tuple, range, array, tensor, TensorDict or anything else with a length that
    can be walked through; not as a dict.

    Args:
        max_size: Elements that fit; any number if None.
        device: Where tensors and TensorDicts are moved when they are written; nowhere if None.
    """

    def __init__(self, max_size: int | None = None, *, device: torch.device | str | int | None = None) -> None:
        super().__init__(sys.maxsize if max_size is None else max_size)
        self.device = None if device is None else torch.device(device)
        self._items: list[Any] = []

    def get(self, index: Any) -> Any:
        """Return the object at a whole number, or a list of them.

        Raises:
            IndexError: If the index reaches outside the elements held.
        """
        where = positions(index, (len(self._items),))
        if isinstance(where, Tensor):
            return _chosen(self._items, where.tolist())
        (part,) = where
        return self._items[part]

    def take(self, rows: Tensor) -> list[Any]:
        """Return the elements of these rows, int64 [B], as a list."""
        return [self._items[row] for row in rows.tolist()]

    def set(self, cursor: Any, data: Any) -> None:
        """Write objects into slots.

        Args:
            cursor: A whole number for one object; a slice, range, list or index tensor [n] for n.
            data: One object, or n.

        Raises:
            BadArgument: If the number of objects differs.
            IndexError: If a slot is out of range, or slots before it would be left unwritten.
        """
        one = names_one(cursor)
        items = [data] if one else self._several(data)
        goal = target(cursor, len(items), held=self.held, slots=self.slots)
        numbers = (
            [(goal.first + at) % self.slots for at in range(goal.count)] if isinstance(goal, Run) else goal.tolist()
        )
        for number, item in zip(numbers, map(self._moved, items), strict=True):
            self._items[number : number + 1] = [item]
        note(self._counts, goal, self.slots)

    def _several(self, data: Any) -> Sequence[Any]:
        if isinstance(data, (str, bytes, dict)) or not hasattr(data, "__iter__"):
            raise BadArgument(
                f"{type(data).__name__} is not several elements; expected a list, tuple, array, tensor or TensorDict",
                hint="a ListStorage takes elements one by one, and no pytree of several",
            )
        return list(data)

    def size_of(self, data: Any) -> int:
        """Return how many slots `data` fills."""
        return len(self._several(data))

    def _moved(self, item: Any) -> Any:
        movable = self.device is not None and (isinstance(item, Tensor) or is_tensor_collection(item))
        return item.to(self.device) if movable else item

    def empty(self) -> None:
        """Forget all elements."""
        self._items.clear()
        self._counts[:2] = 0
        self._counts[2] += 1

    def __repr__(self) -> str:
        return f"ListStorage({len(self._items):,} elements)"


def _chosen(items: Sequence[Any], rows: Any) -> Any:
    return [_chosen(items, row) for row in rows] if isinstance(rows, list) else items[rows]
