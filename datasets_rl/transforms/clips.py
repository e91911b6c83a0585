"""Clipping of any entries."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import TensorSpec
from datasets_rl.transforms._bounds import clip_bounds
from datasets_rl.transforms.base import Keys, Transform, number_tensor


class ClipTransform(Transform):
    """Clip entries, also in `inv`.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import ClipTransform
        >>> batch = TensorDict({"action": torch.tensor([[-3.0], [0.5]])}, [2])
        >>> ClipTransform(in_keys=["action"], low=-1.0, high=1.0)(batch)["action"].flatten()
        tensor([-1.0000,  0.5000])

    Args:
        in_keys: Keys of the entries to clip.
        low: Minimum, a number, or `None` for no minimum.
        high: Maximum, a number, or `None` for no maximum.

    Raises:
        InvalidArgumentError: If neither limit is given, a limit is not a number, or `low` is not below `high`.
    """

    shown = ("low", "high")
    per_step = True
    in_recipes = True

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        low: float | Tensor | None = None,
        high: float | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.low, self.high = _as_limit(low), _as_limit(high)
        if self.low is None and self.high is None:
            raise InvalidArgumentError("low and high are both missing, expected at least one number")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise InvalidArgumentError(f"low is {self.low} and high is {self.high}, expected low < high")

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.clamp(self.low, self.high)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        return value.clamp(self.low, self.high)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds(spec, self.low, self.high)


def _as_limit(value: Any) -> float | None:
    if value is None:
        return None
    limit = number_tensor(value, "a limit")
    if limit.numel() != 1:
        raise InvalidArgumentError(f"a limit is {value}, expected a single number")
    return float(limit)
