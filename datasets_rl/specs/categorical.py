"""Categorical specs: each element is one of n categories, and a mask may exclude categories.

| class | categories of an element | encoding | an outcome is |
| --- | --- | --- | --- |
| `DiscreteTensorSpec` | n | integer | an element |
| `BinaryDiscreteTensorSpec` | 2 | integer | a vector along the last axis |
| `MultiDiscreteTensorSpec` | nvec[i] | integer | a vector along the last axis |
| `OneHotDiscreteTensorSpec` | n | one-hot vector | a vector along the last axis |
| `MultiOneHotDiscreteTensorSpec` | nvec[i] | concatenated one-hot vectors | a vector along the last axis |

In the shapes, P are the axes of the category indices, and N is the largest number of categories of an element. The
columns of several one-hot vectors are also arranged in rows:

    nvec 2, 3     columns  a b | c d e      rows  a b .
                                                  c d e
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import SpecDocument, compact_values
from datasets_rl.specs._numbers import nearest_int64, random_integers
from datasets_rl.specs._register import Register
from datasets_rl.specs.base import Lead, LeafSpec, broadcast_shapes, created_shape, parse_shape
from datasets_rl.specs.space import BoxList, CategoricalBox, Space


class FiniteSpec(LeafSpec):
    """Base class of the categorical specs."""

    domain = "discrete"
    _mask: Tensor | None = None
    """Mask that begins with the axes of the spec, so that shape operations of the spec apply to the mask."""
    _grouped: bool = False
    """Whether the last axis of the indices forms a single outcome, so that outcomes are all combinations on this axis."""

    @property
    @abstractmethod
    def _category_counts(self) -> int | Tensor:
        """Number of categories of each element, int64 [P], or an integer for all elements."""

    @property
    def widths(self) -> Tensor | None:
        """Number of categories of each variable, int64 [k], or `None` for a single variable.

        Raises:
            InvalidArgumentError: If the numbers differ along the leading axes.
        """
        return None

    def _groups(self) -> list[int]:
        """Return the number of categories of each entry of an outcome."""
        widths = self.widths
        groups: list[int] = [self._category_counts] if widths is None else widths.tolist()  # type: ignore[list-item]  # an int
        return groups

    @abstractmethod
    def _size_fields(self) -> dict[str, Any]:
        """Return the JSON fields of the numbers of categories."""

    @classmethod
    @abstractmethod
    def _read_sizes(cls, document: SpecDocument, shape: list[int], dtype: torch.dtype) -> dict[str, Any]:
        """Read the inverse of `_size_fields`, as arguments of the constructor."""

    @abstractmethod
    def _from_index(self, index: Tensor) -> Tensor:
        """Encode category indices [..., P] as a value of the spec."""

    @abstractmethod
    def _index_near(self, value: Tensor) -> Tensor:
        """Return the category indices nearest to a value, int64 [..., P], which may be out of range."""

    @abstractmethod
    def _mask_from(self, mask: Tensor) -> Tensor:
        """Convert a mask to the layout of `_mask`."""

    @property
    def _index_shape(self) -> torch.Size:
        return self.shape

    @property
    def _allowed(self) -> Tensor | None:
        """Which categories each element may have, bool [P, N], or `None` for all categories."""
        return self._mask

    def _rows(self, columns: Tensor) -> Tensor:
        """Arrange columns [..., sum(widths)] in a row for each variable, padded with zeros, [..., k, max(widths)]."""
        if (used := self._used_columns(columns.device)) is None:
            return columns
        rows = columns.new_zeros(*columns.shape[:-1], used.numel())
        rows[..., used.flatten()] = columns
        return rows.reshape(*rows.shape[:-1], *used.shape)

    def _columns(self, rows: Tensor) -> Tensor:
        """Concatenate rows without the padding: the inverse of `_rows`."""
        used = self._used_columns(rows.device)
        return rows if used is None else rows.flatten(-2)[..., used.flatten()]

    def _used_columns(self, device: torch.device) -> Tensor | None:
        """Return which columns of each row are not padding, bool [k, max(widths)], or `None` for a single variable."""
        widths = self.widths
        if widths is None:
            return None
        return torch.arange(int(widths.max()), device=device) < widths.to(device).unsqueeze(-1)

    @property
    @override
    def space(self) -> Space:
        sizes = self._category_counts
        return CategoricalBox(sizes) if isinstance(sizes, int) else BoxList.from_nvec(sizes)

    # --- the mask

    @property
    def mask(self) -> Tensor | None:
        """Which categories are allowed, bool, or `None` for all. Set the mask with `update_mask`."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Set which categories are allowed.

        Args:
            mask: Bool, True for each allowed category, expandable to the shape of the one-hot encoding. `None` allows
                all categories.

        Raises:
            InvalidArgumentError: If the dtype of the mask is not bool, or the shape does not fit. The spec does not
                change.
        """
        if mask is None:
            self._mask = None
            return
        mask = torch.as_tensor(mask, device=self.device)
        if mask.dtype != torch.bool:
            raise InvalidArgumentError(f"the mask has dtype {mask.dtype}, expected torch.bool")
        try:
            self._mask = self._mask_from(mask)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"a mask of shape {list(mask.shape)} does not fit {self._named()}: {error}"
            ) from None

    def _check_not_empty(self, allowed: Tensor | None) -> None:
        """Raise an error if an element has no allowed category."""
        if allowed is None:
            sizes = self._category_counts
            if sizes < 1 if isinstance(sizes, int) else bool((sizes < 1).any()):
                raise InvalidArgumentError("the spec has no categories, expected at least one")
        elif bool((empty := ~allowed.any(-1)).any()):
            first = empty.nonzero()[0].tolist()
            raise InvalidArgumentError(
                f"the mask allows no category{f' at {first}' if first else ''}",
                hint="call `update_mask` with a mask that allows a category for each element",
            )

    # --- the set

    @override
    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        shape = (*parse_shape(shape), *created_shape(self._index_shape))
        allowed = self._allowed
        self._check_not_empty(allowed)
        last = self._category_counts - 1 if allowed is None else allowed.sum(-1) - 1
        index = random_integers(0, last, shape, device=self.device, generator=generator)
        if allowed is not None:
            # The category after `index` allowed categories.
            index = (allowed.cumsum(-1) <= index.unsqueeze(-1)).sum(-1)
        return self._from_index(index)

    def cardinality(self) -> int:
        """Return the number of outcomes of an element, including masked outcomes. Leading axes do not matter."""
        return math.prod(self._groups())

    @override
    def enumerate(self, use_mask: bool = False) -> Tensor:
        choices = [torch.arange(size, device=self.device) for size in self._groups()]
        if use_mask and self._allowed is not None:
            allowed = self._allowed.reshape(-1, len(choices), self._allowed.shape[-1])
            if bool((allowed != allowed[:1]).any()):
                raise InvalidArgumentError(
                    f"the outcomes of {self._named()} cannot be enumerated: the mask differs along the leading axes",
                    hint="`unbind` the spec first",
                )
            choices = [choice[mask[: len(choice)]] for choice, mask in zip(choices, allowed[0], strict=True)]
        outcomes = torch.cartesian_prod(*choices).reshape(-1, len(choices))
        sizes = created_shape(self._index_shape)
        last = outcomes.shape[1:] if self._grouped and sizes else ()
        ones = (1,) * (len(sizes) - len(last))
        return self._from_index(outcomes.reshape(-1, *ones, *last).expand(-1, *sizes))

    def _are_categories(self, index: Tensor, allowed: Tensor | None) -> Tensor | None:
        """Return which elements of an index [..., P] are allowed categories, bool [..., P], or `None` if all are."""
        sizes = self._category_counts
        if isinstance(sizes, int) and allowed is None:
            if not index.numel():
                return None
            smallest, largest = index.aminmax()
            if smallest >= 0 and largest < sizes and not index.is_floating_point():
                return None
        if isinstance(sizes, Tensor):
            sizes = sizes.to(index.device)
        if index.dtype == torch.bool:
            index = index.long()
        valid = (index >= 0) & (index < sizes)
        if index.is_floating_point():
            valid &= index == index.floor()
        if allowed is not None:
            clamped = index.long().clamp(0, allowed.shape[-1] - 1).unsqueeze(-1)
            valid &= allowed.to(index.device).expand(*index.shape, -1).gather(-1, clamped).squeeze(-1)
        return valid

    def _nearest(self, value: Tensor) -> Tensor:
        self._check_not_empty(None)
        sizes, allowed = self._category_counts, self._allowed
        index = self._index_near(value).clamp(min=0)
        index = (
            index.clamp(max=sizes - 1) if isinstance(sizes, int) else torch.minimum(index, sizes.to(index.device) - 1)
        )
        if allowed is not None:
            # The nearest allowed category, and of two nearest categories the lower category.
            self._check_not_empty(allowed)
            distance = (torch.arange(allowed.shape[-1], device=index.device) - index.unsqueeze(-1)).abs()
            index = distance.masked_fill(~allowed.to(index.device), allowed.shape[-1]).argmin(-1)
        return self._from_index(index)

    # --- categories as integers and as one-hot vectors

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the category indices of members of the set, int64 [*B, *P]. Integers are returned unchanged.

        Args:
            val: Members of the set, [*B, *shape].
            safe: Whether to raise an error if `val` is not in the set. False by default.
        """
        if safe:
            self.assert_is_in(val)
        return self._to_index(val)

    def _to_index(self, val: Tensor) -> Tensor:
        return val

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the one-hot encoding of members of the set. One-hot vectors are returned unchanged.

        Args:
            val: Members of the set, [*B, *shape].
            safe: Whether to raise an error if `val` is not in the set. False by default.

        Returns:
            Bool [*B, *shape, n], or for several categorical variables [*B, *shape[:-1], sum(nvec)].

        Raises:
            InvalidArgumentError: If `nvec` differs along the leading axes.
        """
        if safe:
            self.assert_is_in(val)
        return self._to_columns(val)

    @abstractmethod
    def _to_columns(self, val: Tensor) -> Tensor:
        """Return the one-hot encoding of members of the set."""

    @abstractmethod
    def to_categorical_spec(self) -> DiscreteTensorSpec:
        """Return the spec of the output of `to_categorical`, with the same mask."""

    @abstractmethod
    def to_one_hot_spec(self) -> OneHotDiscreteTensorSpec:
        """Return the spec of the output of `to_one_hot`, with the same mask."""

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Select the entries of the last axis of a tensor at the categories.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: Tensor with an entry for each category along the last axis, which has the size of the one-hot
                encoding. The other axes broadcast to the other axes of the encoding. For integers of a single variable
                and a shape other than [], the other axes are [*B, *shape[:-1]].

        Returns:
            The selected entries, of the shape of the category indices.
        """
        chosen, rows = self.to_categorical(index).long(), self._rows(tensor_to_index)
        lead = broadcast_shapes(chosen.shape, rows.shape[:-1])
        return rows.expand(*lead, -1).gather(-1, chosen.expand(lead).unsqueeze(-1)).squeeze(-1)

    # --- JSON

    @override
    def to_json(self) -> dict[str, Any]:
        masked = {} if self.mask is None else {"mask": compact_values(self.mask)}
        return {**self._frame(), **masked, **self._size_fields()}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> Self | None:
        shape, dtype = document.shape(), document.dtype()
        sizes = cls._read_sizes(document, shape, dtype)
        mask = document.tensor("mask", torch.bool) if document.has("mask") else None
        if not document.valid:
            return None
        spec = cls(shape=shape, dtype=dtype, **sizes)
        spec.update_mask(mask)
        return spec

    def _repr_arguments(self) -> list[str]:
        sizes = [f"{name}={value}" for name, value in self._size_fields().items()]
        return [*sizes, *([] if self._mask is None else ["masked"])]


