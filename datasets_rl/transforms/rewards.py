"""Elementwise transforms of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.returns import float_rewards
from datasets_rl.specs import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms._bounds import bounds_of, clip_bounds, dtype_of, map_bounds, spec_between
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, number_tensor

_REWARD = (NEXT, "reward")
"""Key of the reward in TED. TorchRL's default is "reward", which its environments move under "next"."""


class RewardClipping(Transform):
    """Clip rewards.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import RewardClipping
        >>> batch = TensorDict({"next": {"reward": torch.tensor([[-3.0], [0.5], [7.0]])}}, [3])
        >>> RewardClipping(-1.0, 1.0, in_keys=[("next", "reward")])(batch)["next", "reward"].flatten()
        tensor([-1.0000,  0.5000,  1.0000])

    Args:
        clamp_min: Minimum reward, or `None` for no minimum.
        clamp_max: Maximum reward, or `None` for no maximum.
        in_keys: Keys of the rewards, ``("next", "reward")`` by default.

    Raises:
        InvalidArgumentError: If neither limit is given, or the minimum is greater than the maximum.
    """

    shown = ("clamp_min", "clamp_max")
    per_step = True
    in_recipes = True

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys)
        if clamp_min is None and clamp_max is None:
            raise InvalidArgumentError("clamp_min and clamp_max are both missing, expected at least one number")
        if clamp_min is not None and clamp_max is not None and clamp_min > clamp_max:
            raise InvalidArgumentError(
                f"clamp_min is {clamp_min} and clamp_max is {clamp_max}, expected clamp_max to be at least as large as clamp_min"
            )
        self.clamp_min, self.clamp_max = clamp_min, clamp_max

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return float_rewards(value).clamp(self.clamp_min, self.clamp_max)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds(map_bounds(spec, float_rewards), self.clamp_min, self.clamp_max)


class BinarizeReward(Transform):
    """Replace rewards that are greater than a threshold by 1 and all others by 0, int8.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import BinarizeReward
        >>> batch = TensorDict({"next": {"reward": torch.tensor([[-3.0], [0.0], [7.0]])}}, [3])
        >>> BinarizeReward(in_keys=[("next", "reward")])(batch)["next", "reward"].flatten()
        tensor([0, 0, 1], dtype=torch.int8)

    Args:
        in_keys: Keys of the rewards, ``("next", "reward")`` by default.
        threshold: The greatest reward that becomes 0.
    """

    shown = ("threshold",)
    per_step = True
    in_recipes = True

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None, *, threshold: float = 0.0) -> None:
        super().__init__([_REWARD] if in_keys is None else in_keys, out_keys)
        self.threshold = float(number_tensor(threshold, "threshold"))

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return (value > self.threshold).to(torch.int8)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return BoundedTensorSpec(0, 1, spec.shape, spec.device, torch.int8)


class SignTransform(Transform):
    """Replace elements by their sign, -1, 0 or 1, in the dtype of the entry. `inv` does the same.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from datasets_rl.transforms import SignTransform
    >>> batch = TensorDict({"next": {"reward": torch.tensor([[-3.0], [0.0], [7.0]])}}, [3])
    >>> SignTransform(in_keys=[("next", "reward")])(batch)["next", "reward"].flatten()
    tensor([-1.,  0.,  1.])
    """

    per_step = True
    in_recipes = True

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


class LineariseRewards(Transform):
    """Replace several rewards by their weighted sum.

        next.reward [*, 2]    1  3        weights 1, -0.5        result [*, 1]    -0.5

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import LineariseRewards
        >>> batch = TensorDict({"next": {"reward": torch.tensor([[1.0, 10.0], [2.0, 20.0]])}}, [2])
        >>> LineariseRewards(in_keys=[("next", "reward")], weights=[1.0, 0.5])(batch)["next", "reward"].flatten()
        tensor([ 6., 12.])

    Args:
        in_keys: Keys of the rewards, [*, R].
        out_keys: Keys of the sums, [*, 1], `in_keys` by default.
        weights: Weight of each reward, [R], for all keys, 1 by default.

    Raises:
        InvalidArgumentError: If the weights have several axes.
    """

    in_recipes = True

    weights: Tensor | None

    def __init__(
        self, in_keys: Keys, out_keys: Keys | None = None, *, weights: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__(in_keys, out_keys)
        tensor = None if weights is None else number_tensor(weights, "weights")
        if tensor is not None and tensor.ndim > 1:
            raise InvalidArgumentError(f"the weights have shape {list(tensor.shape)}, expected [R]")
        self.register_buffer("weights", tensor)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        value, weights = float_rewards(value), self._buffers["weights"]
        if weights is None:
            return value.sum(-1, keepdim=True)
        if weights.numel() != value.shape[-1]:
            raise InvalidArgumentError(
                f"there are {value.shape[-1]} rewards and {weights.numel()} weights, expected the same number"
            )
        return (weights.to(value.device) * value).sum(-1, keepdim=True)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        bounds = bounds_of(spec)
        if bounds is None:
            return any_like(self.transform_value(spec.zero()))
        weights = torch.ones(spec.shape[-1]) if self.weights is None else self.weights
        low, high = (torch.where(weights < 0, *pair) for pair in (bounds[::-1], bounds))
        return spec_between(self.transform_value(low), self.transform_value(high))

    def _repr_arguments(self) -> dict[str, Any]:
        return {} if self.weights is None else {"weights": self.weights.tolist()}


class SuccessReward(Transform):
    """Compute a sparse reward from a success signal: `scale` for success, else 0.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import SuccessReward
        >>> batch = TensorDict({"next": {"success": torch.tensor([[False], [True]])}}, [2])
        >>> SuccessReward(scale=10.0)(batch)["next", "reward"].flatten()
        tensor([ 0., 10.])

    Args:
        success_key: Key of the signal, bool or 0 and 1, ``("next", "success")`` by default.
        reward_key: Key of the reward, ``("next", "reward")`` by default.
        scale: Reward of success.
    """

    shown = ("scale",)

    def __init__(
        self, success_key: NestedKey = (NEXT, "success"), reward_key: NestedKey = _REWARD, *, scale: float = 1.0
    ) -> None:
        super().__init__([success_key], [reward_key])
        self.scale = float(number_tensor(scale, "scale"))

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.to(torch.get_default_dtype()) * self.scale

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        low, high = sorted((0.0, self.scale))
        return BoundedTensorSpec(low, high, spec.shape, spec.device, torch.get_default_dtype())
