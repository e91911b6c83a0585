"""Normalization that is saved with a policy, so that its inputs and outputs have the units of the data.

observation  --- normalize --->  network  --- denormalize --->  action
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from datasets_rl.errors import InvalidArgumentError


class Normalizer(nn.Module):
    """An affine normalization of tensors [..., *S], and its inverse, as a module with buffers that are part of a policy.

        y = (x - shift) / scale          x = y * scale + shift

        >>> policy.inputs = Normalizer.standard(dataset["observation"])
        >>> policy.outputs = Normalizer.limits(dataset["action"])
        >>> action = policy.outputs.denormalize(network(policy.inputs(observation)))
        >>> torch.save(policy.state_dict(), path)                               # with shift and scale

    A state loads into a normalizer of the same shape: ``Normalizer(torch.zeros(17), torch.ones(17))``.

    Args:
        shift: Numbers to subtract, [*S].
        scale: Numbers to divide by, [*S].
        clip: Whether normalized values are clipped to [-1, 1]. True for all elements, or bool [*S].

    Raises:
        InvalidArgumentError: If the shapes differ, or a scale is 0 or not finite.
    """

    shift: Tensor
    scale: Tensor
    clip: Tensor

    def __init__(self, shift: Any, scale: Any, clip: Any = False) -> None:
        super().__init__()
        shift, scale = (torch.as_tensor(value).float() for value in (shift, scale))
        if shift.shape != scale.shape or not (scale.isfinite() & (scale != 0)).all():
            raise InvalidArgumentError(
                f"shift has shape {list(shift.shape)} and scale {list(scale.shape)}, with values from "
                f"{scale.min().item():g} to {scale.max().item():g}, expected the same shape, and finite scales other than 0"
            )
        self.register_buffer("shift", shift.clone())
        self.register_buffer("scale", scale.clone())
        self.register_buffer("clip", torch.as_tensor(clip).expand(shift.shape).clone())

    @classmethod
    def standard(cls, values: Any, *, eps: float = 1e-3) -> Self:
        """Return the normalization to mean 0 and standard deviation 1.

            y = (x - mean) / (std + eps)

        The divisor of the variance is N. `eps` is 1e-3 in TD3+BC, CORL and Unifloral, and 1e-6 in Decision Transformer.

        Args:
            values: Values of all steps, a tensor or an array [N, *S].
            eps: A constant that is added to the standard deviations.
        """
        values = _as_double(values)
        return cls._standard(values.mean(0), values.std(0, correction=0), eps=eps)

    @classmethod
    def _standard(cls, mean: Tensor, std: Tensor, *, eps: float) -> Self:
        return cls(mean, std + eps)

    @classmethod
    def limits(cls, values: Any, *, eps: float = 1e-4) -> Self:
        """Return the normalization to [-1, 1]: the lowest value becomes -1, and the highest 1.

        Elements whose range is below `eps` are only shifted, so that the lowest value becomes 0, as in Diffusion Policy
        (Chi et al., 2023).

        Args:
            values: Values of all steps, a tensor or an array [N, *S].
            eps: The range below which an element is not scaled.
        """
        return cls._limits(*_as_double(values).aminmax(dim=0), eps=eps)

    @classmethod
    def _limits(cls, low: Tensor, high: Tensor, *, eps: float) -> Self:
        scaled = (high > low) & (high - low >= eps)
        return cls(torch.where(scaled, (low + high) / 2, low), torch.where(scaled, (high - low) / 2, 1.0))

    @classmethod
    def quantile(
        cls, values: Any, low: float = 0.01, high: float = 0.99, *, eps: float = 1e-8, mask: Any = None
    ) -> Self:
        """Return the normalization of two quantiles to -1 and 1. Values outside are clipped.

            y = clip(2 (x - q_low) / (q_high - q_low + eps) - 1, -1, 1)

        Elements that are constant become 0. This is `BOUNDS_Q99` of Octo and OpenVLA.

        Args:
            values: Values of all steps, a tensor or an array [N, *S].
            low: The probability of the lower quantile.
            high: The probability of the upper quantile.
            eps: A constant that is added to the difference of the quantiles.
            mask: Which elements are normalized, bool [*S]. The others, such as a gripper, are unchanged.

        Raises:
            InvalidArgumentError: If the probabilities are out of order or out of range.
        """
        if not 0 <= low < high <= 1:
            raise InvalidArgumentError(f"low is {low} and high is {high}, expected 0 <= low < high <= 1")
        values = _as_double(values)
        lower, upper = (_quantile(values, probability) for probability in (low, high))
        return cls._quantile(lower, upper, *values.aminmax(dim=0), eps=eps, mask=mask)

    @classmethod
    def _quantile(
        cls, lower: Tensor, upper: Tensor, minimum: Tensor, maximum: Tensor, *, eps: float, mask: Any
    ) -> Self:
        half = (upper - lower + eps) / 2
        constant = minimum == maximum
        chosen = torch.ones_like(constant) if mask is None else torch.as_tensor(mask).expand(constant.shape)
        shift = torch.where(constant, lower, lower + half)
        scale = torch.where(constant, 1.0, half)
        return cls(torch.where(chosen, shift, 0.0), torch.where(chosen, scale, 1.0), chosen)

    @classmethod
    def from_statistics(
        cls,
        statistics: Mapping[str, Any],
        kind: Literal["standard", "limits", "quantile"] = "standard",
        *,
        mask: Any = None,
        eps: float | None = None,
    ) -> Self:
        """Return a normalization by given statistics, without reading the data.

            >>> Normalizer.from_statistics(dataset.statistics["action"], "quantile")

        "standard" and "limits" are the class methods of these names. "quantile" uses the quantiles 0.01 and
        0.99, as `BOUNDS_Q99` of Octo and OpenVLA. In a dataset of more than 65,536 steps they are those of a sample of
        65,536 steps: the true probability of a sampled quantile is 0.01 +- 0.0008 (two standard deviations). For exact
        ones, use `quantile` with the values of all steps.

        Args:
            statistics: Min, max, mean and std, and for "quantile" q01 and q99, numbers or lists [*S], from a field
                of a dataset, or from LeRobot.
            kind: The normalization.
            mask: For "quantile", which elements are normalized, bool [*S].
            eps: As in the class method, with the same default.

        Raises:
            InvalidArgumentError: If the kind does not exist, or a number is missing or not finite.
        """
        names = _USED_STATISTICS.get(kind)
        if names is None:
            raise InvalidArgumentError(f"kind is {kind!r}, expected one of {', '.join(_USED_STATISTICS)}")
        numbers = [_known_numbers(statistics, name) for name in names]
        if kind == "standard":
            return cls._standard(*numbers, eps=1e-3 if eps is None else eps)
        if kind == "limits":
            return cls._limits(*numbers, eps=1e-4 if eps is None else eps)
        return cls._quantile(*numbers, eps=1e-8 if eps is None else eps, mask=mask)

    def normalize(self, values: Tensor) -> Tensor:
        """Return normalized values of the same shape, [..., *S]. Integers become float32."""
        values = values if values.is_floating_point() else values.float()
        result = (values - self.shift.to(values.dtype)) / self.scale.to(values.dtype)
        return torch.where(self.clip, result.clamp(-1, 1), result)

    def denormalize(self, values: Tensor) -> Tensor:
        """Return values in the units of the data, [..., *S]: the inverse of `normalize`, except for clipped values."""
        return values * self.scale.to(values.dtype) + self.shift.to(values.dtype)

    forward = normalize

    def extra_repr(self) -> str:
        """Return the arguments that `repr` shows."""
        return f"shape={list(self.shift.shape)}, clip={bool(self.clip.any())}"


_USED_STATISTICS = {"standard": ("mean", "std"), "limits": ("min", "max"), "quantile": ("q01", "q99", "min", "max")}


def _known_numbers(statistics: Mapping[str, Any], name: str) -> Tensor:
    try:
        numbers = torch.as_tensor(statistics[name], dtype=torch.float64)
    except (KeyError, RuntimeError, TypeError, ValueError):
        numbers = None
    if numbers is None or not numbers.isfinite().all():
        given = f"{statistics[name]!s:.60}" if name in statistics else f"missing among {', '.join(statistics)}"
        raise InvalidArgumentError(
            f"the statistic {name} is {given}, expected finite numbers",
            hint="use the class method with the values of all steps",
        )
    return numbers


def _as_double(array: Any) -> Tensor:
    """Return values [N, *S] as float64."""
    values = torch.as_tensor(array).double()
    if not values.ndim or not len(values):
        raise InvalidArgumentError(f"values have shape {list(values.shape)}, expected [N, ...] with at least one step")
    return values


def _quantile(values: Tensor, probability: float) -> Tensor:
    """Return a quantile over the first axis with linear interpolation. `torch.quantile` is limited to 2**24 values."""
    position = probability * (len(values) - 1)
    lower = int(position)
    ordered = values.sort(0).values
    following = ordered[min(lower + 1, len(values) - 1)]
    return torch.lerp(ordered[lower], following, position - lower)
