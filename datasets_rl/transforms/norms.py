"""Normalization of observations and rewards by location and scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.checkpoint import raise_reasons
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.specs import TensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms._bounds import map_bounds
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, get_entry, key_list

__all__ = ["ObservationNorm", "RewardScaling", "VecNorm"]

Number = float | Tensor | None


class _Affine(Transform):
    """Base class: ``value * scale + loc``, or with `standard_normal` ``(value - loc) / scale``, and the inverse."""

    def __init__(self, loc: Number, scale: Number, *keys: Keys | None, standard_normal: bool = False) -> None:
        super().__init__(*keys)
        self.loc, self.scale, self.standard_normal = _as_tensor(loc), _as_tensor(scale), standard_normal

    def _loc_and_scale(self, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise InvalidArgumentError(
                f"loc and scale of {type(self).__name__} are not set",
                hint="pass them to the constructor, or call init_stats(dataset)",
            )
        # Floats keep their dtype, even if the statistics have a wider one.
        dtype = value.dtype if value.is_floating_point() else self.loc.dtype
        return self.loc.to(value.device, dtype), self.scale.to(value.device, dtype)

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(value)
        return (value - loc).div_(scale) if self.standard_normal else (value * scale).add_(loc)

    @override
    def invert_value(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale(value)
        return (value * scale).add_(loc) if self.standard_normal else (value - loc).div_(scale)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self.transform_value)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"loc": self.loc, "scale": self.scale}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        return [
            f"{name} is {state_dict.get(name)!r}; expected a tensor"
            for name in ("loc", "scale")
            if not isinstance(state_dict.get(name), Tensor | None) or name not in state_dict
        ]

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise_reasons(self.state_problems(state_dict))
        self.loc, self.scale = (_as_tensor(state_dict[name]) for name in ("loc", "scale"))

    def _repr_arguments(self) -> dict[str, Any]:
        arguments = {name: _as_number(value) for name, value in (("loc", self.loc), ("scale", self.scale))}
        return {**arguments, **({"standard_normal": True} if self.standard_normal else {})}


class ObservationNorm(_Affine):
    """Shift and scale entries: ``value * scale + loc``, or with `standard_normal` ``(value - loc) / scale``.

        >>> dataset.append_transform(ObservationNorm(standard_normal=True).init_stats(dataset))

    Args:
        loc: Location: a number, or a tensor that broadcasts with the entry of one step.
        scale: Scale: a number, or a tensor that broadcasts with the entry of one step.
        in_keys: Keys of the entries to normalize; ``"observation"`` and ``("next", "observation")`` by default. TorchRL
            has no default, although its documentation assumes one.
        out_keys: Keys of the results; `in_keys` by default.
        in_keys_inv: Keys of the entries that `inv` writes, denormalized.
        out_keys_inv: Keys of the entries that `inv` reads; `in_keys_inv` by default.
        standard_normal: Whether `loc` and `scale` are a mean and a standard deviation.
        eps: Threshold for `init_stats`: elements whose standard deviation is at most `eps` are shifted, but not scaled.
    """

    def __init__(
        self,
        loc: Number = None,
        scale: Number = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        standard_normal: bool = False,
        eps: float = 1e-6,
    ) -> None:
        default: Keys = ["observation", (NEXT, "observation")]
        in_keys = default if in_keys is None else in_keys
        super().__init__(loc, scale, in_keys, out_keys, in_keys_inv, out_keys_inv, standard_normal=standard_normal)
        self.eps = eps

    def init_stats(
        self, source: Any, *, reduce_dim: int | Sequence[int] | None = None, key: NestedKey | None = None
    ) -> ObservationNorm:
        """Set loc and scale so that the normalized data has mean 0 and standard deviation 1.

        TorchRL's method of the same name steps an environment to collect data.

        Args:
            source: A dataset or its manifest, whose stored statistics are used without reading data; or a TensorDict or
                a tensor, whose statistics are computed.
            reduce_dim: Axes of a tensor to average over; by default the batch axes of a TensorDict, or the first axis
                of a tensor.
            key: Key of the entry; the first of `in_keys` by default.

        Returns:
            The transform.

        Raises:
            UnknownKeyError: If the source has no such entry.
            InvalidArgumentError: If the source has no statistics of the entry.
        """
        key = self.in_keys[0] if key is None else key_list([key])[0]
        manifest = getattr(source, "manifest", source)
        if isinstance(manifest, Manifest):
            mean, std = _stored_statistics(manifest, key)
        else:
            mean, std = _computed_statistics(source, key, reduce_dim)
        std = torch.where(std > self.eps, std, 1)
        self.loc, self.scale = (mean, std) if self.standard_normal else (-mean / std, 1 / std)
        return self


class RewardScaling(_Affine):
    """Shift and scale rewards: ``reward * scale + loc``, or with `standard_normal` ``(reward - loc) / scale``.

    Args:
        loc: Location, a number or a tensor.
        scale: Scale, a number or a tensor.
        in_keys: Keys of the rewards; ``("next", "reward")`` by default, their key in TED.
        out_keys: Keys of the results; `in_keys` by default.
        standard_normal: Whether `loc` and `scale` are a mean and a standard deviation.
    """

    def __init__(
        self,
        loc: Number,
        scale: Number,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(
            loc, scale, [(NEXT, "reward")] if in_keys is None else in_keys, out_keys, standard_normal=standard_normal
        )


class VecNorm(Transform):
    """Normalize entries by running statistics of all batches, or by the statistics of given data.

        >>> norm = VecNorm(in_keys=["observation"]).fit(dataset[:100_000])     # fixed statistics
        >>> norm = VecNorm(in_keys=["observation"], decay=0.999)               # statistics updated by every batch

    Args:
        in_keys: Keys of the entries to normalize, each with separate statistics.
        out_keys: Keys of the results; `in_keys` by default.
        decay: Factor by which the weight of earlier steps decreases with each batch, in (0, 1].
        eps: Minimum standard deviation to divide by.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1].
    """

    def __init__(
        self, in_keys: Keys, out_keys: Keys | None = None, *, decay: float = 0.9999, eps: float = 1e-4
    ) -> None:
        super().__init__(in_keys, out_keys)
        if not 0 < decay <= 1:
            raise InvalidArgumentError(f"decay is {decay}; expected a number in (0, 1]")
        self.decay, self.eps = decay, eps
        self.frozen = False
        self._counts = [0.0] * len(self.in_keys)
        self._means: list[Tensor | None] = [None] * len(self.in_keys)
        self._variances: list[Tensor | None] = [None] * len(self.in_keys)

    def fit(self, data: Any) -> VecNorm:
        """Replace the statistics by those of data, freeze them, and return the transform."""
        self._counts = [0.0] * len(self.in_keys)
        for number, key in enumerate(self.in_keys):
            self._update(number, get_entry(data, key), data.ndim)
        return self.freeze()

    def freeze(self) -> VecNorm:
        """Stop updating the statistics from batches, and return the transform."""
        return self.train(mode=False)

    def unfreeze(self) -> VecNorm:
        """Resume updating the statistics from batches, and return the transform."""
        return self.train()

    @override
    def train(self, mode: bool = True) -> VecNorm:
        self.frozen = not mode
        return self

    @override
    def apply(self, batch: Any) -> Any:
        for number, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = get_entry(batch, in_key)
            if not self.frozen:
                self._update(number, value, batch.ndim)
            batch.set(out_key, self._normalize(number, value))
        return batch

    def _update(self, number: int, value: Tensor, ndim: int) -> None:
        """Merge the moments of a batch, in float64 so that a small variance is not lost next to a large mean."""
        steps = value.detach().reshape(-1, *value.shape[ndim:]).double()
        count, mean, variance = len(steps), steps.mean(0), steps.var(0, correction=0)
        old_count, old_mean, old_variance = (
            self._counts[number] * self.decay,
            self._means[number],
            self._variances[number],
        )
        if old_count and old_mean is not None and old_variance is not None:
            weight, difference = count / (old_count + count), mean - old_mean
            variance = old_variance + (variance - old_variance) * weight + difference**2 * (weight * (1 - weight))
            mean = old_mean + difference * weight
        self._counts[number], self._means[number], self._variances[number] = old_count + count, mean, variance

    def _normalize(self, number: int, value: Tensor) -> Tensor:
        mean, variance = self._means[number], self._variances[number]
        if mean is None or variance is None:
            raise InvalidArgumentError("VecNorm has no statistics", hint="call fit(data), or unfreeze()")
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        return (value - mean.to(value.device, dtype)).div_(variance.sqrt().clamp(min=self.eps).to(value.device, dtype))

    def to_observation_norm(self, key: NestedKey | None = None) -> ObservationNorm:
        """Return an `ObservationNorm` with the current statistics of one entry.

        Args:
            key: Key of the entry; the first of `in_keys` by default.

        Raises:
            InvalidArgumentError: If no data has been normalized or fitted.
        """
        number = 0 if key is None else self.in_keys.index(key_list([key])[0])
        mean, variance = self._means[number], self._variances[number]
        if mean is None or variance is None:
            raise InvalidArgumentError("VecNorm has no statistics", hint="call fit(data)")
        dtype = torch.get_default_dtype()
        scale = variance.sqrt().clamp(min=self.eps)
        keys = self.in_keys[number : number + 1], self.out_keys[number : number + 1]
        return ObservationNorm(mean.to(dtype), scale.to(dtype), *keys, standard_normal=True)

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return an unbounded spec of floats of the shape of the entry."""
        value = spec.zero()
        return any_like(value if value.is_floating_point() else value.to(torch.get_default_dtype()))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self._counts), "means": list(self._means), "variances": list(self._variances)}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        return [
            f"{name} are {state_dict.get(name)!r}; expected {len(self.in_keys)}, one for each entry"
            for name in ("counts", "means", "variances")
            if len(state_dict.get(name, ())) != len(self.in_keys)
        ]

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise_reasons(self.state_problems(state_dict))
        self._counts = list(state_dict["counts"])
        self._means, self._variances = (
            [None if value is None else value.clone() for value in state_dict[name]] for name in ("means", "variances")
        )

    def _repr_arguments(self) -> dict[str, Any]:
        return {"decay": self.decay, "frozen": self.frozen}


