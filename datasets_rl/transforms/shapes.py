"""Transforms of the shapes of entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import axis_problems, check, unless
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.ted.keys import natural_order
from datasets_rl.transforms._bounds import join_bounds
from datasets_rl.transforms.base import Keys, NestedKey, Transform, dotted_text, key_list, remove_entry, under_next

_NO_STATES = frozenset({"reward", "done", "terminated", "truncated"})


class _AxesTransform(Transform):
    """Base class of transforms that change the shape of entries, but not their elements."""

    per_step = True

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Apply the shape operation to the spec. Return an unbounded spec if its class does not support it."""
        try:
            moved: TensorSpec = spec.rearranged(self.transform_value)
        except InvalidArgumentError:
            return super().transformed_spec(spec)
        return moved


class UnsqueezeTransform(_AxesTransform):
    """Insert an axis of size 1.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import UnsqueezeTransform
        >>> batch = TensorDict({"observation": torch.zeros(4, 2)}, [4])
        >>> UnsqueezeTransform(dim=-1, in_keys=["observation"])(batch)["observation"].shape
        torch.Size([4, 2, 1])

    Args:
        dim: Index of the axis in the result, negative: counted from the last axis.
        allow_positive_dim: Whether `dim` may be counted from the first axis, including the batch size.
        in_keys_inv: Keys of the entries that `inv` writes, with the axis removed.

    Raises:
        InvalidArgumentError: If `dim` is not negative, unless `allow_positive_dim` is set.
    """

    shown = ("dim",)
    in_recipes = True

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
        _check_negative_dims(allow_positive_dim, dim=dim)
        self.dim = dim

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.unsqueeze(self.dim)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return value.squeeze(self.dim)


class SqueezeTransform(UnsqueezeTransform):
    """Remove an axis of size 1. `inv` inserts it.

    The arguments are documented in `UnsqueezeTransform`.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import SqueezeTransform
        >>> batch = TensorDict({"observation": torch.zeros(4, 2, 1)}, [4])
        >>> SqueezeTransform(dim=-1, in_keys=["observation"])(batch)["observation"].shape
        torch.Size([4, 2])
    """

    in_recipes = True

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.squeeze(self.dim)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return value.unsqueeze(self.dim)


