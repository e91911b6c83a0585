"""Any value of a dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from datasets_rl.specs._document import Entry
from datasets_rl.specs._numbers import integers, limits, whole
from datasets_rl.specs.base import Lead, LeafSpec, domain_of, sizes
from datasets_rl.specs.space import ContinuousBox

__all__ = ["Unbounded", "UnboundedContinuousTensorSpec", "UnboundedDiscreteTensorSpec"]


class Unbounded(LeafSpec):
    """Any numbers: real ones if the dtype has fractions, whole ones otherwise.

    The class follows from the domain, whichever of the three is called.

    Args:
        shape: Of every tensor of the set.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set; torch's default by default.
        domain: "continuous" or "discrete", what the spec calls itself; by default as the dtype is. Nothing else follows
            from it: specs are the same if it is all they differ in, and one of another dtype is what that says.
    """

    kind = "unbounded"

    def __init__(
        self,
        shape: Sequence[int] | int = (1,),
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        domain: str | None = None,
    ) -> None:
        super().__init__(shape, device, dtype)
        self._take_class(domain)

    def _take_class(self, domain: str | None = None) -> None:
        real = domain_of(self.dtype, domain) == "continuous"
        self.__class__ = UnboundedContinuousTensorSpec if real else UnboundedDiscreteTensorSpec

    @property
    def space(self) -> ContinuousBox:
        """The least and the greatest number of the dtype."""
        least, greatest = (torch.tensor(limit, dtype=self.dtype, device=self.device) for limit in limits(self.dtype))
        return ContinuousBox(least.expand(self.shape), greatest.expand(self.shape))

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        """Draw real numbers from the standard normal distribution, whole ones from all that the dtype holds."""
        shape = (*sizes(shape), *self.shape)
        if self.dtype.is_floating_point:
            return torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        least, greatest = map(int, limits(self.dtype))
        return integers(least, greatest, shape, device=self.device, generator=generator).to(self.dtype)

    def _inside(self, value: Tensor) -> None:
        del value

    def _nearest(self, value: Tensor) -> Tensor:
        if self.dtype.is_floating_point:
            return value.to(self.dtype)
        least, greatest = map(int, limits(self.dtype))
        return whole(value).clamp(least, greatest).to(self.dtype)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        return f"any {self.dtype}"

    def _to_dtype(self, dtype: torch.dtype) -> Any:
        spec = super()._to_dtype(dtype)
        spec._take_class()  # noqa: SLF001  # a copy of its own
        return spec

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        named = {} if self.domain == domain_of(self.dtype) else {"domain": self.domain}
        return {**self._frame(), **named}

    @classmethod
    def read(cls, entry: Entry) -> Unbounded | None:
        """Read a spec of this kind."""
        shape, dtype, domain = entry.shape(), entry.dtype(), entry.domain()
        return Unbounded(shape, dtype=dtype, domain=domain) if entry.sound else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unbounded) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((Unbounded, self.shape))


class UnboundedContinuousTensorSpec(Unbounded):
    """Any real numbers; `rand` draws from the standard normal distribution."""

    domain = "continuous"


class UnboundedDiscreteTensorSpec(Unbounded):
    """Any whole numbers of a dtype; `rand` draws all of them with the same chance."""

    domain = "discrete"

    def __init__(
        self,
        shape: Sequence[int] | int = (1,),
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = torch.int64,
        *,
        domain: str | None = None,
    ) -> None:
        super().__init__(shape, device, dtype, domain=domain)
