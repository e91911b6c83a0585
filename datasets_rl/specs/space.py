"""Types of `LeafSpec.space`: read-only descriptions of the values that each element of a tensor may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BoxList", "CategoricalBox", "ContinuousBox", "Space"]


@dataclass(frozen=True)
class CategoricalBox:
    """Integers in [0, n)."""

    n: int


@dataclass(frozen=True)
class BoxList:
    """One box per element of the last axis; for several axes, nested lists of boxes."""

    boxes: Sequence[CategoricalBox | BoxList]

    def __iter__(self) -> Iterator[CategoricalBox | BoxList]:
        return iter(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, eq=False)
class ContinuousBox:
    """Numbers in [low, high], both bounds included."""

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.low, self.high))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ContinuousBox)
            and self.low.dtype == other.low.dtype
            and torch.equal(self.low, other.low)
            and torch.equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.low.dtype, self.low.shape))


Space = CategoricalBox | BoxList | ContinuousBox | None