class DiscreteTensorSpec(FiniteSpec):
    """Categorical spec: each element is an integer in [0, n). With n = 2 and dtype bool, elements are flags.

        >>> import torch
        >>> from datasets_rl import Categorical
        >>> keys = Categorical(4)
        >>> keys.to_one_hot(torch.tensor(2))
        tensor([False, False,  True, False])
        >>> keys.is_in(torch.tensor(4))
        False

    Args:
        n: Number of categories, or -1 for a number that `set_provisional_n` sets later.
        shape: Shape of every tensor of the set, [] by default.
        mask: Which categories are allowed, bool, expandable to [*shape, n]. `None` allows all categories.

    Raises:
        InvalidArgumentError: If n < -1, or the mask does not fit.
    """

    kind = "discrete"
    _n: int
    _provisional_n: int | None

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
            raise InvalidArgumentError(f"n is {n}, expected at least 0, or -1 for a number that is not known yet")
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """Number of categories.

        Raises:
            InvalidArgumentError: If the number is not known yet.
        """
        if self._n >= 0:
            return self._n
        if self._provisional_n is None:
            raise InvalidArgumentError(
                "the number of categories is not known yet", hint="set the number with `set_provisional_n`"
            )
        return self._provisional_n

    def set_provisional_n(self, n: int) -> None:
        """Set the number of categories of a spec that was created with n = -1. The number can be set again."""
        self._provisional_n = int(n)

    @property
    @override
    def space(self) -> Space:
        return CategoricalBox(self._n)

    @property
    def _category_counts(self) -> int | Tensor:
        return self.n

    def _size_fields(self) -> dict[str, Any]:
        return {"n": self._n}

    @classmethod
    @override
    def _read_sizes(cls, document: SpecDocument, shape: list[int], dtype: torch.dtype) -> dict[str, Any]:
        return {"n": document.integer("n", -1, 2 if dtype == torch.bool else None)}

    def _mask_from(self, mask: Tensor) -> Tensor:
        return mask.expand(*created_shape(self.shape), self.n)

    def _from_index(self, index: Tensor) -> Tensor:
        return index.to(self.dtype)

    def _index_near(self, value: Tensor) -> Tensor:
        return nearest_int64(value)

    def _inside(self, value: Tensor) -> Tensor | None:
        # As in TorchRL, any index may be valid while the number of categories is not known.
        return None if self._n < 0 else self._are_categories(value, self._allowed)

    def _bound(self, place: tuple[int, ...]) -> str:
        sizes = self._category_counts
        bound = f"an integer in [0, {sizes if isinstance(sizes, int) else int(sizes[place])})"
        return bound if self.mask is None else f"{bound} that the mask allows"

    @override
    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        if not self.ndim:
            return super().index(index, tensor_to_index)
        index = index.long().expand(*tensor_to_index.shape[: -self.ndim], *index.shape[-self.ndim :])
        return tensor_to_index.gather(-1, index)

    def _to_columns(self, val: Tensor) -> Tensor:
        sizes = self._category_counts
        size = sizes if isinstance(sizes, int) else int(sizes.max())
        return self._columns(torch.nn.functional.one_hot(val.long(), size).bool())

    @override
    def to_one_hot_spec(self) -> OneHotDiscreteTensorSpec:
        return OneHotDiscreteTensorSpec(self.n, (*self.shape, self.n), self.device, mask=self.mask)

    @override
    def to_categorical_spec(self) -> DiscreteTensorSpec:
        return self