def _as_tensor(value: Number) -> Tensor | None:
    return (
        None
        if value is None
        else torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.get_default_dtype()).clone()
    )


def _as_number(value: Tensor | None) -> Any:
    return value if value is None else value.item() if value.ndim == 0 else f"tensor{list(value.shape)}"


def _stored_statistics(manifest: Manifest, key: NestedKey) -> tuple[Tensor, Tensor]:
    path = (key,) if isinstance(key, str) else key
    # A key shared by a step and its next step is stored once, with one set of statistics.
    statistics = manifest.statistics
    name = next((field for field in (".".join(path), ".".join(path[1:])) if field in statistics), None)
    if name is None:
        raise UnknownKeyError(".".join(path), sorted(statistics))
    mean, std = (statistics[name].get(statistic) for statistic in ("mean", "std"))
    try:
        dtype = torch.get_default_dtype()
        return torch.tensor(mean, dtype=dtype), torch.tensor(std, dtype=dtype)
    except (TypeError, RuntimeError):
        raise InvalidArgumentError(
            f"the mean of {name} is {mean} and its standard deviation is {std}; expected numbers"
        ) from None


def _computed_statistics(source: Any, key: NestedKey, reduce_dim: int | Sequence[int] | None) -> tuple[Tensor, Tensor]:
    if is_tensor_collection(source):
        axes = tuple(range(source.ndim)) if reduce_dim is None else reduce_dim
        source = get_entry(source, key)
    elif isinstance(source, Tensor):
        axes = 0 if reduce_dim is None else reduce_dim
    else:
        raise InvalidArgumentError(
            f"source is a {type(source).__name__}; expected a dataset, a manifest, a TensorDict or a tensor"
        )
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    values = source.double()
    dtype = source.dtype if source.is_floating_point() else torch.get_default_dtype()
    return values.mean(axes).to(dtype), values.std(axes, correction=0).to(dtype)
