"""A one among zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import _categories
from datasets_rl.specs._document import KINDS, Entry
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._register import Register, read_register
from datasets_rl.specs.base import Move, together
from datasets_rl.specs.space import CategoricalBox, Space

if TYPE_CHECKING:
    from typing_extensions import Self

    from datasets_rl.specs.discrete import DiscreteTensorSpec

__all__ = ["OneHotDiscreteTensorSpec"]


class OneHotDiscreteTensorSpec(FiniteSpec):
    """One of n values, written along the last axis as a one among zeros.

    The last axis is one value: no operation on shapes splits it, and an index names the axes before it.

    Args:
        n: How many values there are, at least 1.
        shape: Of every tensor of the set, the last size n; [n] by default.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set.
        use_register: Whether `encode` takes any whole numbers: the first one that it meets is the first value, the next
            one the second. `to_numpy` returns the numbers. Copies of another shape share what was met.
        mask: Which of the n values may be taken, bool, expandable to the shape.

    Raises:
        InvalidArgumentError: If n is below 1, or the shape or the mask does not fit.
    """

    kind = "one_hot"

    def __init__(
        self,
        n: int,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bool,
        use_register: bool = False,
        mask: Any = None,
    ) -> None:
        self.n = int(n)
        if self.n < 1:
            raise InvalidArgumentError(f"n is {n}; expected at least 1")
        self._register = Register([{}]) if use_register else None
        self._begin(self.n, shape, device, dtype, mask)

    def _begin(
        self,
        columns: int,
        shape: Sequence[int] | int | None,
        device: torch.device | str | int | None,
        dtype: torch.dtype,
        mask: Any,
    ) -> None:
        super().__init__((columns,) if shape is None else shape, device, dtype)
        if self.shape[-1:] != (columns,):
            raise InvalidArgumentError(f"shape is {list(self.shape)}; expected a last axis of size {columns}")
        self.update_mask(mask)

    @property
    def use_register(self) -> bool:
        """Whether `encode` takes any whole numbers."""
        return self._register is not None

    @property
    def space(self) -> Space:
        """How many values there are."""
        return CategoricalBox(self.n)

    @property
    def _sizes(self) -> int | Tensor:
        return self.n

    @property
    def _places(self) -> torch.Size:
        return self.shape[:-1]

    def _groups(self) -> list[int]:
        return [self.n]

    def _mask_from(self, mask: Tensor) -> Tensor:
        return mask.expand(self.shape)

    def _rows(self, value: Tensor) -> Tensor:
        """Return a value with one row for each place, [*B, *places, N]."""
        return value

    def _from_index(self, index: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(index, self.n).to(self.dtype)

    def _inside(self, value: Tensor) -> Tensor | None:
        rows = self._rows(value)
        ones = rows == 1
        inside = ones.sum(-1) == 1
        if self.dtype != torch.bool:
            inside &= (ones | (rows == 0)).all(-1)
        allowed = self._allowed
        return inside if allowed is None else inside & (ones & allowed.to(value.device)).any(-1)

    def _index_near(self, value: Tensor) -> Tensor:
        # The greatest number is nearest to the one; what is no number is far from it, and what is masked out of reach.
        far = torch.finfo(torch.float64).min
        rows = torch.nan_to_num(self._rows(value).double(), nan=far, neginf=far)
        sizes, columns = self._sizes, torch.arange(rows.shape[-1], device=value.device)
        reach = columns < (sizes if isinstance(sizes, int) else sizes.to(value.device).unsqueeze(-1))
        if self._allowed is not None:
            reach = reach & self._allowed.to(value.device)
        return rows.masked_fill(~reach, -math.inf).argmax(-1)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        bound = f"one 1 among {self.n} and else 0"
        return bound if self.mask is None else f"{bound}, where the mask allows it"

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Turn values in [0, n) into ones among zeros; a bool tensor of the spec's shape is returned as it is.

        With a register, any whole numbers are values, as many as there are.

        Raises:
            InvalidArgumentError: If a value is out of range, or one too many, or the shape cannot be had.
        """
        if isinstance(val, Tensor) and val.dtype == self.dtype == torch.bool and self._suits(val.shape):
            return val
        index = self._as_tensor(val, torch.int64, ignore_device=ignore_device).long()
        if self._register is not None:
            return self._from_index(self._register.numbered(self._outcomes(index), self._groups()))
        sizes = self._sizes
        inside = _categories.inside(self._outcomes(index), sizes, None)
        if inside is not None and not bool(inside.all()):
            raise InvalidArgumentError(f"{val!r} cannot be encoded; expected {self._expected_values()}")
        return self._from_index(self._outcomes(index))

    def _outcomes(self, index: Tensor) -> Tensor:
        """Give indices of categories the shape of the places.

        Raises:
            InvalidArgumentError: If that cannot be.
        """
        places = self._places
        if index.shape[max(index.ndim - len(places), 0) :] == places:
            return index
        try:
            return index.reshape(places)
        except RuntimeError:
            raise InvalidArgumentError(
                f"values of shape {list(index.shape)} cannot be encoded; expected {list(places)}"
            ) from None

    def _expected_values(self) -> str:
        return f"whole numbers in [0, {self.n})"

    def to_numpy(self, val: Tensor, safe: bool | None = None) -> Any:
        """Undo `encode`: the values as an array."""
        found = self.to_categorical(val, safe).cpu()
        return (found if self._register is None else self._register.values(found)).numpy()

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Take from the last axis of a tensor what the ones choose.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: [..., n], which broadcasts to the shape of `index`.

        Returns:
            What was chosen, without the last axis.
        """
        chosen = self.to_categorical(index)
        lead = together(chosen.shape, tensor_to_index.shape[:-1])
        tensor_to_index = tensor_to_index.expand(*lead, -1)
        return tensor_to_index.gather(-1, chosen.expand(lead).unsqueeze(-1)).squeeze(-1)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return where the ones are, int64 [*B, *shape[:-1]].

        Args:
            val: A member of the set, [*B, *shape].
            safe: Whether to refuse it if it is not one; not by default.
        """
        if safe:
            self.assert_is_in(val)
        # Not of bool, which has no argmax.
        return self._rows(val).to(torch.uint8 if val.dtype == torch.bool else val.dtype).argmax(-1)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value: it is one-hot already."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> DiscreteTensorSpec:
        """Return the spec of what `to_categorical` returns, with the same mask."""
        categorical: Any = KINDS["discrete"]  # which is written in terms of this one
        spec: DiscreteTensorSpec = categorical(self.n, self._places, self.device, mask=self.mask)
        return spec

    def to_one_hot_spec(self) -> Self:
        """Return the spec itself."""
        return self

    # --- shapes: the last axis stays as it is

    def moved(self, move: Move) -> Self:
        """Do to the spec what `move` does to tensors of its shape.

        Raises:
            InvalidArgumentError: If that does not leave the last axis as it is.
        """
        spec = super().moved(move)
        if spec.shape[-1:] != self.shape[-1:]:
            raise InvalidArgumentError(f"the last axis of {self._named()} is one value, and must stay as it is")
        return spec

    def squeeze(self, dim: int | None = None) -> Self:
        """Remove an axis of size 1, or all of them but the last."""
        if dim is None and self.shape[-1] == 1:
            return self.reshape([*(size for size in self.shape[:-1] if size != 1), 1])
        return super().squeeze(dim)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Return the specs along an axis, without it.

        Raises:
            InvalidArgumentError: If it is the last one.
        """
        if self._axis(dim) == self.ndim - 1:
            raise InvalidArgumentError(f"the last axis of {self._named()} is one value, and must stay as it is")
        return super().unbind(dim)

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Take places along an axis.

        Raises:
            InvalidArgumentError: If it is the last one.
        """
        if self._axis(dim) == self.ndim - 1:
            raise InvalidArgumentError(f"the last axis of {self._named()} is one value, and must stay as it is")
        return super().index_select(dim, index)

    def _indexed_shape(self) -> Sequence[int]:
        return self.shape[:-1]

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        return {**super().to_json(), "n": self.n, **self._registered()}

    def _registered(self) -> dict[str, Any]:
        return {} if self._register is None else {"register": self._register.to_json()}

    def _take_register(self, entry: Entry) -> Self:
        """Take over what the document says of a register."""
        groups = self._groups()

        def right(value: Any) -> bool:
            return value is None or read_register(value, groups) is not None

        met = entry.field("register", right, f"lists of different whole numbers, at most {groups} of them")
        self._register = None if met is None else read_register(met, groups)
        return self

    @classmethod
    def read(cls, entry: Entry) -> OneHotDiscreteTensorSpec | None:
        """Read a spec of this kind."""
        shape, dtype, n, mask = entry.shape(), entry.dtype(), entry.whole("n", 1), cls._read_mask(entry)
        return cls(n, shape, dtype=dtype, mask=mask)._take_register(entry) if entry.sound else None  # noqa: SLF001  # its own

    def _facts(self) -> list[str]:
        return [f"n={self.n}", *([] if self.mask is None else ["masked"])]