class PermuteTransform(_AxesTransform):
    """Permute the last axes.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import PermuteTransform
        >>> batch = TensorDict({"pixels": torch.zeros(4, 84, 64, 3)}, [4])
        >>> PermuteTransform((-1, -3, -2), in_keys=["pixels"])(batch)["pixels"].shape
        torch.Size([4, 3, 84, 64])

    Args:
        dims: The last n axes in their new order, each of -n to -1 once. ``(-1, -3, -2)`` moves the channels of images
            [..., H, W, C] first.
        in_keys: Keys of the entries to permute.
        in_keys_inv: Keys of the entries that `inv` writes, with the inverse permutation.

    Raises:
        InvalidArgumentError: If `dims` is not a permutation of -n to -1.
    """

    shown = ("dims",)
    in_recipes = True

    def __init__(
        self,
        dims: Sequence[int],
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        check(unless(isinstance(dims, Sequence), f"dims is {dims!r}, expected a list of axes"))
        self.dims = tuple(dims)
        self.axes = len(self.dims)
        count = len(self.dims)
        if sorted(self.dims) != list(range(-count, 0)):
            raise InvalidArgumentError(f"dims are {self.dims}, expected each of {list(range(-count, 0))} once")
        self._inverse_dims = tuple(self.dims.index(dim) - count for dim in range(-count, 0))

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return _permute(value, self.dims)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return _permute(value, self._inverse_dims)


class FlattenObservation(_AxesTransform):
    """Merge consecutive axes into a single axis.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import FlattenObservation
        >>> batch = TensorDict({"pixels": torch.zeros(4, 8, 8, 3)}, [4])
        >>> FlattenObservation(-3, -1, in_keys=["pixels"])(batch)["pixels"].shape
        torch.Size([4, 192])

    Args:
        first_dim: First axis to merge, negative: counted from the last axis.
        last_dim: Last axis to merge, negative: counted from the last axis.
        in_keys: Keys of the entries to flatten, ``["pixels"]`` by default.
        allow_positive_dim: Whether the axes may be counted from the first axis, including the batch size.

    Raises:
        InvalidArgumentError: If an axis is not negative, unless `allow_positive_dim` is set.
    """

    shown = ("first_dim", "last_dim")
    in_recipes = True

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__("pixels" if in_keys is None else in_keys, out_keys)
        _check_negative_dims(allow_positive_dim, first_dim=first_dim, last_dim=last_dim)
        self.first_dim, self.last_dim = first_dim, last_dim
        self.axes = max(-first_dim, 0)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.flatten(self.first_dim, self.last_dim)


class CatTensors(Transform):
    """Concatenate several entries into a single entry.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import CatTensors
        >>> batch = TensorDict({"position": torch.zeros(4, 2), "velocity": torch.zeros(4, 3)}, [4])
        >>> CatTensors(in_keys=["position", "velocity"], out_key="observation")(batch)["observation"].shape
        torch.Size([4, 5])

    Args:
        in_keys: Keys of the entries. By default all states with one axis per step: the entries that a batch has both at
            the root and under "next", without rewards and flags.
        out_key: Key of the result.
        dim: Axis along which the entries are concatenated, counted from the last axis.
        del_keys: Whether to remove the entries from the batch.
        unsqueeze_if_oor: Whether to append an axis of size 1 to entries without such an axis.
        sort: Whether to concatenate the entries in the order of their sorted keys instead of the order of `in_keys`:
            ``joint_2`` before ``joint_10``.
    """

    shown = ("dim",)
    per_step = True
    instead = "concatenate"

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        super().__init__(sorted(key_list(in_keys), key=_order_of) if sort else in_keys)
        self.out_keys = [out_key]
        self._all_states = in_keys is None
        self.dim, self.del_keys, self.unsqueeze_if_oor = dim, del_keys, unsqueeze_if_oor

    @override
    def transform_batch(self, batch: Any) -> Any:
        keys = self._keys(batch)
        result = self._concatenate(keys, [self.tensor(batch, key) for key in keys], batch.ndim)
        if self.del_keys:
            for key in keys:
                remove_entry(batch, key)
        return batch.set(self.out_keys[0], result)

    def _keys(self, batch: Any) -> list[NestedKey]:
        """Return the keys of the entries to concatenate, of a batch or of its spec."""
        if not self._all_states:
            return self.in_keys
        entries = dict(batch.items(include_nested=True, leaves_only=True))
        states = [
            key
            for key, value in entries.items()
            if under_next(key) in entries and key not in _NO_STATES and len(value.shape) == len(batch.shape) + 1
        ]
        if not states:
            raise InvalidArgumentError(
                "no entry is both at the root and under 'next', expected states", hint="pass in_keys=[...]"
            )
        return sorted(states, key=_order_of)

    def _concatenate(self, keys: Sequence[NestedKey], values: list[Tensor], ndim: int) -> Tensor:
        if self.unsqueeze_if_oor:
            values = [value if value.ndim - ndim >= -self.dim else value.unsqueeze(-1) for value in values]
        try:
            return torch.cat(values, self.dim)
        except (RuntimeError, IndexError) as error:
            shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in zip(keys, values, strict=True))
            raise InvalidArgumentError(f"{shapes} cannot be concatenated along axis {self.dim}: {error}") from None

    def update_specs(self, spec: CompositeSpec) -> None:
        """Replace the specs by the spec of the result, which is bounded if all of them are."""
        keys, ndim = self._keys(spec), len(spec.shape)
        result = join_bounds([spec[key] for key in keys], lambda values: self._concatenate(keys, values, ndim))
        if self.del_keys:
            for key in keys:
                remove_entry(spec, key)
        spec.set(self.out_keys[0], result)


def _order_of(key: NestedKey) -> Any:
    return natural_order(dotted_text(key))


def _permute(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    lead = value.ndim - len(dims)
    return value.permute(*range(lead), *(value.ndim + dim for dim in dims))


def _check_negative_dims(allowed: bool, **dims: int) -> None:
    hint = "" if allowed else "to count from the first axis, pass allow_positive_dim=True"
    check(axis_problems(allow_positive=allowed, **dims), hint=hint)
