"""Categorical spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import _categories
from datasets_rl.specs._document import Entry
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._numbers import nearest_int64
from datasets_rl.specs.base import broadcast_shapes, created_shape, parse_shape
from datasets_rl.specs.one_hot import OneHotDiscreteTensorSpec
from datasets_rl.specs.space import CategoricalBox, Space

__all__ = ["DiscreteTensorSpec"]


class DiscreteTensorSpec(FiniteSpec):
    """Categorical spec: each element is an integer in [0, n). With n = 2 and dtype bool, elements are flags.

    Args:
        n: Number of categories; -1 if it is not known yet, see `set_provisional_n`.
        shape: Shape of every tensor of the set; [] by default.
        device: Device of the tensors that the spec creates; torch's default device by default.
        dtype: Dtype of every tensor of the set.
        mask: Which categories are allowed, bool, expandable to [*shape, n]; `None` allows all.

    Raises:
        InvalidArgumentError: If n < -1, or the mask does not fit.
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
        super().__init__(parse_shape(shape), device, dtype)
        self._n, self._provisional_n = int(n), None
        if self._n < -1:
            raise InvalidArgumentError(f"n is {n}; expected at least 0, or -1 for a number that is not known yet")
        self.update_mask(mask)

    _n: int
    _provisional_n: int | None

    @property
    def n(self) -> int:
        """Number of categories.

        Raises:
            InvalidArgumentError: If it is not known yet.
        """
        if self._n >= 0:
            return self._n
        if self._provisional_n is None:
            raise InvalidArgumentError(
                "the number of categories is not known yet", hint="set it with `set_provisional_n`"
            )
        return self._provisional_n

    def set_provisional_n(self, n: int) -> None:
        """Set the number of categories of a spec that was created with n = -1; it can be set again."""
        self._provisional_n = int(n)

    @property
    @override
    def space(self) -> Space:
        return CategoricalBox(self._n)

    @property
    def _sizes(self) -> int | Tensor:
        return self.n

    def _groups(self) -> list[int]:
        return [self.n]

    def _mask_from(self, mask: Tensor) -> Tensor:
        return mask.expand(*created_shape(self.shape), self.n)

    def _from_index(self, index: Tensor) -> Tensor:
        return index.to(self.dtype)

    def _inside(self, value: Tensor) -> Tensor | None:
        if self._n < 0:
            return None  # as in TorchRL, any index may be valid
        return _categories.are_allowed(value, self._sizes, self._allowed)

    def _index_near(self, value: Tensor) -> Tensor:
        return nearest_int64(value)

    def _bound(self, place: tuple[int, ...]) -> str:
        bound = f"an integer in [0, {self._size_at(place)})"
        return bound if self.mask is None else f"{bound} that the mask allows"

    def _size_at(self, place: tuple[int, ...]) -> int:
        del place
        return self.n

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Select the entries of the last axis of a tensor at the categories.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: Tensor with one entry for each of the n categories along its last axis: [*B, n] for a spec
                of shape []; otherwise [*B, *shape[:-1], n].

        Returns:
            The selected entries, of the shape of `index`.
        """
        if not self.ndim:
            lead = broadcast_shapes(index.shape, tensor_to_index.shape[:-1])
            tensor_to_index = tensor_to_index.expand(*lead, -1)
            return tensor_to_index.gather(-1, index.long().expand(lead).unsqueeze(-1)).squeeze(-1)
        index = index.long().expand(*tensor_to_index.shape[: -self.ndim], *index.shape[-self.ndim :])
        return tensor_to_index.gather(-1, index)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the one-hot encoding, bool [*B, *shape, n].

        Args:
            val: A member of the set, [*B, *shape].
            safe: Whether to raise an error if `val` is not in the set; off by default.
        """
        if safe:
            self.assert_is_in(val)
        return torch.nn.functional.one_hot(val.long(), self.n).bool()

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value unchanged: it already consists of category indices."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHotDiscreteTensorSpec:
        """Return the spec of the output of `to_one_hot`, with the same mask."""
        return OneHotDiscreteTensorSpec(self.n, (*self.shape, self.n), self.device, mask=self.mask)

    def to_categorical_spec(self) -> DiscreteTensorSpec:
        """Return the spec itself."""
        return self

    @override
    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "n": self._n}

    @classmethod
    def read(cls, entry: Entry) -> DiscreteTensorSpec | None:
        """Read a spec of this class from a JSON object; with dtype bool, `n` may be missing and is 2."""
        shape, dtype = entry.shape(), entry.dtype()
        n, mask = entry.integer("n", -1, 2 if dtype == torch.bool else None), cls._read_mask(entry)
        return cls(n, shape, dtype=dtype, mask=mask) if entry.valid else None

    def _repr_arguments(self) -> list[str]:
        return [f"n={self._n}", *([] if self.mask is None else ["masked"])]
