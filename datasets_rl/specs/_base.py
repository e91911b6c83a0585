"""What a spec is: the set of the tensors that may stand somewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator

__all__ = ["TensorSpec"]


class TensorSpec(ABC):
    """The set of tensors that may stand somewhere.

    Args:
        shape: Of every tensor of the set.
        dtype: Of every tensor of the set.
    """

    domain: str = ""
    """"continuous" or "discrete"."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype

    @abstractmethod
    def rand(self, shape: Sequence[int] = (), *, generator: Generator | None = None) -> Any:
        """Draw a tensor of the set, with further leading axes `shape`."""

    @abstractmethod
    def is_in(self, value: Any) -> bool:
        """Say whether a tensor, which may have further leading axes, is in the set."""

    def zero(self, shape: Sequence[int] = ()) -> Any:
        """Return zeros, with further leading axes `shape`."""
        return torch.zeros((*shape, *self.shape), dtype=self.dtype)

    def _fits(self, value: Any) -> bool:
        trailing = tuple(value.shape[value.ndim - len(self.shape) :])
        return value.dtype == self.dtype and value.ndim >= len(self.shape) and trailing == tuple(self.shape)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={list(self.shape)}, dtype={self.dtype})"
