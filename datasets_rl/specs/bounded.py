"""Spec of bounded numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.specs._document import SpecDocument, compact_values
from datasets_rl.specs._numbers import dtype_limits, nearest_int64, random_integers, random_reals, without_repeats
from datasets_rl.specs.base import Lead, LeafSpec, broadcast_shapes, check_domain, created_shape, parse_shape
from datasets_rl.specs.space import ContinuousBox


class BoundedTensorSpec(LeafSpec):
    """Spec of bounded numbers: each element is in [low, high], both bounds included.

    Elements are floats or integers, according to the dtype. A bound may be infinite. Bounds of an integer dtype are
    rounded inwards and clipped to the range of the dtype.

    `rand` draws uniformly between finite bounds. If only low or high is finite, the distance of a float from the finite
    bound is drawn from the exponential distribution of mean 1. If both bounds are infinite, the float is drawn from the
    standard normal distribution.

        >>> import torch
        >>> from datasets_rl import Bounded
        >>> torques = Bounded(low=-2, high=2, shape=(1,))
        >>> torques.is_in(torch.tensor([1.5])), torques.is_in(torch.tensor([3.0]))
        (True, False)
        >>> torques.project(torch.tensor([3.0]))
        tensor([2.])

    Args:
        low: Lower bound, a number or a tensor that broadcasts to `shape`.
        high: Upper bound, a number or a tensor that broadcasts to `shape`.
        shape: Shape of every tensor of the set, by default the broadcast shape of the bounds, unless this shape is [].
        dtype: Dtype of every tensor of the set, by default torch's default dtype.
        minimum: Alias of `low`.
        maximum: Alias of `high`.
        domain: Value of the attribute `domain`, "continuous" or "discrete", by default the domain of the dtype. The
            argument has no other effect, and is not passed on to a spec of another dtype.

    Raises:
        InvalidArgumentError: If a bound is missing or NaN, the bounds do not broadcast, or the dtype has no number
            between the bounds.
    """

    kind = "bounded"

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        minimum: Any = None,
        maximum: Any = None,
        domain: str | None = None,
    ) -> None:
        lowest, highest = _read_bound("low", low, "minimum", minimum), _read_bound("high", high, "maximum", maximum)
        if shape is None and not lowest.ndim and not highest.ndim:
            raise InvalidArgumentError(
                "shape is missing, and the bounds are scalars", hint="pass shape=() for a spec without axes"
            )
        try:
            if shape is None:
                shape = broadcast_shapes(lowest.shape, highest.shape)
            super().__init__(shape, device, dtype)
            sizes = created_shape(self.shape)
            lowest.expand(sizes), highest.expand(sizes)
        except InvalidArgumentError:
            raise
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"low of shape {list(lowest.shape)} and high of shape {list(highest.shape)} do not broadcast to"
                f" {shape}: {error}"
            ) from None
        self._domain = check_domain(self.dtype, domain)
        low, high = _check_bounds(without_repeats(lowest), without_repeats(highest), self.dtype, self.device)
        self._set(low.expand(sizes), high.expand(sizes))

    def _set(self, low: Tensor, high: Tensor) -> None:
        self._low, self._high = _collapse_bound(low), _collapse_bound(high)
        # Uniform bounds as Python numbers: comparing with two numbers is faster than comparing with two tensors.
        uniform = without_repeats(self._low).numel() == without_repeats(self._high).numel() == 1
        self._finite = (
            bool((without_repeats(self._high) - without_repeats(self._low)).isfinite().all())
            if self.dtype.is_floating_point
            else True
        )
        self._uniform_bounds = (self._low.flatten()[0].item(), self._high.flatten()[0].item()) if uniform else None

    @property
    def domain(self) -> str:  # type: ignore[override]  # a constant of the other classes
        """Domain of the spec, "continuous" or "discrete", by default the domain of the dtype."""
        return self._domain

    @property
    def low(self) -> Tensor:
        """Lower bounds, of the shape of the spec, with size 1 in place of -1."""
        return self._low

    @property
    def high(self) -> Tensor:
        """Upper bounds, of the shape of the spec, with size 1 in place of -1."""
        return self._high

    @property
    @override
    def space(self) -> ContinuousBox:
        return ContinuousBox(self._low, self._high)

    @space.setter
    def space(self, space: ContinuousBox) -> None:
        if not isinstance(space, ContinuousBox):
            raise WrongTypeError(
                f"the space of {self._named()} cannot be set to {type(space).__name__}, expected a ContinuousBox"
            )
        bounded = BoundedTensorSpec(space.low, space.high, self.shape, self.device, self.dtype)
        self._set(bounded.low, bounded.high)

    @override
    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        shape = (*parse_shape(shape), *created_shape(self.shape))
        bounds = self._uniform_bounds
        if not self.dtype.is_floating_point:
            low, high = map(int, bounds) if bounds else (self._low.long(), self._high.long())
            return random_integers(low, high, shape, device=self.device, generator=generator).to(self.dtype)
        if not self._finite or self.dtype.itemsize < 4:
            return random_reals(self._low, self._high, shape, generator=generator)
        # Clamped because rounding may exceed the bounds.
        if bounds:
            drawn = torch.empty(shape, dtype=self.dtype, device=self.device).uniform_(*bounds, generator=generator)
            return drawn.clamp_(*bounds)
        drawn = torch.rand(shape, dtype=self.dtype, device=self.device, generator=generator)
        return torch.lerp(self._low, self._high, drawn).clamp_(self._low, self._high)

    def _inside(self, value: Tensor) -> Tensor | None:
        bounds = self._uniform_bounds
        if bounds and value.numel():
            smallest, largest = value.aminmax()
            if smallest >= bounds[0] and largest <= bounds[1]:
                return None
        return (value >= self._low.to(value.device)) & (value <= self._high.to(value.device))

    def _nearest(self, value: Tensor) -> Tensor:
        low, high = self._low.to(value.device), self._high.to(value.device)
        if self.dtype.is_floating_point:
            value = torch.nan_to_num(value.to(self.dtype), posinf=math.inf, neginf=-math.inf)
            return torch.clamp(value, low, high)
        return torch.clamp(nearest_int64(value), low.long(), high.long()).to(self.dtype)

    def _bound(self, place: tuple[int, ...]) -> str:
        place = tuple(min(index, size - 1) for index, size in zip(place, self._low.shape, strict=True))
        kind = "a number" if self.dtype.is_floating_point else "an integer"
        return f"{kind} in [{self._low[place].item()}, {self._high[place].item()}]"

    @override
    def _moved(self, shape: torch.Size, move: Callable[[Tensor], Tensor]) -> Self:
        spec = super()._moved(shape, move)
        spec._set(spec._low, spec._high)  # noqa: SLF001  # a new copy
        return spec

    def _to_dtype(self, dtype: torch.dtype) -> BoundedTensorSpec:
        return BoundedTensorSpec(self._low, self._high, self.shape, self.device, dtype)

    @override
    def to_json(self) -> dict[str, Any]:
        named = {} if self.domain == check_domain(self.dtype) else {"domain": self.domain}
        return {**self._frame(), **named, "low": compact_values(self._low), "high": compact_values(self._high)}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> BoundedTensorSpec | None:
        shape, dtype, domain = document.shape(), document.dtype(), document.domain()
        low, high = document.tensor("low", dtype), document.tensor("high", dtype)
        return cls(low, high, shape, dtype=dtype, domain=domain) if document.valid else None

    def _repr_arguments(self) -> list[str]:
        return [f"low={_bound_text(self._low)}", f"high={_bound_text(self._high)}"]


class _Continuous(type(LeafSpec)):  # type: ignore[misc]  # the class of the spec classes
    """Class of `BoundedContinuous`: a call returns a `BoundedTensorSpec`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> BoundedTensorSpec:
        """Return a bounded spec of the domain "continuous"."""
        return BoundedTensorSpec(*args, **{"domain": "continuous", **kwargs})

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, BoundedTensorSpec) and instance.domain == "continuous"


