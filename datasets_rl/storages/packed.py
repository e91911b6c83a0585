"""Packed rows -> TensorDict without a copy: the torch side of `rows.py`.

A batch is gathered as B windows of bytes (see `rows.py`), and every leaf is a strided view into them:

    windows [B, W]    | s_i | a_i r_i flags_i | s_i+1 |
    leaves              observation [B, 17]     next.observation [B, 17]     action [B, 6]  ...

One `split_with_sizes` for each dtype makes all views of that dtype: a call for every leaf would cost more than the
gather of a small batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.rows import Field, Schema
from datasets_rl.ted.keys import NEXT, Key, nested

__all__ = ["RowViews", "nest", "torch_dtype"]


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype that holds the same values in the same bytes."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


@dataclass(frozen=True, slots=True)
class _Group:
    """All fields of one dtype in a window."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    """Elements of each piece, gaps between fields included; they add up to the window."""
    leaves: tuple[tuple[int, Key, tuple[int, ...], torch.dtype | None], ...]
    """Number of the piece, key, shape of one step, dtype in memory where it differs."""


class RowViews:
    """Views of all narrow fields of a window, compiled once for a schema.

    Args:
        schema: Where the fields lie.
    """

    def __init__(self, schema: Schema) -> None:
        spots: list[tuple[int, Key, Field]] = [(field.offset, field.key, field) for field in schema.narrow]
        spots += [
            (schema.record_bytes + field.offset, (NEXT, *field.key), field) for field in schema.narrow if field.carried
        ]
        dtypes = dict.fromkeys(field.dtype for _, _, field in spots)
        self._groups = tuple(
            _group(dtype, [spot for spot in spots if spot[2].dtype == dtype], schema.window_bytes) for dtype in dtypes
        )

    def __call__(self, windows: Tensor, leaves: dict[Key, Tensor]) -> None:
        """Add a view for every narrow field, and for the next of every carried one.

        Args:
            windows: [B, W], contiguous, of any dtype.
            leaves: Takes the views, [B, ...], by key.
        """
        for group in self._groups:
            pieces = windows.view(group.dtype).split_with_sizes(group.sizes, 1)
            for number, key, shape, read_as in group.leaves:
                piece = pieces[number]
                if len(shape) != 1:
                    piece = piece.view(piece.shape[0], *shape) if shape else piece.squeeze(1)
                leaves[key] = piece if read_as is None else piece.to(read_as)


def _group(dtype: np.dtype[Any], spots: Sequence[tuple[int, Key, Field]], window_bytes: int) -> _Group:
    sizes: list[int] = []
    leaves: list[tuple[int, Key, tuple[int, ...], torch.dtype | None]] = []
    at = 0
    for offset, key, field in sorted(spots, key=lambda spot: spot[0]):
        gap = offset // dtype.itemsize - at
        if gap:
            sizes.append(gap)
        read_as = torch_dtype(field.read_as) if field.read_as is not None else None
        leaves.append((len(sizes), key, field.shape, read_as))
        sizes.append(field.step_bytes // dtype.itemsize)
        at = offset // dtype.itemsize + sizes[-1]
    rest = window_bytes // dtype.itemsize - at
    return _Group(torch_dtype(dtype), tuple(sizes + [rest] * bool(rest)), tuple(leaves))


def nest(leaves: dict[Key, Tensor], batch_size: torch.Size) -> TensorDict:
    """Make a nested TensorDict of leaves that all have the batch size in front.

    The checks of the public constructor cost as much as ten gathers of a small batch; the leaves come from one split
    and need none.
    """
    return _build(nested(leaves), batch_size)


def _build(tree: dict[Any, Any], batch_size: torch.Size) -> TensorDict:
    for name, value in tree.items():
        if type(value) is dict:
            tree[name] = _build(value, batch_size)
    built: TensorDict = TensorDict._new_unsafe(  # noqa: SLF001 - see `nest`
        source=tree, batch_size=batch_size, device=None, names=None
    )
    return built
