"""Concatenated groups of columns, as in the one-hot encoding of several variables.

widths 2, 3     concatenated  a b | c d e      spread  a b .
                                                       c d e
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["concatenate_groups", "pad_groups"]


def pad_groups(columns: Tensor, widths: Tensor) -> Tensor:
    """Rearrange each group to a separate row, padded with zeros: `[..., sum(widths)]` -> `[..., k, max(widths)]`."""
    used = _used_columns(widths)
    rows = columns.new_zeros(*columns.shape[:-1], used.numel())
    rows[..., used.flatten()] = columns
    return rows.reshape(*rows.shape[:-1], *used.shape)


def concatenate_groups(rows: Tensor, widths: Tensor) -> Tensor:
    """Concatenate the groups, the inverse of `pad_groups`: `[..., k, max(widths)]` -> `[..., sum(widths)]`."""
    return rows.flatten(-2)[..., _used_columns(widths).flatten()]


def _used_columns(widths: Tensor) -> Tensor:
    """Return which columns of each row are not padding, bool [k, max(widths)]."""
    return torch.arange(int(widths.max()), device=widths.device) < widths.unsqueeze(-1)
