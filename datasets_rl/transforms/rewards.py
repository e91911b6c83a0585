"""Elementwise transforms of rewards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms._bounds import dtype_of, map_bounds
from datasets_rl.transforms.base import Keys, Transform

__all__ = ["BinarizeReward", "RewardClipping", "SignTransform"]

_REWARD = (NEXT, "reward")
"""Key of the reward in TED. TorchRL's default is "reward", which its environments move under "next"."""


class RewardClipping(Transform):
    """Clip rewards.

    Args:
        clamp_min: Minimum reward; `None` for no minimum.
        clamp_max: Maximum reward; `None` for no maximum.
        in_keys: Keys of the rewards; ``("next", "reward")`` by default.
        out_keys: Keys of the results; `in_keys` by default.

    Raises:
        InvalidArgumentError: If neither limit is given.
    """

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys)
        if clamp_min is None and clamp_max is None:
            raise InvalidArgumentError("clamp_min and clamp_max are both missing; expected at least one number")
        self.clamp_min, self.clamp_max = clamp_min, clamp_max

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.clamp(self.clamp_min, self.clamp_max)

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with clipped bounds; for an unbounded spec, the limits become its bounds."""
        clipped = map_bounds(spec, self.transform_value)
        if isinstance(clipped, BoundedTensorSpec):
            return clipped
        low, high = (
            default if limit is None else limit
            for limit, default in ((self.clamp_min, -torch.inf), (self.clamp_max, torch.inf))
        )
        return BoundedTensorSpec(low, high, clipped.shape, clipped.device, dtype_of(clipped))

    def _repr_arguments(self) -> dict[str, Any]:
        return {"clamp_min": self.clamp_min, "clamp_max": self.clamp_max}


class BinarizeReward(Transform):
    """Replace positive rewards by 1 and all others by 0, int8.

    Args:
        in_keys: Keys of the rewards; ``("next", "reward")`` by default.
        out_keys: Keys of the results; `in_keys` by default.
    """

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return (value > 0).to(torch.int8)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return BoundedTensorSpec(0, 1, spec.shape, spec.device, torch.int8)


class SignTransform(Transform):
    """Replace elements by their sign, -1, 0 or 1, in the dtype of the entry; `inv` does the same.

    Args:
        in_keys: Keys of the entries to read.
        out_keys: Keys of the results; `in_keys` by default.
        in_keys_inv: Keys of the entries that `inv` writes.
        out_keys_inv: Keys of the entries that `inv` reads; `in_keys_inv` by default.
    """

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.sign()

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return value.sign()

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        signs = map_bounds(spec, self.transform_value)
        if isinstance(signs, BoundedTensorSpec):
            return signs
        dtype = dtype_of(signs)
        return BoundedTensorSpec(-1 if dtype.is_signed else 0, 1, signs.shape, signs.device, dtype)
