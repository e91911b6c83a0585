"""Rewards one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms._bounds import dtype_of, mapped
from datasets_rl.transforms.base import Keys, Transform

__all__ = ["BinarizeReward", "RewardClipping", "SignTransform"]

_REWARD = (NEXT, "reward")
"""Where TED has it. TorchRL's transforms default to "reward", which an environment puts under "next" by itself."""


class RewardClipping(Transform):
    """Clip rewards.

    Args:
        clamp_min: The least one; None for no limit.
        clamp_max: The greatest one; None for no limit.
        in_keys: The rewards; ``("next", "reward")`` by default.
        out_keys: Where they are written.
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
            raise InvalidArgumentError("clamp_min and clamp_max are None; expected at least one number")
        self.clamp_min, self.clamp_max = clamp_min, clamp_max

    def each(self, value: Tensor) -> Tensor:
        """Clip the rewards."""
        return value.clamp(self.clamp_min, self.clamp_max)

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the bounds, clipped; where there are none, the limits themselves."""
        clipped = mapped(spec, self.each)
        if isinstance(clipped, BoundedTensorSpec):
            return clipped
        low, high = (
            limit if given is None else given
            for given, limit in ((self.clamp_min, -torch.inf), (self.clamp_max, torch.inf))
        )
        return BoundedTensorSpec(low, high, clipped.shape, clipped.device, dtype_of(clipped))

    def _facts(self) -> dict[str, Any]:
        return {"clamp_min": self.clamp_min, "clamp_max": self.clamp_max}


class BinarizeReward(Transform):
    """Make 1 of positive rewards, and 0 of all others, int8.

    Args:
        in_keys: The rewards; ``("next", "reward")`` by default.
        out_keys: Where they are written.
    """

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys)

    def each(self, value: Tensor) -> Tensor:
        """Say of each whether it is positive."""
        return (value > 0).to(torch.int8)

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of 0 and 1."""
        return BoundedTensorSpec(0, 1, spec.shape, spec.device, torch.int8)


class SignTransform(Transform):
    """Put the sign in place of numbers: -1, 0 or 1, in their dtype.

    Args:
        in_keys: Entries.
        out_keys: Where they are written.
        in_keys_inv: Entries that `inv` writes, their signs too.
        out_keys_inv: Entries that it reads.
    """

    def each(self, value: Tensor) -> Tensor:
        """Return the signs."""
        return value.sign()

    def each_inv(self, value: Tensor) -> Tensor:
        """Return the signs, on the way into the buffer."""
        return value.sign()

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of -1, 0 and 1."""
        signs = mapped(spec, self.each)
        if isinstance(signs, BoundedTensorSpec):
            return signs
        dtype = dtype_of(signs)
        return BoundedTensorSpec(-1 if dtype.is_signed else 0, 1, signs.shape, signs.device, dtype)
