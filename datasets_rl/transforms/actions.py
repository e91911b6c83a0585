"""Transforms of actions: scaling, flattening, discretization and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import Self, override

from datasets_rl.arguments import axis_problems, check, choice_problems, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import TensorSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.transforms._bounds import map_bounds
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, key_list


class _ActionTransform(Transform):
    """Base class: the keys of both directions are ``["action"]`` by default."""

    def __init__(
        self, in_keys_inv: Keys | None, out_keys_inv: Keys | None, in_keys: Keys | None, out_keys: Keys | None
    ) -> None:
        inverse = key_list("action" if in_keys_inv is None else in_keys_inv)
        super().__init__((inverse or ["action"]) if in_keys is None else in_keys, out_keys, inverse, out_keys_inv)


class ActionScaling(_ActionTransform):
    """Scale actions to [-1, 1] or [0, 1]. `inv` restores the scale of the environment.

        sampling    (action - loc) / scale              standard_normal=False: ((action - loc) / scale + 1) / 2
        writing     action * scale + loc                standard_normal=False: (2 action - 1) * scale + loc

    A buffer applies `inv` to written data. If raw actions are written, pass ``in_keys_inv=[]``, which leaves them
    unchanged.

        >>> rb.append_transform(ActionScaling.from_stats(low=[-2.0], high=[2.0], in_keys_inv=[]))

    Args:
        in_keys_inv: Key of the action that `inv` writes, ``["action"]`` by default. An empty list is for no key.
        out_keys_inv: Key of the action that `inv` reads, `in_keys_inv` by default.
        in_keys: Key of the action to scale, `in_keys_inv` by default, or ``["action"]`` if that is empty.
        out_keys: Key of the result, `in_keys` by default.
        loc: Location, a number or a tensor [A]. TorchRL can also read it from the spec of an environment.
        scale: Scale, a number or a tensor [A] without zeros.
        standard_normal: Whether the range between ``loc - scale`` and ``loc + scale`` becomes [-1, 1] instead of [0,
            1].

    Raises:
        InvalidArgumentError: If there are several keys, only one of `loc` and `scale` is given, or a scale is 0.
    """

    shown = ("standard_normal",)
    in_recipes = True

    loc: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        loc: Any = None,
        scale: Any = None,
        standard_normal: bool = True,
    ) -> None:
        super().__init__(in_keys_inv, out_keys_inv, in_keys, out_keys)
        if len(self.in_keys_inv) > 1:
            raise InvalidArgumentError(
                f"in_keys_inv are {self.in_keys_inv}, expected a single key", hint="use an ActionScaling for each key"
            )
        if (loc is None) != (scale is None):
            raise InvalidArgumentError(f"loc is {loc} and scale is {scale}, expected both or none of them")
        self.standard_normal = standard_normal
        self.register_buffer("loc", _as_floats(loc))
        self.register_buffer("scale", _as_floats(scale))
        if self.scale is not None and bool((self.scale == 0).any()):
            raise InvalidArgumentError(f"scale is {self.scale.tolist()}, expected no 0")

    @classmethod
    def from_stats(
        cls, *, mean: Any = None, std: Any = None, low: Any = None, high: Any = None, eps: float = 1e-6, **keywords: Any
    ) -> Self:
        """Return the transform for statistics of actions.

        Args:
            mean: Means, [A], given with `std` for a mean of 0 and a standard deviation of 1.
            std: Standard deviations, [A].
            low: Minima, [A], given with `high` for the range [-1, 1].
            high: Maxima, [A].
            eps: Minimum scale, for constant elements.
            **keywords: Other arguments of the constructor.

        Raises:
            InvalidArgumentError: If not exactly one of the two pairs is given.
        """
        pairs = [pair for pair in ((mean, std), (low, high)) if pair != (None, None)]
        if len(pairs) != 1 or None in pairs[0]:
            raise InvalidArgumentError("expected either mean and std, or low and high")
        first, second = (torch.as_tensor(value, dtype=torch.get_default_dtype()) for value in pairs[0])
        loc, scale = (first, second) if mean is not None else ((first + second) / 2, (second - first) / 2)
        return cls(loc=loc, scale=scale.clamp(min=eps), **keywords)

    @classmethod
    def from_metadata(cls, metadata: Any, **keywords: Any) -> Self:
        """Return the transform for the action statistics of a `RobotDatasetMetadata`.

        Raises:
            InvalidArgumentError: If it has no statistics of actions.
        """
        keywords.setdefault("in_keys_inv", [metadata.action_key])
        keywords.setdefault("in_keys", [metadata.action_key])
        if metadata.action_mean is not None and metadata.action_std is not None:
            return cls.from_stats(mean=metadata.action_mean, std=metadata.action_std, **keywords)
        if metadata.action_low is not None and metadata.action_high is not None:
            return cls.from_stats(low=metadata.action_low, high=metadata.action_high, **keywords)
        raise InvalidArgumentError(
            "the metadata has no statistics of actions, expected action_mean and action_std, or action_low and action_high"
        )

    def _loc_and_scale(self, action: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = self._buffers["loc"], self._buffers["scale"]
        if loc is None or scale is None:
            raise InvalidArgumentError(
                "loc and scale of ActionScaling are not set", hint="pass them, or call ActionScaling.from_stats(...)"
            )
        if loc.numel() > 1 and action.shape[-1:] != loc.shape[-1:]:
            raise InvalidArgumentError(
                f"the action has shape {list(action.shape)}, expected [..., {loc.shape[-1]}], the length of loc"
            )
        return loc.to(action.device), scale.to(action.device)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(value)
        scaled = (value - loc).div_(scale) if value.is_floating_point() else (value - loc) / scale
        return scaled if self.standard_normal else scaled.add_(1).div_(2)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(value)
        return (value if self.standard_normal else value * 2 - 1) * scale + loc

    def normalize(self, action: Tensor) -> Tensor:
        """Return a scaled action, as `forward` does."""
        return self.transform_value(action)

    def denormalize(self, action: Tensor) -> Tensor:
        """Return an action in the scale of the environment, as `inv` does."""
        return self.invert_value(action)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self.transform_value)


class FlattenAction(_ActionTransform):
    """Merge consecutive axes of actions into a single axis. `inv` restores the axes.

    Args:
        first_dim: First axis to merge, negative: counted from the last axis.
        last_dim: Last axis to merge, negative.
        in_keys_inv: Keys of the actions that `inv` writes, ``["action"]`` by default.
        out_keys_inv: Keys of the actions that `inv` reads, `in_keys_inv` by default.
        in_keys: Keys of the actions to flatten, `in_keys_inv` by default.
        allow_positive_dim: Whether the axes may be counted from the first axis, including the batch size.
        action_shape: Sizes of the merged axes, which `inv` needs.

    Raises:
        InvalidArgumentError: If an axis is not negative, unless `allow_positive_dim` is set, or the axes are reversed.
    """

    shown = ("first_dim", "last_dim")
    in_recipes = True

    def __init__(
        self,
        first_dim: int = -2,
        last_dim: int = -1,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        allow_positive_dim: bool = False,
        *,
        action_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__(in_keys_inv, out_keys_inv, in_keys, out_keys)
        hint = "" if allow_positive_dim else "to count from the first axis, pass allow_positive_dim=True"
        axes = {"first_dim": first_dim, "last_dim": last_dim}
        check(axis_problems(allow_positive=allow_positive_dim, **axes), hint=hint)
        if first_dim > last_dim and (first_dim < 0) == (last_dim < 0):
            raise InvalidArgumentError(f"first_dim is {first_dim}, expected at most last_dim, {last_dim}")
        self.first_dim, self.last_dim = first_dim, last_dim
        self.action_shape = None if action_shape is None else tuple(action_shape)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return value.flatten(self.first_dim, self.last_dim)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        if self.action_shape is None:
            raise InvalidArgumentError("the shape of the merged axes is unknown", hint="pass action_shape=(...)")
        axis = self.first_dim if self.first_dim >= 0 else value.ndim + self.last_dim
        return value.reshape(*value.shape[:axis], *self.action_shape, *value.shape[axis + 1 :])

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self.transform_value)


class DiscreteActionProjection(Transform):
    """Map one-hot actions of n actions to one-hot vectors of N >= n actions. `inv` maps them back.

    `inv` replaces an action that does not exist, n or larger, by a random action.

    Args:
        num_actions_effective: Number of actions, n.
        max_actions: Length of the vectors, N.
        action_key: Key of the action.
        include_forward: Whether sampled batches are transformed, and not only written data.

    Raises:
        InvalidArgumentError: If `max_actions` is below `num_actions_effective`.
    """

    shown = ("num_actions_effective", "max_actions")
    in_recipes = True

    def __init__(
        self,
        num_actions_effective: int,
        max_actions: int,
        action_key: NestedKey = "action",
        include_forward: bool = True,
    ) -> None:
        super().__init__([action_key] if include_forward else [], in_keys_inv=[action_key])
        check(size_problems(num_actions_effective=num_actions_effective, max_actions=max_actions))
        if max_actions < num_actions_effective:
            raise InvalidArgumentError(
                f"max_actions is {max_actions}, expected at least num_actions_effective = {num_actions_effective}"
            )
        self.num_actions_effective, self.max_actions = num_actions_effective, max_actions

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        return functional.one_hot(_one_hot_index(value), self.max_actions)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        if value.shape[-1] != self.max_actions:
            raise InvalidArgumentError(f"the action has {value.shape[-1]} elements, expected {self.max_actions}")
        action = _one_hot_index(value)
        random = torch.randint_like(action, self.num_actions_effective)
        return functional.one_hot(
            torch.where(action < self.num_actions_effective, action, random), self.num_actions_effective
        )

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        shape = (*spec.shape[:-1], self.max_actions)
        return BoundedTensorSpec(0, 1, shape, spec.device, torch.int64)


class ActionDiscretizer(Transform):
    """Replace elements of continuous actions by the numbers of intervals. `inv` returns a value of each interval.

        action       -1.0   -0.2    0.3    1.0        low = -1, high = 1, num_intervals = 4
        number          0      1      2      3        intervals [-1, -0.5), [-0.5, 0), [0, 0.5), [0.5, 1]
        inv         -0.75  -0.25   0.25   0.75        "MEDIAN"

    TorchRL's class reads the bounds from the spec of an environment, and maps numbers to actions only.

    Args:
        num_intervals: Number of intervals of each element: an integer, or a tensor [A].
        action_key: Key of the continuous action.
        out_action_key: Key of the numbers, int64 [..., A], `action_key` by default.
        sampling: Which value of an interval `inv` returns: `SamplingStrategy.MEDIAN`, `LOW`, `HIGH` or `RANDOM`.
        categorical: Whether the result has numbers. If not, it has one-hot vectors, bool [..., sum of num_intervals].
        action_spec: Bounded spec of the action, [A] or a single number.

    Raises:
        InvalidArgumentError: If the spec is missing or has no finite bounds.
    """

    class SamplingStrategy(IntEnum):
        """Which value of an interval replaces its number."""

        MEDIAN = 0
        LOW = 1
        HIGH = 2
        RANDOM = 3

    low: Tensor
    width: Tensor
    intervals: Tensor

    def __init__(
        self,
        num_intervals: int | Tensor,
        action_key: NestedKey = "action",
        out_action_key: NestedKey | None = None,
        sampling: SamplingStrategy | None = None,
        categorical: bool = True,
        *,
        action_spec: TensorSpec | None = None,
    ) -> None:
        numbers = [action_key if out_action_key is None else out_action_key]
        super().__init__([action_key], numbers, [action_key], numbers)
        low, high = getattr(action_spec, "low", None), getattr(action_spec, "high", None)
        if low is None or high is None or not bool((low.isfinite() & high.isfinite()).all()) or low.ndim > 1:
            raise InvalidArgumentError(
                f"action_spec is {action_spec!r}, expected a spec with finite bounds and at most one axis",
                hint="pass action_spec=Bounded(low, high, shape=...)",
            )
        self.sampling = self.SamplingStrategy.MEDIAN if sampling is None else sampling
        self.categorical, self.num_intervals = categorical, num_intervals
        self.scalar = low.ndim == 0
        counts = torch.as_tensor(num_intervals).expand(low.shape).reshape(-1)
        low, width = low.reshape(-1), (high - low).reshape(-1)
        longest = int(counts.max())
        table = torch.zeros(len(counts), longest, dtype=low.dtype)
        for row, count in enumerate(counts.tolist()):
            table[row, :count] = low[row] + self.custom_arange(count, low.device).to(low) * width[row]
        self.counts = counts.tolist()
        for name, value in (("low", low), ("width", width), ("intervals", table)):
            self.register_buffer(name, value, persistent=False)

    def custom_arange(self, nint: int, device: Any) -> Tensor:
        """Return the value of each interval of the range from 0 to 1, [nint]: a hook for other values."""
        starts = torch.arange(nint, device=device) / nint
        shift = {self.SamplingStrategy.MEDIAN: 0.5, self.SamplingStrategy.HIGH: 1.0}.get(self.sampling, 0.0)
        return starts + shift / nint

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        value = value.unsqueeze(-1) if self.scalar else value
        counts = torch.tensor(self.counts, device=value.device)
        low, width = (bound.to(value.device) for bound in (self.low, self.width))
        numbers = ((value - low) / width * counts).floor().long()
        numbers = torch.minimum(numbers.clamp(min=0), counts - 1)
        if not self.categorical:
            parts = zip(numbers.unbind(-1), self.counts, strict=True)
            return torch.cat([functional.one_hot(number, count) for number, count in parts], -1).bool()
        return numbers.squeeze(-1) if self.scalar else numbers

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        if not self.categorical:
            value = torch.stack([_one_hot_index(part) for part in torch.split(value, self.counts, -1)], -1)
        elif self.scalar:
            value = value.unsqueeze(-1)
        table = self.intervals.to(value.device)
        action = table[torch.arange(len(table), device=value.device), value]
        if self.sampling == self.SamplingStrategy.RANDOM:
            counts = torch.tensor(self.counts, device=value.device)
            action = action + torch.rand_like(action) * self.width.to(value.device) / counts
        return action.squeeze(-1) if self.scalar else action

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        numbers = self.transform_value(spec.zero())
        high = torch.ones_like(numbers) if not self.categorical else torch.tensor(self.counts) - 1
        if not self.categorical:
            return any_like(numbers)
        high = high.reshape(()) if self.scalar else high
        return BoundedTensorSpec(
            torch.zeros_like(numbers), high.expand(numbers.shape), numbers.shape, spec.device, torch.int64
        )

    def _repr_arguments(self) -> dict[str, Any]:
        return {"num_intervals": self.num_intervals, "sampling": self.sampling.name, "categorical": self.categorical}


class ActionTokenizerTransform(Transform):
    """Encode actions as tokens of an action tokenizer. `inv` decodes them.

    Written data without tokens is not changed.

    Args:
        tokenizer: Tokenizer with methods `encode`, from actions to tokens, and `decode`.
        in_key: Key of the action.
        out_key: Key of the tokens.
        mode: "encode", or "decode" to swap the directions.

    Raises:
        InvalidArgumentError: If the mode is unknown, or the tokenizer lacks a method.
    """

    shown = ("mode",)

    def __init__(
        self,
        tokenizer: Any,
        *,
        in_key: NestedKey = "action",
        out_key: NestedKey = ("vla_action", "tokens"),
        mode: Literal["encode", "decode"] = "encode",
    ) -> None:
        check(choice_problems("encode", "decode", mode=mode))
        if not all(callable(getattr(tokenizer, name, None)) for name in ("encode", "decode")):
            raise InvalidArgumentError(f"tokenizer is {tokenizer!r}, expected an object with encode and decode")
        keys = [in_key], [out_key]
        read, written = keys if mode == "encode" else keys[::-1]
        super().__init__(read, written, read, written)
        self.tokenizer, self.mode = tokenizer, mode

    @property
    def in_key(self) -> NestedKey:
        """Key of the action."""
        return (self.in_keys if self.mode == "encode" else self.out_keys)[0]

    @property
    def out_key(self) -> NestedKey:
        """Key of the tokens."""
        return (self.out_keys if self.mode == "encode" else self.in_keys)[0]

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        result: Tensor = self.tokenizer.encode(value) if self.mode == "encode" else self.tokenizer.decode(value)
        return result

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        result: Tensor = self.tokenizer.decode(value) if self.mode == "encode" else self.tokenizer.encode(value)
        return result

    @override
    def invert_batch(self, batch: Any) -> Any:
        return batch if batch.get(self.out_keys_inv[0], None) is None else super().invert_batch(batch)


def _one_hot_index(value: Tensor) -> Tensor:
    # torch has no argmax of booleans.
    return (value.byte() if value.dtype == torch.bool else value).argmax(-1)


def _as_floats(value: Any) -> Tensor | None:
    if value is None:
        return None
    tensor = torch.as_tensor(value)
    return tensor.clone() if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
