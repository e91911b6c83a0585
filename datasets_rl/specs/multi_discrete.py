"""Spec of several categorical variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import Entry, compact_values
from datasets_rl.specs._finite import FiniteSpec
from datasets_rl.specs._groups import concatenate_groups, pad_groups
from datasets_rl.specs.base import Lead, LeafSpec, Rearrange, created_shape, parse_shape, resized_tensor
from datasets_rl.specs.discrete import DiscreteTensorSpec
from datasets_rl.specs.multi_one_hot import MultiOneHotDiscreteTensorSpec
from datasets_rl.specs.space import BoxList, Space

__all__ = ["MultiDiscreteTensorSpec"]


class MultiDiscreteTensorSpec(DiscreteTensorSpec):
    """Spec of several categorical variables: element i is an integer in [0, nvec[i]).

    An outcome is a vector along the last axis.

    Args:
        nvec: Number of categories of each element, each at least 1; it may have several axes.
        shape: Shape of every tensor of the set, to which `nvec` is expanded; the shape of `nvec` by default.
        device: Device of the tensors that the spec creates; torch's default device by default.
        dtype: Dtype of every tensor of the set.
        mask: Which categories are allowed, bool, expandable to [*shape[:-1], sum(nvec)]: the categories of the elements
            of the last axis, concatenated. A mask requires an `nvec` that is constant along the leading axes.
        remove_singleton: Whether `rand` removes the last axis if the shape is [1], as in TorchRL: with `nvec` 5 or [5],
            it returns a tensor without axes. Members of such a spec may have that axis or not; the results of `zero`,
            `one` and `enumerate` have it.

    Raises:
        InvalidArgumentError: If an entry of `nvec` is below 1, or the shape or the mask does not fit.
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
        if bool((counts < 1).any()):
            raise InvalidArgumentError(f"nvec is {counts.tolist()}; expected integers >= 1")
        if counts.shape[-1:] != self.shape[-1:]:
            raise InvalidArgumentError(
                f"nvec of shape {list(counts.shape)} does not fit {list(self.shape)}; expected the same last axis"
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

    def _with_last_axis(self, value: Any) -> Any:
        """Return a value with its last axis, which `remove_singleton` removes from draws of size 1."""
        removable = self.remove_singleton and self.shape == (1,) and isinstance(value, Tensor)
        return value.unsqueeze(-1) if removable and not self._suits(value.shape) else value

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Tensor:
        """Draw uniformly: a tensor [*shape, *self.shape], or [*shape] if `remove_singleton` removes the last axis."""
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

    def project(self, value: Any) -> Tensor:
        """Return the member of the set nearest to a tensor, in the shape of that tensor, or the tensor itself if valid.

        Raises:
            InvalidArgumentError: If the value is not a tensor, or has another shape than the spec.
        """
        if self.is_in(value):
            tensor: Tensor = value
            return tensor
        nearest = super().project(self._with_last_axis(value))
        return nearest.reshape(value.shape)

    @property
    @override
    def space(self) -> Space:
        return BoxList.from_nvec(self.nvec)

    @property
    def _sizes(self) -> int | Tensor:
        return self.nvec

    @property
    def widths(self) -> Tensor:
        """Number of categories of each element of the last axis, int64 [shape[-1]].

        Raises:
            InvalidArgumentError: If the numbers differ along the leading axes.
        """
        rows = self.nvec.reshape(-1, *self.nvec.shape[-1:]) if self.ndim else self.nvec.reshape(1, 1)
        if not len(rows) or bool((rows != rows[:1]).any()):
            raise InvalidArgumentError(
                f"nvec of {self._named()} differs along the leading axes", hint="`unbind` it first"
            )
        return rows[0].reshape(-1)

    def _groups(self) -> list[int]:
        counts: list[int] = self.widths.tolist()
        return counts

    # `_mask` has shape [*shape, max(nvec)], False at indices >= nvec; `mask` has the shape that the constructor takes.

    @property
    def mask(self) -> Tensor | None:
        """Which categories are allowed, bool [*shape[:-1], sum(nvec)]; `None` allows all. Set it with `update_mask`."""
        return (
            None
            if self._mask is None
            else concatenate_groups(self._mask if self.ndim else self._mask[None], self.widths)
        )

    def _mask_from(self, mask: Tensor) -> Tensor:
        widths = self.widths
        mask = pad_groups(mask.expand(*created_shape(self.shape[:-1]), int(widths.sum())), widths)
        return mask if self.ndim else mask[0]

    def _size_at(self, place: tuple[int, ...]) -> int:
        return int(self.nvec[place])

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Select the entries of the last axis of a tensor at the categories.

        Args:
            index: A member of the set, [*B, *shape].
            tensor_to_index: Tensor [..., sum(nvec)]: the entries for the categories of all elements of the last axis,
                concatenated.

        Returns:
            The selected entries, of the shape of `index`.
        """
        shape, index = index.shape, self._with_last_axis(index)
        index = index.long() + (self.widths.cumsum(0) - self.widths)
        selected = tensor_to_index.gather(-1, index.expand(*tensor_to_index.shape[:-1], -1))
        return selected if index.shape == shape else selected.squeeze(-1)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Return the concatenated one-hot encodings, bool [*B, *shape[:-1], sum(nvec)].

        Args:
            val: A member of the set, [*B, *shape].
            safe: Whether to raise an error if `val` is not in the set; off by default.

        Raises:
            InvalidArgumentError: If `nvec` differs along the leading axes.
        """
        if safe:
            self.assert_is_in(val)
        widths, val = self.widths, self._with_last_axis(val)
        return concatenate_groups(torch.nn.functional.one_hot(val.long(), int(widths.max())).bool(), widths)

    @override
    def to_one_hot_spec(self) -> MultiOneHotDiscreteTensorSpec:
        widths = self.widths.tolist()
        return MultiOneHotDiscreteTensorSpec(widths, (*self.shape[:-1], sum(widths)), self.device, mask=self.mask)

    @override
    def rearranged(self, rearrange: Rearrange) -> MultiDiscreteTensorSpec:
        spec = super().rearranged(rearrange)
        spec.nvec = self._moved_tensor(rearrange, self.nvec)
        return spec

    @override
    def _resized(self, shape: torch.Size) -> Self:
        spec = super()._resized(shape)
        spec.nvec = resized_tensor(self.nvec, shape)
        return spec

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MultiDiscreteTensorSpec):
            other = other._changed(remove_singleton=self.remove_singleton)  # not compared, as in TorchRL
        return super().__eq__(other)

    __hash__ = DiscreteTensorSpec.__hash__

    @override
    def to_json(self) -> dict[str, Any]:
        document = {**FiniteSpec.to_json(self), "nvec": compact_values(self.nvec)}
        return document if self.remove_singleton else {**document, "remove_singleton": False}

    @classmethod
    def read(cls, entry: Entry) -> MultiDiscreteTensorSpec | None:
        """Read a spec of this class from a JSON object; an `nvec` of one number applies to the whole last axis."""
        shape, dtype = entry.shape(), entry.dtype()
        nvec, mask = entry.tensor("nvec", torch.int64), cls._read_mask(entry)
        remove = entry.field("remove_singleton", lambda value: isinstance(value, bool), "true or false", True)
        if nvec is None or not entry.valid:
            return None
        if nvec.shape[-1:] in {(), (1,)}:
            nvec = nvec.expand((*nvec.shape[:-1], *shape[-1:]))
        return cls(nvec, shape, dtype=dtype, mask=mask, remove_singleton=remove)

    def _repr_arguments(self) -> list[str]:
        return [f"nvec={self.nvec.tolist()}", *([] if self._mask is None else ["masked"])]
