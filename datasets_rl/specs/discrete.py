"""One of n numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import _categories
from datasets_rl.specs._document import Entry
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._numbers import whole
from datasets_rl.specs.base import sizes, together
from datasets_rl.specs.one_hot import OneHotDiscreteTensorSpec
from datasets_rl.specs.space import CategoricalBox, Space

__all__ = ["DiscreteTensorSpec"]


class DiscreteTensorSpec(FiniteSpec):
    """Whole numbers in [0, n); with n = 2 and dtype bool, a flag.

    Args:
        n: How many values there are, at least 1.
        shape: Of every tensor of the set.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set.
        mask: Which of the n values may be taken, bool, expandable to [*shape, n].

    Raises:
        InvalidArgumentError: If n is below 1 or the mask does not fit.
    """

    kind = "discrete"

    def __init__(
        self,
        n: int,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
    ) -> None:
        super().__init__(sizes(shape), device, dtype)
        self.n = int(n)
        if self.n < 1:
            raise InvalidArgumentError(f"n is {n}; expected at least 1")
        self.update_mask(mask)

    @property
    def space(self) -> Space:
        """How many values there are."""
        return CategoricalBox(self.n)

    @property
    def _sizes(self) -> int | Tensor:
        return self.n

    def _groups(self) -> list[int]:
        return [self.n]

    def _mask_from(self, mask: Tensor) -> Tensor:
        return mask.expand(*self.shape, self.n)

    def _from_index(self, index: Tensor) -> Tensor:
        return index.to(self.dtype)

    def _inside(self, value: Tensor) -> Tensor | None:
        return _categories.inside(value, self._sizes, self._allowed)

    def _index_near(self, value: Tensor) -> Tensor:
        return whole(value)

    def _bound(self, place: tuple[int, ...]) -> str:
        bound = f"a whole number in [0, {self._size_at(place)})"
        return bound if self.mask is None else f"{bound} that the mask allows"

    def _size_at(self, place: tuple[int, ...]) -> int:
        del place
        return self.n

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take from the last axis of a tensor what the values choose.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: One entry for each of the n values in its last axis: [*B, n] for a spec without axes;
                otherwise the last axis stands in place of that of the spec.

        Returns:
            What was chosen, of the shape of `index`.
        """
        if not self.ndim:
            lead = together(index.shape, tensor_to_index.shape[:-1])
            tensor_to_index = tensor_to_index.expand(*lead, -1)
            return tensor_to_index.gather(-1, index.long().expand(lead).unsqueeze(-1)).squeeze(-1)
        index = index.long().expand(*tensor_to_index.shape[: -self.ndim], *index.shape[-self.ndim :])
        return tensor_to_index.gather(-1, index)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Write values as ones among zeros, bool [*B, *shape, n].

        Args:
            val: A member of the set, [*B, *shape].
            safe: Whether to refuse it if it is not one; not by default.
        """
        if safe:
            self.assert_is_in(val)
        return torch.nn.functional.one_hot(val.long(), self.n).bool()

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value: it is a category already."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHotDiscreteTensorSpec:
        """Return the spec of what `to_one_hot` returns, with the same mask."""
        return OneHotDiscreteTensorSpec(self.n, (*self.shape, self.n), self.device, mask=self.mask)

    def to_categorical_spec(self) -> DiscreteTensorSpec:
        """Return the spec itself."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        return {**super().to_json(), "n": self.n}

    @classmethod
    def read(cls, entry: Entry) -> DiscreteTensorSpec | None:
        """Read a spec of this kind; of flags, n may be missing."""
        shape, dtype = entry.shape(), entry.dtype()
        n, mask = entry.whole("n", 1, 2 if dtype == torch.bool else None), cls._read_mask(entry)
        return cls(n, shape, dtype=dtype, mask=mask) if entry.sound else None

    def _facts(self) -> list[str]:
        return [f"n={self.n}", *([] if self.mask is None else ["masked"])]
