"""The layout of packed rows: which leaves of a step share a record, and where the leaves are in the record."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from datasets_rl.format.schema import WIDE_BYTES
from datasets_rl.storages.packed import RowSlot, RowViews
from datasets_rl.storages.structure import Leaf, Structure

_WORD = 8


def row_layout(structure: Structure) -> list[tuple[int, RowViews]]:
    """Return, for each table, the number of words in a row and the views of its leaves.

    The narrow leaves share the first table. They are sorted by item size, so that all are aligned, and then by name, so
    that two storages of the same leaves have the same layout. Each wide leaf has a separate table.
    """
    narrow: list[RowSlot] = []
    wide: list[tuple[int, RowViews]] = []
    offset = 0
    leaves = ((number, structure.leaves[number]) for number in structure.by_name)
    numbered = [
        (dtype, number, shape) for number, leaf in leaves for dtype, shape in [_stored(leaf)] if dtype is not None
    ]
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


def table_shapes(structure: Structure, layout: str) -> list[tuple[torch.dtype | None, tuple[int, ...]]]:
    """Return the dtype and the shape of a step of each table in a saved state.

    Args:
        structure: The structure of a step.
        layout: "rows" for packed rows, "leaves" for a table per leaf that is a tensor, sorted by path.
    """
    if layout == "rows":
        return [(torch.int64, (words,)) for words, _ in row_layout(structure)]
    leaves = [_stored(structure.leaves[number]) for number in structure.by_name]
    return [(dtype, shape) for dtype, shape in leaves if dtype is not None]


def _stored(leaf: Leaf) -> tuple[torch.dtype | None, tuple[int, ...]]:
    """Return the dtype and the shape of a leaf in a stored step. A compressed leaf is a reference."""
    return (torch.int64, ()) if leaf.compressed else (leaf.dtype, leaf.shape)


def leaf_tables(structure: Structure, tables: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Convert the chunks of packed rows, each [n, words], to chunks of leaves, each [n, *shape], as views."""
    chunks: dict[int, list[Tensor]] = {}
    for (_, views), parts in zip(row_layout(structure), tables, strict=True):
        for part in parts:
            leaves: dict[int, Tensor] = {}
            views(part, leaves)
            for number, leaf in leaves.items():
                chunks.setdefault(number, []).append(leaf)
    return [chunks.get(number, []) for number in structure.by_name if structure.leaves[number].dtype is not None]
