"""Numbers between two bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import Entry, compact
from datasets_rl.specs._numbers import integers, limits, once, reals, whole
from datasets_rl.specs.base import Lead, LeafSpec, Move, domain_of, sizes, together
from datasets_rl.specs.space import ContinuousBox

__all__ = ["BoundedTensorSpec"]


class BoundedTensorSpec(LeafSpec):
    """Numbers in [low, high], both included; real ones if the dtype has fractions, whole ones otherwise.

    A bound may be infinite. Of whole numbers, those between the bounds that the dtype holds are in the set.

    Args:
        low: Lower bound, one number or a tensor that broadcasts to `shape`.
        high: Upper bound, likewise.
        shape: Of every tensor of the set; by default that of the bounds, if they have axes.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set; torch's default by default.
        minimum: The same as `low`.
        maximum: The same as `high`.
        domain: "continuous" or "discrete", what the spec calls itself; by default as the dtype is. Nothing else follows
            from it, and a spec of another dtype is what that says.

    Raises:
        InvalidArgumentError: If a bound is missing or no number, they do not broadcast, or nothing lies between them.
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
        lowest, highest = _one_of("low", low, "minimum", minimum), _one_of("high", high, "maximum", maximum)
        try:
            if shape is None:
                shape = together(lowest.shape, highest.shape)
                if not shape:
                    raise InvalidArgumentError(
                        "shape is missing, and the bounds are single numbers", hint="give shape=()"
                    )
            super().__init__(shape, device, dtype)
            lowest.expand(self.shape), highest.expand(self.shape)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"low of shape {list(lowest.shape)} and high of {list(highest.shape)} do not broadcast to {shape}: {error}"
            ) from None
        self._domain = domain_of(self.dtype, domain)
        low, high = _between(once(lowest), once(highest), self.dtype, self.device)
        self._set(low.expand(self.shape), high.expand(self.shape))

    def _set(self, low: Tensor, high: Tensor) -> None:
        self._low, self._high = _pressed(low), _pressed(high)
        # Bounds that are the same everywhere, as numbers: comparing two is faster than comparing as many as there are.
        one = once(self._low).numel() == once(self._high).numel() == 1
        self._finite = (
            bool((once(self._high) - once(self._low)).isfinite().all()) if self.dtype.is_floating_point else True
        )
        self._everywhere = (self._low.flatten()[0].item(), self._high.flatten()[0].item()) if one else None

    @property
    def domain(self) -> str:  # type: ignore[override]  # of the other kinds it is a constant
        """Continuous or discrete, as the dtype is if nothing else was given."""
        return self._domain

    @property
    def low(self) -> Tensor:
        """The lower bounds."""
        return self._low

    @property
    def high(self) -> Tensor:
        """The upper bounds."""
        return self._high

    @property
    def space(self) -> ContinuousBox:
        """The bounds."""
        return ContinuousBox(self._low, self._high)

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        """Draw uniformly, whole numbers with both bounds included.

        Where only one bound is finite, the distance from it is drawn from the exponential distribution of mean 1; where
        none is, a real number comes from the standard normal distribution.
        """
        shape = (*sizes(shape), *self.shape)
        bounds = self._everywhere
        if not self.dtype.is_floating_point:
            low, high = map(int, bounds) if bounds else (self._low.long(), self._high.long())
            return integers(low, high, shape, device=self.device, generator=generator).to(self.dtype)
        if not self._finite or self.dtype.itemsize < 4:
            return reals(self._low, self._high, shape, generator=generator)
        # Rounding may leave the box by a little.
        if bounds:
            drawn = torch.empty(shape, dtype=self.dtype, device=self.device).uniform_(*bounds, generator=generator)
            return drawn.clamp_(*bounds)
        drawn = torch.rand(shape, dtype=self.dtype, device=self.device, generator=generator)
        return torch.lerp(self._low, self._high, drawn).clamp_(self._low, self._high)

    def _inside(self, value: Tensor) -> Tensor | None:
        bounds = self._everywhere
        if bounds and value.numel():
            least, greatest = value.aminmax()
            if least >= bounds[0] and greatest <= bounds[1]:
                return None
        return (value >= self._low.to(value.device)) & (value <= self._high.to(value.device))

    def _nearest(self, value: Tensor) -> Tensor:
        low, high = self._low.to(value.device), self._high.to(value.device)
        if self.dtype.is_floating_point:
            value = torch.nan_to_num(value.to(self.dtype), posinf=math.inf, neginf=-math.inf)
            return torch.clamp(value, low, high)
        return torch.clamp(whole(value), low.long(), high.long()).to(self.dtype)

    def _bound(self, place: tuple[int, ...]) -> str:
        kind = "a number" if self.dtype.is_floating_point else "a whole number"
        return f"{kind} in [{self._low[place].item()}, {self._high[place].item()}]"

    def moved(self, move: Move) -> BoundedTensorSpec:
        """Do to the spec what `move` does to tensors of its shape; the bounds move along."""
        spec = self._changed(_shape=self._moved_shape(move))
        spec._set(move(self._low), move(self._high))  # noqa: SLF001  # a copy of its own
        return spec

    def _to_dtype(self, dtype: torch.dtype) -> BoundedTensorSpec:
        return BoundedTensorSpec(self._low, self._high, self.shape, self.device, dtype)

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        named = {} if self.domain == domain_of(self.dtype) else {"domain": self.domain}
        return {**self._frame(), **named, "low": compact(self._low), "high": compact(self._high)}

    @classmethod
    def read(cls, entry: Entry) -> BoundedTensorSpec | None:
        """Read a spec of this kind."""
        shape, dtype, domain = entry.shape(), entry.dtype(), entry.domain()
        low, high = entry.tensor("low", dtype), entry.tensor("high", dtype)
        return cls(low, high, shape, dtype=dtype, domain=domain) if entry.sound else None

    def _facts(self) -> list[str]:
        return [f"low={_shown(self._low)}", f"high={_shown(self._high)}"]


