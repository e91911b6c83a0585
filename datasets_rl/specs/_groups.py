"""Groups of columns that stand side by side, as in one-hot tensors of several variables.

widths 2, 3     side by side  a b | c d e      spread  a b .
                                                       c d e
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gathered", "spread"]


def spread(columns: Tensor, widths: Tensor) -> Tensor:
    """Give each group a row of its own, with zeros behind the shorter ones: [..., sum] -> [..., k, max]."""
    kept = _kept(widths)
    rows = columns.new_zeros(*columns.shape[:-1], kept.numel())
    rows[..., kept.flatten()] = columns
    return rows.reshape(*rows.shape[:-1], *kept.shape)


def gathered(rows: Tensor, widths: Tensor) -> Tensor:
    """Undo `spread`: [..., k, max] -> [..., sum]."""
    return rows.flatten(-2)[..., _kept(widths).flatten()]


def _kept(widths: Tensor) -> Tensor:
    return torch.arange(int(widths.max()), device=widths.device) < widths.unsqueeze(-1)
