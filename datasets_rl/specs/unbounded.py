"""Specs of unbounded numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.specs._document import SpecDocument
from datasets_rl.specs._numbers import dtype_limits, nearest_int64, random_integers
from datasets_rl.specs.base import Lead, LeafSpec, check_domain, created_shape, parse_shape
from datasets_rl.specs.space import ContinuousBox


class Unbounded(LeafSpec):
    """Spec of unbounded numbers: any value of the dtype.

    `rand` draws floats from the standard normal distribution, and integers uniformly from the range of the dtype.

    The class of the instance depends on the domain: calling this class or a subclass returns an
    `UnboundedContinuousTensorSpec` for the domain "continuous" and an `UnboundedDiscreteTensorSpec` for "discrete".

    Args:
        shape: Shape of every tensor of the set.
        dtype: Dtype of every tensor of the set, by default torch's default dtype.
        domain: Value of the attribute `domain`, "continuous" or "discrete", by default the domain of the dtype. Specs
            that differ only in the domain are equal. `to(dtype)` sets the domain of the dtype.
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
        self._set_class(domain)

    def _set_class(self, domain: str | None = None) -> None:
        continuous = check_domain(self.dtype, domain) == "continuous"
        self.__class__ = UnboundedContinuousTensorSpec if continuous else UnboundedDiscreteTensorSpec

    @property
    def space(self) -> ContinuousBox:
        """The smallest and the largest finite number of the dtype."""
        smallest, largest = (
            torch.tensor(limit, dtype=self.dtype, device=self.device) for limit in dtype_limits(self.dtype)
        )
        sizes = created_shape(self.shape)
        return ContinuousBox(smallest.expand(sizes), largest.expand(sizes))

    @override
    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        shape = (*parse_shape(shape), *created_shape(self.shape))
        if self.dtype.is_floating_point:
            return torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        smallest, largest = map(int, dtype_limits(self.dtype))
        return random_integers(smallest, largest, shape, device=self.device, generator=generator).to(self.dtype)

    def _inside(self, value: Tensor) -> None:
        del value

    def _nearest(self, value: Tensor) -> Tensor:
        if self.dtype.is_floating_point:
            return value.to(self.dtype)
        smallest, largest = map(int, dtype_limits(self.dtype))
        return nearest_int64(value).clamp(smallest, largest).to(self.dtype)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        return f"any {self.dtype}"

    def _to_dtype(self, dtype: torch.dtype) -> Any:
        spec = super()._to_dtype(dtype)
        spec._set_class()  # noqa: SLF001  # a new copy
        return spec

    @override
    def to_json(self) -> dict[str, Any]:
        named = {} if self.domain == check_domain(self.dtype) else {"domain": self.domain}
        return {**self._frame(), **named}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> Unbounded | None:
        shape, dtype, domain = document.shape(), document.dtype(), document.domain()
        return Unbounded(shape, dtype=dtype, domain=domain) if document.valid else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unbounded) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((Unbounded, self.shape))


class UnboundedContinuousTensorSpec(Unbounded):
    """Spec of unbounded real numbers. `rand` draws from the standard normal distribution.

    >>> from datasets_rl import UnboundedContinuous
    >>> positions = UnboundedContinuous(shape=(3,))
    >>> positions.zero()
    tensor([0., 0., 0.])
    >>> positions.expand(2, 3).shape
    torch.Size([2, 3])
    """

    domain = "continuous"


class UnboundedDiscreteTensorSpec(Unbounded):
    """Spec of unbounded integers. `rand` draws uniformly from the range of the dtype.

    >>> from datasets_rl import UnboundedDiscrete
    >>> UnboundedDiscrete(shape=(2,)).zero()
    tensor([0, 0])
    """

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