class BinaryDiscreteTensorSpec(DiscreteTensorSpec):
    """Spec of binary vectors: each element is 0 or 1, and unlike in a one-hot vector, any number of elements may be 1.

        >>> import torch
        >>> from datasets_rl import Binary
        >>> lights = Binary(3, dtype=torch.int64)
        >>> lights.is_in(torch.tensor([0, 1, 1])), lights.is_in(torch.tensor([0, 1, 2]))
        (True, False)

    Args:
        n: Size of the last axis, optional if `shape` is given.
        shape: Shape of every tensor of the set, [n] by default.

    Raises:
        InvalidArgumentError: If n and shape contradict each other, or both are missing.
    """

    kind = "binary"
    _grouped = True

    def __init__(
        self,
        n: int | None = None,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise InvalidArgumentError("n and shape are missing, expected n, shape or both")
        shape = (n or 0,) if shape is None else parse_shape(shape)
        if n is not None and n != (shape[-1] if shape else 0):
            raise InvalidArgumentError(f"n is {n} and shape is {list(shape)}, expected a last axis of size n")
        super().__init__(2, shape, device, dtype)

    def _groups(self) -> list[int]:
        return [2] * (self.shape[-1] if self.shape else 1)

    def _size_fields(self) -> dict[str, Any]:
        return {}

    @classmethod
    @override
    def _read_sizes(cls, document: SpecDocument, shape: list[int], dtype: torch.dtype) -> dict[str, Any]:
        return {}


class MultiDiscreteTensorSpec(DiscreteTensorSpec):
    """Spec of several categorical variables: element i is an integer in [0, nvec[i]).

        >>> import torch
        >>> from datasets_rl import MultiCategorical
        >>> buttons = MultiCategorical([3, 2])
        >>> buttons.is_in(torch.tensor([2, 1])), buttons.is_in(torch.tensor([1, 2]))
        (True, False)
        >>> buttons.to_one_hot(torch.tensor([2, 1]))
        tensor([False, False,  True, False,  True])

    Args:
        nvec: Number of categories of each element, with any number of axes. If a number is 0, the set is empty.
        shape: Shape of every tensor of the set, to which `nvec` is expanded. The shape of `nvec` by default.
        mask: Which categories are allowed, bool, expandable to [*shape[:-1], sum(nvec)]: the categories of the elements
            of the last axis, concatenated. A mask requires an `nvec` that is constant along the leading axes.
        remove_singleton: Whether `rand` removes the last axis if the shape is [1], as in TorchRL: with `nvec` 5 or [5],
            `rand` returns a tensor without axes. Members of such a spec may have this axis or not. The results of `zero`,
            `one` and `enumerate` have the axis.

    Raises:
        InvalidArgumentError: If an entry of `nvec` is negative, or the shape or the mask does not fit.
    """

    kind = "multi_discrete"
    _grouped = True

    def __init__(
        self,
        nvec: Sequence[int] | Tensor | int,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
        remove_singleton: bool = True,
    ) -> None:
        self.remove_singleton = remove_singleton
        self._n, self._provisional_n = 0, None
        counts = torch.as_tensor(nvec, dtype=torch.int64)
        counts = counts.reshape(1) if shape is None and not counts.ndim else counts
        LeafSpec.__init__(self, counts.shape if shape is None else parse_shape(shape), device, dtype)
        if bool((counts < 0).any()):
            raise InvalidArgumentError(f"nvec is {counts.tolist()}, expected integers >= 0")
        if counts.shape[-1:] != self.shape[-1:]:
            raise InvalidArgumentError(
                f"nvec of shape {list(counts.shape)} does not fit {list(self.shape)}, expected the same last axis"
            )
        try:
            self.nvec = counts.to(self.device).expand(created_shape(self.shape))
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"nvec of shape {list(counts.shape)} does not fit {list(self.shape)}: {error}"
            ) from None
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """Not an attribute of this class.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError("a spec of several categorical variables has `nvec`, and no `n`")

    @property
    def widths(self) -> Tensor:
        """Number of categories of each element of the last axis, int64 [shape[-1]].

        Raises:
            InvalidArgumentError: If the numbers differ along the leading axes.
        """
        rows = self.nvec.reshape(-1, *self.nvec.shape[-1:]) if self.ndim else self.nvec.reshape(1, 1)
        if not len(rows) or bool((rows != rows[:1]).any()):
            raise InvalidArgumentError(
                f"nvec of {self._named()} differs along the leading axes", hint="`unbind` the spec first"
            )
        return rows[0].reshape(-1)

    @property
    @override
    def space(self) -> Space:
        return BoxList.from_nvec(self.nvec)

    @property
    def _category_counts(self) -> int | Tensor:
        return self.nvec

    def _size_fields(self) -> dict[str, Any]:
        singleton = {} if self.remove_singleton else {"remove_singleton": False}
        return {"nvec": compact_values(self.nvec), **singleton}

    @classmethod
    @override
    def _read_sizes(cls, document: SpecDocument, shape: list[int], dtype: torch.dtype) -> dict[str, Any]:
        nvec = document.tensor("nvec", torch.int64)
        remove = document.field("remove_singleton", lambda value: isinstance(value, bool), "true or false", True)
        if nvec is not None and document.valid and nvec.shape[-1:] in {(), (1,)}:
            # One number applies to the whole last axis.
            nvec = nvec.expand((*nvec.shape[:-1], *shape[-1:]))
        return {"nvec": nvec, "remove_singleton": remove}

    def _repr_arguments(self) -> list[str]:
        return [f"nvec={self.nvec.tolist()}", *([] if self._mask is None else ["masked"])]

    # `_mask` has shape [*shape, max(nvec)], False at indices >= nvec. `mask` has the shape that the constructor takes.

    @property
    def mask(self) -> Tensor | None:
        """Which categories are allowed, bool [*shape[:-1], sum(nvec)], or `None` for all. Set by `update_mask`."""
        rows = self._mask
        return None if rows is None else self._columns(rows if self.ndim else rows[None])

    def _mask_from(self, mask: Tensor) -> Tensor:
        mask = self._rows(mask.expand(*created_shape(self.shape[:-1]), int(self.widths.sum())))
        return mask if self.ndim else mask[0]

    # --- members without the last axis, which `remove_singleton` removes from draws of size 1

    def _with_last_axis(self, value: Any) -> Any:
        removable = self.remove_singleton and self.shape == (1,) and isinstance(value, Tensor)
        return value.unsqueeze(-1) if removable and not self._suits(value.shape) else value

    @override
    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        drawn = super().rand(shape, generator=generator)
        return drawn.squeeze(-1) if self.remove_singleton and self.shape == (1,) else drawn

    @override
    def is_in(self, value: Any) -> bool:
        return super().is_in(self._with_last_axis(value))

    @override
    def problems(self, value: Any, place: str = "value") -> list[str]:
        return super().problems(self._with_last_axis(value), place)

    @override
    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        tensor = self._as_tensor(val, self.dtype, ignore_device=ignore_device)
        return super().encode(self._with_last_axis(tensor), ignore_device=ignore_device)

    def _projected(self, value: Any) -> Tensor:
        return super()._projected(self._with_last_axis(value)).reshape(value.shape)

    @override
    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        selected = FiniteSpec.index(self, self._with_last_axis(index), tensor_to_index)
        return selected if self._with_last_axis(index) is index else selected.squeeze(-1)

    @override
    def _to_columns(self, val: Tensor) -> Tensor:
        return super()._to_columns(self._with_last_axis(val))

    @override
    def to_one_hot_spec(self) -> MultiOneHotDiscreteTensorSpec:
        widths = self.widths.tolist()
        return MultiOneHotDiscreteTensorSpec(widths, (*self.shape[:-1], sum(widths)), self.device, mask=self.mask)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MultiDiscreteTensorSpec):
            other = other._changed(remove_singleton=self.remove_singleton)  # not compared, as in TorchRL
        return super().__eq__(other)

    __hash__ = DiscreteTensorSpec.__hash__


class OneHotDiscreteTensorSpec(FiniteSpec):
    """One-hot spec: one of n categories, encoded along the last axis as a vector of a single 1 and n - 1 zeros.

    The last axis is a single outcome: shape operations and indices apply only to the other axes.

        >>> import torch
        >>> from datasets_rl import OneHot
        >>> OneHot(4).encode(2)
        tensor([False, False,  True, False])
        >>> OneHot(4).to_categorical(torch.tensor([False, False, True, False]))
        tensor(2)

    Args:
        n: Number of categories. The set of 0 categories is empty.
        shape: Shape of every tensor of the set, [..., n]. [n] by default.
        use_register: Whether `encode` accepts arbitrary integers and assigns each new integer to the next category.
            `to_numpy` returns the integers. Reshaped copies of the spec share the register.
        mask: Which categories are allowed, bool, expandable to the shape. `None` allows all categories.

    Raises:
        InvalidArgumentError: If n < 0, or the shape or the mask does not fit.
    """

    kind = "one_hot"
    _register: Register | None

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
        if self.n < 0:
            raise InvalidArgumentError(f"n is {n}, expected at least 0")
        self._initialize([self.n], shape, device, dtype, use_register, mask)

    def _initialize(
        self, groups: Sequence[int], shape: Any, device: Any, dtype: torch.dtype, use_register: bool, mask: Any
    ) -> None:
        columns = sum(groups)
        self._register = Register([{} for _ in groups]) if use_register else None
        super().__init__((columns,) if shape is None else shape, device, dtype)
        if self.shape[-1:] != (columns,):
            raise InvalidArgumentError(f"shape is {list(self.shape)}, expected a last axis of size {columns}")
        self.update_mask(mask)

    @property
    def use_register(self) -> bool:
        """Whether `encode` accepts arbitrary integers and assigns the integers to categories."""
        return self._register is not None

    @property
    def _category_counts(self) -> int | Tensor:
        return self.n

    @property
    def _index_shape(self) -> torch.Size:
        return self.shape[:-1]

    def _size_fields(self) -> dict[str, Any]:
        return {"n": self.n}

    @classmethod
    @override
    def _read_sizes(cls, document: SpecDocument, shape: list[int], dtype: torch.dtype) -> dict[str, Any]:
        return {"n": document.integer("n", 0)}

    @property
    def _allowed(self) -> Tensor | None:
        return None if self._mask is None else self._rows(self._mask)

    def _mask_from(self, mask: Tensor) -> Tensor:
        return mask.expand(created_shape(self.shape))

    def _from_index(self, index: Tensor) -> Tensor:
        # Not by `one_hot`, which refuses no categories.
        rows = index.unsqueeze(-1) == torch.arange(max(self._groups()), device=index.device)
        return self._columns(rows.to(self.dtype))

    def _inside(self, value: Tensor) -> Tensor | None:
        rows = self._rows(value)
        ones = rows == 1
        inside = ones.sum(-1) == 1
        if self.dtype != torch.bool:
            inside &= (ones | (rows == 0)).all(-1)
        allowed = self._allowed
        inside = inside if allowed is None else inside & (ones & allowed.to(value.device)).any(-1)
        return inside.all(-1) if self._grouped else inside

    def _index_near(self, value: Tensor) -> Tensor:
        # The nearest one-hot vector has the 1 at the largest element. NaN and -inf count as the smallest finite number,
        # and only columns that the mask excludes as -inf.
        smallest = torch.finfo(torch.float64).min
        rows = torch.nan_to_num(self._rows(value).double(), nan=smallest, neginf=smallest)
        sizes, columns = self._category_counts, torch.arange(rows.shape[-1], device=value.device)
        allowed = columns < (sizes if isinstance(sizes, int) else sizes.to(value.device).unsqueeze(-1))
        if self._allowed is not None:
            allowed = allowed & self._allowed.to(value.device)
        return rows.masked_fill(~allowed, -math.inf).argmax(-1)

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        bound = f"a one-hot vector of size {self.n}"
        return bound if self.mask is None else f"{bound} with the 1 where the mask allows it"

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Encode integers in [0, n) as one-hot vectors. A bool tensor of the spec's shape is returned unchanged.

        With a register, the integers are arbitrary, and new integers are registered.

        Args:
            val: Integers of the shape of the spec without the last axis. For several variables, the last axis has an
                integer for each variable. Extra leading axes are allowed.
            ignore_device: Whether to leave the tensor on its current device.

        Raises:
            InvalidArgumentError: If a value is out of range, the register is full, or the shape does not fit.
        """
        if isinstance(val, Tensor) and val.dtype == self.dtype == torch.bool and self._suits(val.shape):
            return val
        # A list with a single number is an axis of size 1, unlike in other specs, as in TorchRL.
        val = np.array(val) if isinstance(val, list) else val
        index = self._as_tensor(val, torch.int64, ignore_device=ignore_device).long()
        shape = self._index_shape
        if index.shape[max(index.ndim - len(shape), 0) :] != shape:
            try:
                index = index.reshape(shape)
            except RuntimeError:
                raise InvalidArgumentError(
                    f"values of shape {list(index.shape)} cannot be encoded, expected shape {list(shape)}"
                ) from None
        if self._register is not None:
            return self._from_index(self._register.numbered(index, self._groups()))
        inside = self._are_categories(index, None)
        if inside is not None and not bool(inside.all()):
            raise InvalidArgumentError(f"{val!r} cannot be encoded, expected {self._expected_values()}")
        return self._from_index(index)

    def _expected_values(self) -> str:
        return f"integers in [0, {self.n})"

    def _to_numpy(self, val: Tensor) -> Any:
        categories = self.to_categorical(val).cpu()
        return (categories if self._register is None else self._register.values(categories)).numpy()

    @override
    def _to_index(self, val: Tensor) -> Tensor:
        # torch implements no argmax for bool.
        return self._rows(val).to(torch.uint8 if val.dtype == torch.bool else val.dtype).argmax(-1)

    def _to_columns(self, val: Tensor) -> Tensor:
        return val

    @override
    def to_categorical_spec(self) -> DiscreteTensorSpec:
        return DiscreteTensorSpec(self.n, self._index_shape, self.device, mask=self.mask)

    @override
    def to_one_hot_spec(self) -> Self:
        return self

    # --- shapes: operations cannot change the last axis

    @override
    def _moved(self, shape: torch.Size, move: Callable[[Tensor], Tensor]) -> Self:
        self._check_last_axis(shape)
        return super()._moved(shape, move)

    @override
    def _selectable_axis(self, dim: int) -> int:
        axis = super()._selectable_axis(dim)
        self._check_last_axis(self.shape if axis < self.ndim - 1 else ())
        return axis

    def _check_last_axis(self, shape: Sequence[int]) -> None:
        """Raise an error if the last axis of a shape is not that of the spec."""
        if shape[-1:] != self.shape[-1:]:
            raise InvalidArgumentError(
                f"the last axis of {self._named()} holds one-hot vectors and cannot be changed",
                hint="`to_categorical_spec` returns a spec without that axis",
            )

    def _indexed_shape(self) -> Sequence[int]:
        return self.shape[:-1]

    @override
    def to_json(self) -> dict[str, Any]:
        register = {} if self._register is None else {"register": self._register.to_json()}
        return {**super().to_json(), **register}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> Self | None:
        spec = super().read(document)
        if spec is not None:
            spec._register = Register.read(document, spec._groups())  # noqa: SLF001  # same class
        return spec


