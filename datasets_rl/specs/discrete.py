"""One of n values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from datasets_rl.errors import BadArgument
from datasets_rl.specs._base import TensorSpec

__all__ = ["DiscreteTensorSpec"]


class DiscreteTensorSpec(TensorSpec):
    """Whole numbers in [0, n); with n = 2 and dtype bool, a flag.

    Args:
        n: How many values there are, at least 1.
        shape: Of every tensor of the set.
        dtype: Of every tensor of the set.
    """

    domain = "discrete"

    def __init__(self, n: int, shape: Sequence[int] = (), *, dtype: torch.dtype = torch.int64) -> None:
        if n < 1:
            raise BadArgument(f"n is {n}; expected at least 1")
        super().__init__(shape, dtype)
        self.n = n

    def rand(self, shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
        """Draw each value with the same chance."""
        return torch.randint(self.n, (*shape, *self.shape), generator=generator).to(self.dtype)

    def is_in(self, value: Tensor) -> bool:
        """Say whether shape and dtype fit and every number is in [0, n)."""
        if not self._fits(value):
            return False
        return bool(((value.long() >= 0) & (value.long() < self.n)).all())

    def __repr__(self) -> str:
        return f"DiscreteTensorSpec(n={self.n}, shape={list(self.shape)}, dtype={self.dtype})"
