"""Uniform draws, and numbers made whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

__all__ = ["integers", "limits", "once", "reals", "whole"]

_LEAST = -(1 << 63)
_GREATEST = (1 << 63) - 1
_GREATEST_WHOLE = float((1 << 63) - (1 << 10))
"""The greatest double that is an int64."""


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """Return the least and the greatest finite number of a dtype."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def once(tensor: Tensor) -> Tensor:
    """Return a view with one entry along each axis along which the memory is the same: all that there is to look at."""
    repeats = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor[tuple(slice(0, 1) if size > 1 and not stride else slice(None) for size, stride in repeats)]


def integers(
    low: Tensor | int,
    high: Tensor | int,
    shape: Sequence[int],
    *,
    device: torch.device | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Draw int64 in [low, high], both included, each with the same chance."""
    if isinstance(low, int) and isinstance(high, int) and high - low < 1 << 32 and high < _GREATEST:
        return torch.randint(low, high + 1, shape, device=device, generator=generator)
    low = torch.as_tensor(low, dtype=torch.int64, device=device)
    high = torch.as_tensor(high, dtype=torch.int64, device=device)
    # In two's complement, as unsigned: the span of int64 is no int64. Numbers of as many bits as the span has are drawn
    # anew while they are greater: a remainder, or a fraction times the span, would prefer some numbers.
    span = (high - low).expand(tuple(shape))
    bits = span
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> shift)
    drawn = torch.empty(tuple(shape), dtype=torch.int64, device=device)
    drawn.random_(_LEAST, None, generator=generator).bitwise_and_(bits)
    while bool((beyond := (drawn ^ _LEAST) > (span ^ _LEAST)).any()):
        again = torch.empty(int(beyond.sum()), dtype=torch.int64, device=device)
        drawn[beyond] = again.random_(_LEAST, None, generator=generator) & bits[beyond]
    return low + drawn


def reals(low: Tensor, high: Tensor, shape: Sequence[int], *, generator: Generator | None = None) -> Tensor:
    """Draw from the box: uniformly where it is finite.

    Where only one bound is finite, the distance from it is drawn from the exponential distribution of mean 1; where
    none is, from the standard normal distribution.
    """
    dtype, device = low.dtype, low.device
    # Halves have so few fractions between 0 and 1 that some numbers would never be drawn.
    drawn = torch.rand(
        tuple(shape), dtype=max(dtype, torch.float32, key=lambda one: one.itemsize), device=device, generator=generator
    )
    # Not low + u * (high - low): the difference may be infinite.
    inner = low * (1 - drawn) + high * drawn
    from_low, from_high = low.isfinite(), high.isfinite()
    if not bool((from_low & from_high).all()):
        away = torch.empty_like(drawn).exponential_(generator=generator)
        normal = torch.empty_like(drawn).normal_(generator=generator)
        outer = torch.where(from_low, low + away, torch.where(from_high, high - away, normal))
        inner = torch.where(from_low & from_high, inner, outer)
    return torch.clamp(inner.to(dtype), low, high)


def whole(value: Tensor) -> Tensor:
    """Return the nearest int64; what is no number becomes 0."""
    if not value.is_floating_point():
        return value.long()
    rounded = torch.nan_to_num(value.double(), posinf=_GREATEST_WHOLE, neginf=_LEAST).round()
    return rounded.clamp(_LEAST, _GREATEST_WHOLE).long()