class MultiOneHotDiscreteTensorSpec(OneHotDiscreteTensorSpec):
    """Spec of several categorical variables, encoded as one-hot vectors that are concatenated along the last axis.

        >>> from datasets_rl import MultiOneHot
        >>> buttons = MultiOneHot([3, 2])
        >>> buttons.zero()
        tensor([False, False, False, False, False])
        >>> buttons.shape
        torch.Size([5])

    Args:
        nvec: Number of categories of each variable. If a number is 0, the set is empty.
        shape: Shape of every tensor of the set, [..., sum(nvec)]. [sum(nvec)] by default.
        use_register: Whether `encode` accepts arbitrary integers, as in `OneHotDiscreteTensorSpec`. Each variable has a
            separate register.
        mask: Which categories are allowed, bool, expandable to the shape. `None` allows all categories.

    Raises:
        InvalidArgumentError: If an entry of `nvec` is negative, or the shape or the mask does not fit.
    """

    kind = "multi_one_hot"
    _grouped = True

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bool,
        use_register: bool = False,
        mask: Any = None,
    ) -> None:
        self.nvec = tuple(int(count) for count in nvec)
        if not self.nvec or min(self.nvec) < 0:
            raise InvalidArgumentError(f"nvec is {list(self.nvec)}, expected integers >= 0")
        self._initialize(self.nvec, shape, device, dtype, use_register, mask)

    @property
    @override
    def widths(self) -> Tensor:
        return torch.tensor(self.nvec, device=self.device)

    @property
    def _category_counts(self) -> int | Tensor:
        return self.widths

    @property
    def _index_shape(self) -> torch.Size:
        return torch.Size((*self.shape[:-1], len(self.nvec)))

    def _size_fields(self) -> dict[str, Any]:
        return {"nvec": list(self.nvec)}

    @classmethod
    @override
    def _read_sizes(cls, document: SpecDocument, shape: list[int], dtype: torch.dtype) -> dict[str, Any]:
        return {"nvec": document.integers("nvec", 0)}

    def _bound(self, place: tuple[int, ...]) -> str:
        del place
        bound = f"concatenated one-hot vectors of sizes {list(self.nvec)}"
        return bound if self.mask is None else f"{bound} with each 1 where the mask allows it"

    def _expected_values(self) -> str:
        return f"non-negative integers below {list(self.nvec)}"

    @override
    def to_categorical_spec(self) -> MultiDiscreteTensorSpec:
        return MultiDiscreteTensorSpec(self.nvec, self._index_shape, self.device, mask=self.mask)
