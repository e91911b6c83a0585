"""One-hot spec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import _categories
from datasets_rl.specs._document import KINDS, Entry
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._register import Register, read_register
from datasets_rl.specs.base import Rearrange, broadcast_shapes, created_shape
from datasets_rl.specs.space import CategoricalBox, Space

if TYPE_CHECKING:
    from datasets_rl.specs.discrete import DiscreteTensorSpec

__all__ = ["OneHotDiscreteTensorSpec"]


class OneHotDiscreteTensorSpec(FiniteSpec):
    """One-hot spec: one of n categories, encoded along the last axis as a vector of one 1 and n - 1 zeros.

    The last axis is one outcome: shape operations cannot change it, and an index addresses the axes before it only.

    Args:
        n: Number of categories, at least 1.
        shape: Shape of every tensor of the set, [..., n]; [n] by default.
        device: Device of the tensors that the spec creates; torch's default device by default.
        dtype: Dtype of every tensor of the set.
        use_register: Whether `encode` accepts arbitrary integers and assigns them to categories in the order of their
            first appearance; `to_numpy` returns these integers. Reshaped copies of the spec share the register.
        mask: Which categories are allowed, bool, expandable to the shape; `None` allows all.

    Raises:
        InvalidArgumentError: If n < 1, or the shape or the mask does not fit.
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
        self._initialize(self.n, shape, device, dtype, mask)

    def _initialize(
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
        """Whether `encode` accepts arbitrary integers and assigns them to categories."""
        return self._register is not None

    @property
    @override
    def space(self) -> Space:
        return CategoricalBox(self.n)

    @property
    def _sizes(self) -> int | Tensor:
        return self.n

    @property
    def _index_shape(self) -> torch.Size:
        return self.shape[:-1]

    def _groups(self) -> list[int]:
        return [self.n]

    def _mask_from(self, mask: Tensor) -> Tensor:
        return mask.expand(created_shape(self.shape))

    def _rows(self, value: Tensor) -> Tensor:
        """Return a value with one row of columns for each category index, [*B, *_index_shape, N]."""
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
        # The nearest one-hot vector has its 1 at the largest element. NaN and -inf count as the smallest finite number,
        # and only columns that the mask excludes as -inf.
        smallest = torch.finfo(torch.float64).min
        rows = torch.nan_to_num(self._rows(value).double(), nan=smallest, neginf=smallest)
        sizes, columns = self._sizes, torch.arange(rows.shape[-1], device=value.device)
        allowed = columns < (sizes if isinstance(sizes, int) else sizes.to(value.device).unsqueeze(-1))
        if self._allowed is not None:
            allowed = allowed & self._allowed.to(value.device)
        return rows.masked_fill(~allowed, -math.inf).argmax(-1)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        bound = f"a one-hot vector of size {self.n}"
        return bound if self.mask is None else f"{bound} with the 1 where the mask allows it"

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Encode integers in [0, n) as one-hot vectors; a bool tensor of the spec's shape is returned unchanged.

        With a register, the integers are arbitrary, and new ones are registered.

        Args:
            val: Integers of the shape of the spec without its last axis; they may have extra leading axes.
            ignore_device: Whether to leave the tensor on its current device.

        Raises:
            InvalidArgumentError: If a value is out of range, the register is full, or the shape does not fit.
        """
        if isinstance(val, Tensor) and val.dtype == self.dtype == torch.bool and self._suits(val.shape):
            return val
        # A list of one number is an axis of size 1, unlike in other specs, as in TorchRL.
        val = np.array(val) if isinstance(val, list) else val
        index = self._as_tensor(val, torch.int64, ignore_device=ignore_device).long()
        if self._register is not None:
            return self._from_index(self._register.numbered(self._outcomes(index), self._groups()))
        sizes = self._sizes
        inside = _categories.are_allowed(self._outcomes(index), sizes, None)
        if inside is not None and not bool(inside.all()):
            raise InvalidArgumentError(f"{val!r} cannot be encoded; expected {self._expected_values()}")
        return self._from_index(self._outcomes(index))

    def _outcomes(self, index: Tensor) -> Tensor:
        """Reshape category indices to [*B, *_index_shape].

        Raises:
            InvalidArgumentError: If the shape does not fit.
        """
        shape = self._index_shape
        if index.shape[max(index.ndim - len(shape), 0) :] == shape:
            return index
        try:
            return index.reshape(shape)
        except RuntimeError:
            raise InvalidArgumentError(
                f"values of shape {list(index.shape)} cannot be encoded; expected shape {list(shape)}"
            ) from None

    def _expected_values(self) -> str:
        return f"integers in [0, {self.n})"

    @override
    def to_numpy(self, val: Tensor, safe: bool | None = None) -> Any:
        categories = self.to_categorical(val, safe).cpu()
        return (categories if self._register is None else self._register.values(categories)).numpy()

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Select the entries of the last axis of a tensor at the positions of the ones.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: Tensor [..., n] that broadcasts to the shape of `index`.

        Returns:
            The selected entries, of the broadcast shape without its last axis.
        """
        chosen = self.to_categorical(index)
        lead = broadcast_shapes(chosen.shape, tensor_to_index.shape[:-1])
        tensor_to_index = tensor_to_index.expand(*lead, -1)
        return tensor_to_index.gather(-1, chosen.expand(lead).unsqueeze(-1)).squeeze(-1)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the position of the 1 in each vector, int64 [*B, *shape[:-1]].

        Args:
            val: A member of the set, [*B, *shape].
            safe: Whether to raise an error if `val` is not in the set; off by default.
        """
        if safe:
            self.assert_is_in(val)
        # torch implements no argmax for bool.
        return self._rows(val).to(torch.uint8 if val.dtype == torch.bool else val.dtype).argmax(-1)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the value unchanged: it is already one-hot."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> DiscreteTensorSpec:
        """Return the spec of the output of `to_categorical`, with the same mask."""
        categorical: Any = KINDS["discrete"]  # its module imports this one
        spec: DiscreteTensorSpec = categorical(self.n, self._index_shape, self.device, mask=self.mask)
        return spec

    def to_one_hot_spec(self) -> Self:
        """Return the spec itself."""
        return self

    # --- shapes: operations cannot change the last axis

    def rearranged(self, rearrange: Rearrange) -> Self:
        """Apply a shape operation to the spec.

        Raises:
            InvalidArgumentError: If the operation changes the last axis.
        """
        spec = super().rearranged(rearrange)
        if spec.shape[-1:] != self.shape[-1:]:
            raise self._last_axis_error()
        return spec

    @override
    def _resized(self, shape: torch.Size) -> Self:
        if shape[-1:] != self.shape[-1:]:
            raise self._last_axis_error()
        return super()._resized(shape)

    def _last_axis_error(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the last axis of {self._named()} holds one-hot vectors and cannot be changed",
            hint="`to_categorical_spec` returns a spec without that axis",
        )

    def squeeze(self, dim: int | None = None) -> Self:
        """Remove an axis of size 1, or all such axes except the last."""
        if dim is None and self.shape[-1] == 1:
            return self.reshape([*(size for size in self.shape[:-1] if size != 1), 1])
        return super().squeeze(dim)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Remove an axis and return one spec per entry along it.

        Raises:
            InvalidArgumentError: If the axis is the last one.
        """
        if self._axis(dim) == self.ndim - 1:
            raise self._last_axis_error()
        return super().unbind(dim)

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Select entries along an axis.

        Raises:
            InvalidArgumentError: If the axis is the last one.
        """
        if self._axis(dim) == self.ndim - 1:
            raise self._last_axis_error()
        return super().index_select(dim, index)

    def _shape_of_indices(self) -> Sequence[int]:
        return self.shape[:-1]

    @override
    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "n": self.n, **self._register_json()}

    def _register_json(self) -> dict[str, Any]:
        return {} if self._register is None else {"register": self._register.to_json()}

    def _read_register(self, entry: Entry) -> Self:
        """Set the register to the one of a JSON object, and return the spec."""
        groups = self._groups()

        def valid(value: Any) -> bool:
            return value is None or read_register(value, groups) is not None

        document = entry.field("register", valid, f"lists of distinct integers of lengths up to {groups}")
        self._register = None if document is None else read_register(document, groups)
        return self

    @classmethod
    @override
    def read(cls, entry: Entry) -> OneHotDiscreteTensorSpec | None:
        shape, dtype, n, mask = entry.shape(), entry.dtype(), entry.integer("n", 1), cls._read_mask(entry)
        return cls(n, shape, dtype=dtype, mask=mask)._read_register(entry) if entry.valid else None  # noqa: SLF001  # same class

    def _repr_arguments(self) -> list[str]:
        return [f"n={self.n}", *([] if self.mask is None else ["masked"])]
