"""The arithmetic of categories: places that each hold one of n numbers, some of which may be masked.

In the shapes, P are the places, and N is the greatest number of categories at a place. `sizes` says how many categories
a place has, one int for all or int64 [P]; `allowed`, bool [P, N], which of them may be taken; None allows all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._numbers import integers

__all__ = ["draw", "inside", "nearest"]


def draw(
    sizes: int | Tensor,
    allowed: Tensor | None,
    shape: Sequence[int],
    device: torch.device,
    generator: Generator | None,
) -> Tensor:
    """Draw a category for each place, int64 of shape [..., P], each that is allowed with the same chance.

    Raises:
        InvalidArgumentError: If some place allows none.
    """
    if allowed is None:
        return integers(0, sizes - 1, shape, device=device, generator=generator)
    _expect_some(allowed)
    rank = integers(0, allowed.sum(-1) - 1, shape, device=device, generator=generator)
    # The category before which `rank` allowed ones stand.
    return (allowed.cumsum(-1) <= rank.unsqueeze(-1)).sum(-1)


def inside(index: Tensor, sizes: int | Tensor, allowed: Tensor | None) -> Tensor | None:
    """Say of each place of an index [..., P] whether it is a category that is allowed; None if all are."""
    if isinstance(sizes, int) and allowed is None:
        if not index.numel():
            return None
        least, greatest = index.aminmax()
        if least >= 0 and greatest < sizes and not index.is_floating_point():
            return None
    if isinstance(sizes, Tensor):
        sizes = sizes.to(index.device)
    if index.dtype == torch.bool:
        index = index.long()
    right = (index >= 0) & (index < sizes)
    if index.is_floating_point():
        right &= index == index.floor()
    if allowed is not None:
        within = index.long().clamp(0, allowed.shape[-1] - 1).unsqueeze(-1)
        right &= allowed.to(index.device).expand(*index.shape, -1).gather(-1, within).squeeze(-1)
    return right


def nearest(index: Tensor, sizes: int | Tensor, allowed: Tensor | None) -> Tensor:
    """Return the nearest category that is allowed to each number of an int64 index [..., P]; the lower one of two.

    Raises:
        InvalidArgumentError: If some place allows none.
    """
    index = index.clamp(min=0)
    index = index.clamp(max=sizes - 1) if isinstance(sizes, int) else torch.minimum(index, sizes.to(index.device) - 1)
    if allowed is None:
        return index
    _expect_some(allowed)
    allowed = allowed.to(index.device)
    away = (torch.arange(allowed.shape[-1], device=index.device) - index.unsqueeze(-1)).abs()
    return away.masked_fill(~allowed, allowed.shape[-1]).argmin(-1)


def _expect_some(allowed: Tensor) -> None:
    none = ~allowed.any(-1)
    if bool(none.any()):
        first = none.nonzero()[0].tolist()
        raise InvalidArgumentError(
            f"the mask allows no category{f' at {first}' if first else ''}", hint="give `update_mask` one with a True"
        )