class BoundedContinuous(BoundedTensorSpec, metaclass=_Continuous):
    """Bounded spec of the domain "continuous". Every such `BoundedTensorSpec` is an instance."""

    kind = ""


def _read_bound(name: str, value: Any, alias: str, alias_value: Any) -> Tensor:
    """Return a bound, given as an argument or as the alias of the argument."""
    if (value is None) == (alias_value is None):
        raise InvalidArgumentError(
            f"{name} is {value!r} and {alias} is {alias_value!r}, expected either {name} or {alias}"
        )
    value = alias_value if value is None else value
    try:
        # NumPy converts a Python float to float64. Torch would round the float to the default dtype.
        bound = value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name} is {value!r}, expected numbers: {error}") from None
    if bool(bound.isnan().any()):
        index = bound.isnan().nonzero()[0].tolist()
        raise InvalidArgumentError(f"{name} is NaN{f' at {index}' if index else ''}, expected numbers")
    return bound


def _check_bounds(low: Tensor, high: Tensor, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest number of a dtype in [low, high], elementwise."""
    low, high = low.to(device), high.to(device)
    empty = torch.zeros((), dtype=torch.bool, device=device)
    if not dtype.is_floating_point:
        smallest, largest = map(int, dtype_limits(dtype))
        # Wide dtypes, because torch casts the limits to the dtype of the compared tensor.
        low, high = (bound.double() if bound.is_floating_point() else bound.long() for bound in (low, high))
        empty = (low > largest) | (high < smallest)
        low, high = _to_int64(low, torch.ceil, smallest, largest), _to_int64(high, torch.floor, smallest, largest)
    low, high = low.to(dtype), high.to(dtype)
    empty = empty | (low > high)
    if bool(empty.any()):
        first = tuple(empty.nonzero()[0].tolist())
        index = f" at {list(first)}" if first else ""
        raise InvalidArgumentError(
            f"no {dtype} value is between low {low[first].item()} and high {high[first].item()}{index}"
        )
    return low, high


def _to_int64(bound: Tensor, rounding: Callable[[Tensor], Tensor], smallest: int, largest: int) -> Tensor:
    if not bound.is_floating_point():
        return bound.long().clamp(smallest, largest)
    # An infinite bound is set explicitly: the largest double that is a valid int64 is below the largest int64.
    return nearest_int64(rounding(bound)).clamp(smallest, largest).masked_fill(bound == math.inf, largest)


def _collapse_bound(bound: Tensor) -> Tensor:
    """Return a bound that stores each distinct broadcast element once, and a constant bound as a single number."""
    stored = without_repeats(bound)
    first = stored.reshape(-1)[:1]
    if first.numel() and bool((stored == first).all()):
        stored = first[0]
    return stored.clone().expand(bound.shape)


def _bound_text(bound: Tensor) -> str:
    if without_repeats(bound).numel() == 1:
        return str(bound.flatten()[0].item())
    return str(bound.tolist()) if bound.numel() <= 8 else f"[{bound.min().item()} .. {bound.max().item()}]"
