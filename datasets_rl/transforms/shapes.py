"""The axes of entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.transforms._bounds import between, bounds_of
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, drop, taken

__all__ = ["CatTensors", "FlattenObservation", "PermuteTransform", "SqueezeTransform", "UnsqueezeTransform"]


class _Axes(Transform):
    """A transform that moves numbers about and changes none."""

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Move the spec as its data; where its kind cannot be moved like this, say shape and dtype."""
        try:
            moved: TensorSpec = spec.moved(self.each)
        except InvalidArgumentError:
            return super().spec_of(spec)
        return moved


class UnsqueezeTransform(_Axes):
    """Insert an axis of size one.

    Args:
        dim: Its place among the axes of the result, counted from the last one: below 0.
        allow_positive_dim: Whether it may be counted from the first one, the batch size included.
        in_keys: Entries that get it.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes, with the axis removed.
        out_keys_inv: Entries that it reads.
    """

    def __init__(
        self,
        dim: int,
        *,
        allow_positive_dim: bool = False,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        _expect_from_the_end(allow_positive_dim, dim=dim)
        self.dim = dim

    def each(self, value: Tensor) -> Tensor:
        """Insert the axis."""
        return value.unsqueeze(self.dim)

    def each_inv(self, value: Tensor) -> Tensor:
        """Remove it."""
        return value.squeeze(self.dim)

    def _facts(self) -> dict[str, Any]:
        return {"dim": self.dim}


class SqueezeTransform(UnsqueezeTransform):
    """Remove an axis of size one: `UnsqueezeTransform` the other way round."""

    def each(self, value: Tensor) -> Tensor:
        """Remove the axis."""
        return value.squeeze(self.dim)

    def each_inv(self, value: Tensor) -> Tensor:
        """Insert it."""
        return value.unsqueeze(self.dim)


class PermuteTransform(_Axes):
    """Put the last axes into another order.

    Args:
        dims: The axes in their new order, counted from the last one: as many as take part, each of them once. Of
            images, ``(-1, -3, -2)`` puts the channels first.
        in_keys: Entries that are permuted.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes, permuted back.
        out_keys_inv: Entries that it reads.
    """

    def __init__(
        self,
        dims: Sequence[int],
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dims = tuple(dims)
        count = len(self.dims)
        if sorted(self.dims) != list(range(-count, 0)):
            raise InvalidArgumentError(f"dims are {self.dims}; expected each of {list(range(-count, 0))} once")
        self._back = tuple(self.dims.index(dim) - count for dim in range(-count, 0))

    def each(self, value: Tensor) -> Tensor:
        """Permute the axes."""
        return _permuted(value, self.dims)

    def each_inv(self, value: Tensor) -> Tensor:
        """Permute them back."""
        return _permuted(value, self._back)

    def _facts(self) -> dict[str, Any]:
        return {"dims": self.dims}


class FlattenObservation(_Axes):
    """Make one axis of several.

    Args:
        first_dim: The first of them, counted from the last axis: below 0.
        last_dim: The last of them, likewise.
        in_keys: Entries that are flattened; ``["pixels"]`` by default.
        out_keys: Where they are written.
        allow_positive_dim: Whether they may be counted from the first axis, the batch size included.
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__("pixels" if in_keys is None else in_keys, out_keys)
        _expect_from_the_end(allow_positive_dim, first_dim=first_dim, last_dim=last_dim)
        self.first_dim, self.last_dim = first_dim, last_dim

    def each(self, value: Tensor) -> Tensor:
        """Flatten the axes."""
        return value.flatten(self.first_dim, self.last_dim)

    def _facts(self) -> dict[str, Any]:
        return {"first_dim": self.first_dim, "last_dim": self.last_dim}


class CatTensors(Transform):
    """Concatenate several entries into one.

    Args:
        in_keys: Their keys.
        out_key: Where the result is written.
        dim: The axis along which they are concatenated, counted from the last one.
        del_keys: Whether the entries themselves are left out of the batch.
        unsqueeze_if_oor: Whether entries without such an axis get it, with size one, as their last.
        sort: Whether they are taken in the order of their keys, not in that of `in_keys`.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        super().__init__(in_keys)
        if sort:
            self.in_keys.sort(key=lambda key: key if isinstance(key, str) else ".".join(key))
        self.out_keys = [out_key]
        self.dim, self.del_keys, self.unsqueeze_if_oor = dim, del_keys, unsqueeze_if_oor

    def apply(self, batch: Any) -> Any:
        """Concatenate the entries."""
        whole = self._joined([taken(batch, key) for key in self.in_keys], batch.ndim)
        if self.del_keys:
            for key in self.in_keys:
                drop(batch, key)
        return batch.set(self.out_keys[0], whole)

    def _joined(self, values: list[Tensor], ndim: int) -> Tensor:
        if self.unsqueeze_if_oor:
            values = [value if value.ndim - ndim >= -self.dim else value.unsqueeze(-1) for value in values]
        try:
            return torch.cat(values, self.dim)
        except (RuntimeError, IndexError) as error:
            shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in zip(self.in_keys, values, strict=True))
            raise InvalidArgumentError(f"{shapes} cannot be concatenated along axis {self.dim}: {error}") from None

    def respec(self, spec: CompositeSpec) -> None:
        """Concatenate the specs: bounds where all of them have some."""
        parts = [spec[key] for key in self.in_keys]
        whole = any_like(self._joined([part.zero() for part in parts], len(spec.shape)))
        bounds = [bounds_of(part) for part in parts]
        known = [pair for pair in bounds if pair is not None]
        if len(known) == len(bounds):
            low, high = (self._joined([pair[side] for pair in known], len(spec.shape)) for side in (0, 1))
            whole = between(low, high)
        if self.del_keys:
            for key in self.in_keys:
                drop(spec, key)
        spec.set(self.out_keys[0], whole)

    def _facts(self) -> dict[str, Any]:
        return {"dim": self.dim}


def _permuted(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    lead = value.ndim - len(dims)
    return value.permute(*range(lead), *(value.ndim + dim for dim in dims))


def _expect_from_the_end(allowed: bool, **dims: int) -> None:
    wrong = [f"{name} is {dim}" for name, dim in dims.items() if dim >= 0]
    if wrong and not allowed:
        raise InvalidArgumentError(
            f"{', '.join(wrong)}; expected below 0: counted from the last axis, so that it holds for any batch size",
            hint="or give allow_positive_dim=True",
        )
