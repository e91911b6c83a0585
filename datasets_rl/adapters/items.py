"""Items of a batch that were read at once, and that the `DataLoader` of torch collates at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map


class Item(dict[str, Any]):
    """An item of `BatchItems`."""


class BatchItems(Sequence[Item]):
    """The items of a batch of B items. An item is made when it is read.

    `default_collate` of torch, with which a `DataLoader` makes batches, returns the values of the whole batch.

    Args:
        columns: The values by name: tensors or arrays [B, ...], lists of B other values, or dicts of values by name.
            Their memory belongs to the items.
    """

    def __init__(self, columns: dict[str, Any], count: int) -> None:
        self._columns, self._count = columns, count

    def collated(self) -> dict[str, Any]:
        """Return what `default_collate` returns for a list of these items, without a copy of tensors and arrays."""
        return {name: _collated(values) for name, values in self._columns.items()}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Item | list[Item]:
        positions = range(self._count)[index]
        if isinstance(positions, range):
            return [self[position] for position in positions]
        return Item((name, _at(values, positions)) for name, values in self._columns.items())

    def __iter__(self) -> Iterator[Item]:
        return map(Item, _rows(self._columns))


def _rows(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the items one after the other, in a third of the time that an item takes by its position."""
    values = [_rows(part) if isinstance(part, dict) else part for part in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))


def _at(values: Any, position: int) -> Any:
    if isinstance(values, dict):
        return {name: _at(part, position) for name, part in values.items()}
    return values[position]


def _collated(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _collated(part) for name, part in values.items()}
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    return values if isinstance(values, torch.Tensor) else default_collate(values)


def _collate(items: Iterable[Item], *, collate_fn_map: Any = None) -> Any:
    del collate_fn_map
    return items.collated() if isinstance(items, BatchItems) else default_collate([dict(item) for item in items])


# The documentation of `default_collate` names this map for types of other libraries.
default_collate_fn_map[Item] = _collate
