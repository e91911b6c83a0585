"""Any value of a dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from datasets_rl.specs._base import TensorSpec

__all__ = ["UnboundedContinuousTensorSpec", "UnboundedDiscreteTensorSpec"]


class UnboundedContinuousTensorSpec(TensorSpec):
    """Any real numbers; `rand` draws from the standard normal distribution."""

    domain = "continuous"

    def __init__(self, shape: Sequence[int] = (1,), *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(shape, dtype)

    def rand(self, shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
        """Draw from the standard normal distribution."""
        return torch.randn((*shape, *self.shape), generator=generator, dtype=self.dtype)

    def is_in(self, value: Tensor) -> bool:
        """Say whether shape and dtype fit."""
        return self._fits(value)


class UnboundedDiscreteTensorSpec(TensorSpec):
    """Any whole numbers of a dtype; `rand` draws all of them with the same chance."""

    domain = "discrete"

    def __init__(self, shape: Sequence[int] = (1,), *, dtype: torch.dtype = torch.int64) -> None:
        super().__init__(shape, dtype)

    def rand(self, shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
        """Draw from all numbers that the dtype holds."""
        limits = torch.iinfo(self.dtype)
        # Bits: the upper bound of torch.randint is not drawn, and no int64 stands above the greatest int64.
        size = math.prod((*shape, *self.shape)) * (limits.bits // 8)
        drawn = torch.randint(256, (size,), generator=generator, dtype=torch.uint8)
        return drawn.view(self.dtype).reshape((*shape, *self.shape))

    def is_in(self, value: Tensor) -> bool:
        """Say whether shape and dtype fit."""
        return self._fits(value)
