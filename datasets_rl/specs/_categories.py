"""Operations on tensors of category indices, in which a mask may exclude categories.

In the shapes, P are the axes of the elements, and N is the largest number of categories of an element. `sizes` is the
number of categories of each element: one int for all or int64 [P]. `allowed`, bool [P, N], marks the categories that an
element may have; `None` allows all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._numbers import random_integers

__all__ = ["are_allowed", "draw_categories", "nearest_allowed"]


def draw_categories(
    sizes: int | Tensor,
    allowed: Tensor | None,
    shape: Sequence[int],
    device: torch.device,
    generator: Generator | None,
) -> Tensor:
    """Draw a category for each element uniformly from those that are allowed, int64 [..., P].

    Raises:
        InvalidArgumentError: If the mask allows no category for an element.
    """
    if allowed is None:
        _check_sizes(sizes)
        return random_integers(0, sizes - 1, shape, device=device, generator=generator)
    _check_mask(allowed)
    rank = random_integers(0, allowed.sum(-1) - 1, shape, device=device, generator=generator)
    # The category that follows `rank` allowed ones.
    return (allowed.cumsum(-1) <= rank.unsqueeze(-1)).sum(-1)


def are_allowed(index: Tensor, sizes: int | Tensor, allowed: Tensor | None) -> Tensor | None:
    """Return which elements of an index [..., P] are allowed categories, bool of the same shape; `None` if all are."""
    if isinstance(sizes, int) and allowed is None:
        if not index.numel():
            return None
        smallest, largest = index.aminmax()
        if smallest >= 0 and largest < sizes and not index.is_floating_point():
            return None
    if isinstance(sizes, Tensor):
        sizes = sizes.to(index.device)
    if index.dtype == torch.bool:
        index = index.long()
    valid = (index >= 0) & (index < sizes)
    if index.is_floating_point():
        valid &= index == index.floor()
    if allowed is not None:
        clamped = index.long().clamp(0, allowed.shape[-1] - 1).unsqueeze(-1)
        valid &= allowed.to(index.device).expand(*index.shape, -1).gather(-1, clamped).squeeze(-1)
    return valid


def nearest_allowed(index: Tensor, sizes: int | Tensor, allowed: Tensor | None) -> Tensor:
    """Return the allowed category nearest to each element of an int64 index [..., P]; the lower one of two.

    Raises:
        InvalidArgumentError: If the mask allows no category for an element.
    """
    _check_sizes(sizes)
    index = index.clamp(min=0)
    index = index.clamp(max=sizes - 1) if isinstance(sizes, int) else torch.minimum(index, sizes.to(index.device) - 1)
    if allowed is None:
        return index
    _check_mask(allowed)
    allowed = allowed.to(index.device)
    distance = (torch.arange(allowed.shape[-1], device=index.device) - index.unsqueeze(-1)).abs()
    return distance.masked_fill(~allowed, allowed.shape[-1]).argmin(-1)


def _check_sizes(sizes: int | Tensor) -> None:
    if isinstance(sizes, int) and sizes < 1:
        raise InvalidArgumentError("the spec has no categories; expected at least one")


def _check_mask(allowed: Tensor) -> None:
    empty = ~allowed.any(-1)
    if bool(empty.any()):
        first = empty.nonzero()[0].tolist()
        raise InvalidArgumentError(
            f"the mask allows no category{f' at {first}' if first else ''}",
            hint="call `update_mask` with a mask that has at least one True for each element",
        )