def _one_of(name: str, value: Any, older: str, older_value: Any) -> Tensor:
    """Read a bound from one of two arguments."""
    if (value is None) == (older_value is None):
        raise InvalidArgumentError(f"{name} is {value!r} and {older} is {older_value!r}; expected one of them")
    value = older_value if value is None else value
    try:
        # By way of numpy, a float is a double; in torch it would be rounded first.
        bound = value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name} is {value!r}; expected numbers: {error}") from None
    if bool(bound.isnan().any()):
        raise InvalidArgumentError(f"{name} is no number at {bound.isnan().nonzero()[0].tolist()}")
    return bound


def _between(low: Tensor, high: Tensor, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Bring bounds to a dtype: the least and the greatest of its numbers that lie between them."""
    low, high = low.to(device), high.to(device)
    none = torch.zeros((), dtype=torch.bool, device=device)
    if not dtype.is_floating_point:
        least, greatest = map(int, limits(dtype))
        # Wide enough for the limits: torch narrows a number to the dtype of the tensor that it is compared with.
        low, high = (bound.double() if bound.is_floating_point() else bound.long() for bound in (low, high))
        none = (low > greatest) | (high < least)
        low, high = _whole(low, torch.ceil, least, greatest), _whole(high, torch.floor, least, greatest)
    low, high = low.to(dtype), high.to(dtype)
    none = none | (low > high)
    if bool(none.any()):
        first = tuple(none.nonzero()[0].tolist())
        at = f" at {list(first)}" if first else ""
        raise InvalidArgumentError(f"no {dtype} lies between low {low[first].item()} and high {high[first].item()}{at}")
    return low, high


def _whole(bound: Tensor, rounded: Callable[[Tensor], Tensor], least: int, greatest: int) -> Tensor:
    if not bound.is_floating_point():
        return bound.long().clamp(least, greatest)
    # The greatest double that is an int64 is not the greatest int64.
    return whole(rounded(bound)).clamp(least, greatest).masked_fill(bound == math.inf, greatest)


def _pressed(bound: Tensor) -> Tensor:
    """Keep a bound that is the same everywhere as one number."""
    core = once(bound)
    first = core.reshape(-1)[:1]
    if first.numel() and bool((core == first).all()):
        core = first[0]
    return core.clone().expand(bound.shape)


def _shown(bound: Tensor) -> str:
    if once(bound).numel() == 1:
        return str(bound.flatten()[0].item())
    return str(bound.tolist()) if bound.numel() <= 8 else f"[{bound.min().item()} .. {bound.max().item()}]"
