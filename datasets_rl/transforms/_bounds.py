"""Propagation of the bounds of a spec through functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from datasets_rl.specs import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.specs.unbounded import Unbounded
from datasets_rl.transforms.base import any_like


def bounds_of(spec: TensorSpec) -> tuple[Tensor, Tensor] | None:
    """Return the lower and the upper bounds, each of the shape of the spec, or `None` if the spec has no bounds."""
    if isinstance(spec, BoundedTensorSpec):
        return spec.low, spec.high
    if isinstance(spec, Unbounded) and not spec.dtype.is_floating_point:
        return spec.space.low, spec.space.high
    return None


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the dtype of the values of a spec."""
    dtype: torch.dtype = spec.zero().dtype
    return dtype


def clip_bounds(spec: TensorSpec, low: float | None, high: float | None) -> TensorSpec:
    """Return the spec of clipped values. For an unbounded spec, the limits become its bounds."""
    clipped = map_bounds(spec, lambda value: value.clamp(low, high))
    if isinstance(clipped, BoundedTensorSpec):
        return clipped
    lower, upper = -torch.inf if low is None else low, torch.inf if high is None else high
    return BoundedTensorSpec(lower, upper, clipped.shape, clipped.device, dtype_of(clipped))


def spec_between(first: Tensor, second: Tensor) -> TensorSpec:
    """Return the spec of the values between two bounds, in any order, or an unbounded spec if a bound is NaN."""
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    if low.isnan().any() or high.isnan().any():
        return any_like(low)
    return BoundedTensorSpec(low, high, low.shape, low.device, low.dtype)


def map_bounds(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Return the spec of the results of a function that is monotonic in each element."""
    return join_bounds([spec], lambda values: function(values[0]))


def join_bounds(specs: Sequence[TensorSpec], function: Callable[[list[Tensor]], Tensor]) -> TensorSpec:
    """Return the spec of the results of a function of several values that is monotonic in each element of each value."""
    bounds = [pair for pair in map(bounds_of, specs) if pair is not None]
    if len(bounds) < len(specs):
        return any_like(function([spec.zero() for spec in specs]))
    low, high = (function([pair[side] for pair in bounds]) for side in (0, 1))
    return spec_between(low, high)


def repeat_bounds(spec: TensorSpec, count: int, axis: int) -> TensorSpec:
    """Return the spec of `count` values of a spec, stacked along a new axis."""
    return map_bounds(spec, lambda value: torch.stack([value] * count, axis))


def include_value(spec: TensorSpec, value: float) -> TensorSpec:
    """Return the spec that also has a value, such as that of padding."""
    bounds = bounds_of(spec)
    return spec if bounds is None else spec_between(bounds[0].clamp(max=value), bounds[1].clamp(min=value))
