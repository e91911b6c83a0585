"""Types of `LeafSpec.space`: read-only descriptions of the values that each element of a tensor may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self


class _ConstantBox:
    """A box without tensors."""

    def to(self, dest: Any) -> Self:
        """Return the box itself, which has no device and no dtype."""
        del dest
        return self

    def clone(self) -> Self:
        """Return the box itself, which cannot change."""
        return self


@dataclass(frozen=True)
class CategoricalBox(_ConstantBox):
    """Integers in [0, n)."""

    n: int


@dataclass(frozen=True)
class BinaryBox(_ConstantBox):
    """Vectors of n zeros and ones."""

    n: int


@dataclass(frozen=True)
class BoxList(_ConstantBox):
    """A box for each element of the last axis. With several axes, each box holds the boxes of the previous axes."""

    boxes: Sequence[CategoricalBox | BoxList]

    @staticmethod
    def from_nvec(nvec: Tensor) -> BoxList | CategoricalBox:
        """Return the boxes for numbers of categories, int64 of any shape, or a single box for a scalar."""
        if not nvec.ndim:
            return CategoricalBox(int(nvec))
        return BoxList([BoxList.from_nvec(column) for column in nvec.unbind(-1)])

    def nvec(self) -> Tensor:
        """Return the numbers of categories, int64: the inverse of `from_nvec`."""
        columns = [
            box.nvec() if isinstance(box, BoxList) else torch.tensor(box.n, dtype=torch.int64) for box in self.boxes
        ]
        return torch.stack(columns, -1) if columns else torch.zeros(0, dtype=torch.int64)

    def __iter__(self) -> Iterator[CategoricalBox | BoxList]:
        return iter(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, eq=False)
class ContinuousBox:
    """Numbers in [low, high], both bounds included."""

    low: Tensor
    high: Tensor

    @property
    def device(self) -> torch.device:
        """Device of the bounds."""
        return self.low.device

    def to(self, dest: torch.dtype | torch.device | str | int) -> ContinuousBox:
        """Return the box with bounds of another dtype or device."""
        return ContinuousBox(self.low.to(dest), self.high.to(dest))

    def clone(self) -> ContinuousBox:
        """Return a copy."""
        return ContinuousBox(self.low.clone(), self.high.clone())

    def unbind(self, dim: int = 0) -> tuple[ContinuousBox, ...]:
        """Return a box for each entry along an axis."""
        pairs = zip(self.low.unbind(dim), self.high.unbind(dim), strict=True)
        return tuple(ContinuousBox(low, high) for low, high in pairs)

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


Space = CategoricalBox | BinaryBox | BoxList | ContinuousBox | None
