"""Random draws between bounds, the limits of dtypes, and rounding to int64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

_INT64_MIN = -(1 << 63)
_INT64_MAX = (1 << 63) - 1
_INT64_MAX_DOUBLE = float((1 << 63) - (1 << 10))
"""The largest double that is a valid int64."""


def dtype_limits(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and the largest finite number of a dtype."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


def without_repeats(tensor: Tensor) -> Tensor:
    """Return a view with size 1 along every axis of stride 0, so that the view contains each stored element once."""
    repeats = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor[tuple(slice(0, 1) if size > 1 and not stride else slice(None) for size, stride in repeats)]


def random_integers(
    low: Tensor | int,
    high: Tensor | int,
    shape: Sequence[int],
    *,
    device: torch.device | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Draw int64 uniformly from [low, high], both bounds included."""
    if isinstance(low, int) and isinstance(high, int) and high - low < 1 << 32 and high < _INT64_MAX:
        return torch.randint(low, high + 1, shape, device=device, generator=generator)
    low = torch.as_tensor(low, dtype=torch.int64, device=device)
    high = torch.as_tensor(high, dtype=torch.int64, device=device)
    # The span may exceed int64, and is treated as unsigned in two's complement. Rejection sampling: draw as many random
    # bits as the span has and redraw values above the span. A remainder or a scaled float would be biased.
    span = (high - low).expand(tuple(shape))
    bits = span
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> shift)
    drawn = torch.empty(tuple(shape), dtype=torch.int64, device=device)
    drawn.random_(_INT64_MIN, None, generator=generator).bitwise_and_(bits)
    while bool((rejected := (drawn ^ _INT64_MIN) > (span ^ _INT64_MIN)).any()):
        redrawn = torch.empty(int(rejected.sum()), dtype=torch.int64, device=device)
        drawn[rejected] = redrawn.random_(_INT64_MIN, None, generator=generator) & bits[rejected]
    return low + drawn


def random_reals(low: Tensor, high: Tensor, shape: Sequence[int], *, generator: Generator | None = None) -> Tensor:
    """Draw floats from [low, high], uniformly if both bounds are finite.

    If only low or high is finite, the distance from the finite bound is drawn from the exponential distribution of
    mean 1. If both bounds are infinite, the value is drawn from the standard normal distribution.
    """
    dtype, device = low.dtype, low.device
    # At least float32: a 16-bit dtype has so few values between 0 and 1 that some results would never be drawn.
    drawn = torch.rand(
        tuple(shape),
        dtype=max(dtype, torch.float32, key=lambda dtype: dtype.itemsize),
        device=device,
        generator=generator,
    )
    # In low + u * (high - low), the difference may overflow to infinity.
    inner = low * (1 - drawn) + high * drawn
    from_low, from_high = low.isfinite(), high.isfinite()
    if not bool((from_low & from_high).all()):
        distance = torch.empty_like(drawn).exponential_(generator=generator)
        normal = torch.empty_like(drawn).normal_(generator=generator)
        outer = torch.where(from_low, low + distance, torch.where(from_high, high - distance, normal))
        inner = torch.where(from_low & from_high, inner, outer)
    return torch.clamp(inner.to(dtype), low, high)


def nearest_int64(value: Tensor) -> Tensor:
    """Return the nearest int64, or 0 for NaN."""
    if not value.is_floating_point():
        return value.long()
    rounded = torch.nan_to_num(value.double(), posinf=_INT64_MAX_DOUBLE, neginf=_INT64_MIN).round()
    return rounded.clamp(_INT64_MIN, _INT64_MAX_DOUBLE).long()
