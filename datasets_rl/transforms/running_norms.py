"""Normalization of entries by running statistics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, flat_key, get_entry, resolve_key
from datasets_rl.transforms.norms import ObservationNorm

__all__ = ["RunningNorm", "VecNorm", "VecNormV2"]

_MOMENTS = ("count", "mean", "variance")
_SUMS = ("sum", "ssq", "count")
_AVERAGES = ("loc", "var", "count")
_Statistics = tuple[Tensor, Tensor, Tensor]


class RunningNorm(Transform):
    """Base class of the transforms that normalize entries by running statistics.

    Args:
        in_keys: Keys of the entries, each with separate statistics.
        out_keys: Keys of the results; `in_keys` by default.
        decay: Factor by which the weight of earlier data decreases, in (0, 1].
        eps: Minimum standard deviation to divide by.
        lock: Lock that is held while the statistics are updated.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1].
    """

    def __init__(self, in_keys: Keys, out_keys: Keys | None, *, decay: float, eps: float, lock: Any) -> None:
        super().__init__(in_keys, out_keys)
        if not 0 < decay <= 1:
            raise InvalidArgumentError(f"decay is {decay}; expected a number in (0, 1]")
        self.decay, self.eps, self.lock = decay, eps, lock
        self._frozen = False

    def frozen_copy(self) -> Self:
        """Return a frozen copy, whose statistics no longer change.

        Raises:
            InvalidArgumentError: If no data has been normalized or fitted.
        """
        self._affine()
        other = self.clone()
        other._buffers.update({name: None if value is None else value.clone() for name, value in self._buffers.items()})  # noqa: SLF001 - of torch
        return other.freeze()

    @abstractmethod
    def _affine(self) -> tuple[TensorDict, TensorDict]:
        """Return the means and the standard deviations of the entries, by `in_keys`."""

    @property
    def frozen(self) -> bool:
        """Whether batches leave the statistics unchanged: after `freeze`, and after `eval`."""
        return self._frozen or not self.training

    def freeze(self) -> Self:
        """Stop updating the statistics from batches, and return the transform."""
        self._frozen = True
        return self

    def unfreeze(self) -> Self:
        """Resume updating the statistics from batches, and return the transform."""
        self._frozen = False
        return self

    def denorm(self, tensordict: Any) -> Any:
        """Return a copy of a batch with the entries under `in_keys` restored from the normalized ones under `out_keys`.

        Missing entries are ignored.

        Raises:
            InvalidArgumentError: If no data has been normalized or fitted.
        """
        batch, (loc, scale) = self.own(tensordict), self._affine()
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            value = batch.get(out_key, None)
            if value is not None:
                batch.set(in_key, value * scale.get(in_key).to(value) + loc.get(in_key).to(value))
        return batch

    @property
    def loc(self) -> TensorDict:
        """Means of the entries, by `in_keys`; see `scale`."""
        return self._affine()[0]

    @property
    def scale(self) -> TensorDict:
        """Standard deviations of the entries, at least `eps`, by `in_keys`: ``normalized = (entry - loc) / scale``."""
        return self._affine()[1]

    def __getstate__(self) -> dict[str, Any]:
        # A lock can only be inherited by processes, not pickled.
        return {**self.__dict__, "lock": None}

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return an unbounded spec of floats of the shape of the entry."""
        value = spec.zero()
        return any_like(value if value.is_floating_point() else value.to(torch.get_default_dtype()))

    def _repr_arguments(self) -> dict[str, Any]:
        return {"decay": self.decay, "frozen": self.frozen}


class VecNorm(RunningNorm):
    """Normalize entries by running statistics of all batches, or by the statistics of given data.

        >>> norm = VecNorm(in_keys=["observation"]).fit(dataset[:100_000])     # fixed statistics
        >>> norm = VecNorm(in_keys=["observation"], decay=0.999)               # statistics updated by every batch

    Args:
        in_keys: Keys of the entries to normalize, each with separate statistics; ``"observation"`` and ``("next",
            "reward")`` by default.
        out_keys: Keys of the results; `in_keys` by default.
        shared_td: TensorDict in shared memory with the statistics, which several processes update: for each key its
            decaying sum, `<key>_sum`, sum of squares, `<key>_ssq`, and number of steps, `<key>_count`.
        lock: Lock that is held while the statistics are updated.
        decay: Factor by which the weight of earlier steps decreases with each batch, in (0, 1].
        eps: Minimum standard deviation to divide by.
        shapes: Shapes of the statistics, one for each key; by default those of the entries of one step. All axes before
            are averaged.
        new_api: Whether to return a `VecNormV2` instead.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1], or `shared_td` lacks an entry.
    """

    def __new__(cls, *args: Any, new_api: bool | None = None, **keywords: Any) -> Any:
        """Return a `VecNormV2` with `new_api`, as TorchRL does."""
        if new_api:
            return VecNormV2(*args, **keywords)
        return super().__new__(cls)

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        shared_td: Any = None,
        lock: Any = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: Sequence[Sequence[int]] | None = None,
        new_api: bool | None = None,
    ) -> None:
        del new_api
        in_keys = ["observation", (NEXT, "reward")] if in_keys is None else in_keys
        super().__init__(in_keys, out_keys, decay=decay, eps=eps, lock=lock)
        self.shapes, self._shared_td = shapes, shared_td
        if shared_td is not None:
            for key in self.in_keys:
                for name in _SUMS:
                    get_entry(shared_td, _with_suffix(key, name))
        for number in range(len(self.in_keys)):
            self.register_buffer(f"count_{number}", torch.zeros((), dtype=torch.float64))
            self.register_buffer(f"mean_{number}", None)
            self.register_buffer(f"variance_{number}", None)

    def fit(self, data: Any) -> VecNorm:
        """Replace the statistics by those of data, freeze them, and return the transform."""
        for number, key in enumerate(self.in_keys):
            value = self.tensor(data, key)
            self._set_statistics(number, *_moments(value, self._batch_axes(number, value, data.ndim)))
        return self.freeze()

    def _batch_axes(self, number: int, value: Tensor, ndim: int) -> int:
        """Return the number of axes of an entry to average over, in a batch with `ndim` batch axes."""
        return ndim if self.shapes is None else value.ndim - len(self.shapes[number])

    @override
    def transform_batch(self, batch: Any) -> Any:
        for number, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = self.tensor(batch, in_key)
            if not self.frozen:
                with self.lock or nullcontext():
                    self._update(number, value, batch.ndim)
            try:
                batch.set(out_key, self._normalize(number, value))
            except RuntimeError as error:
                raise error if isinstance(error, DatasetsRLError) else self.misfit(in_key, value, error) from error
        return batch

    def _statistics(self, number: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the count, mean and variance of an entry; `None` before the first batch."""
        if self._shared_td is not None:
            total, squares, weight = self._sums(number)
            average = total / weight
            variance = (squares / weight - average**2).clamp(min=0)
            return (weight, average, variance) if bool((weight > 0).all()) else None
        # Faster than the attributes, which are looked up in Python.
        buffers = self._buffers
        count, mean, var = buffers[f"count_{number}"], buffers[f"mean_{number}"], buffers[f"variance_{number}"]
        return None if count is None or mean is None or var is None else (count, mean, var)

    def _sums(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        total, squares, count = (get_entry(self._shared_td, _with_suffix(self.in_keys[number], name)) for name in _SUMS)
        return total, squares, count

    def _set_statistics(self, number: int, *statistics: Tensor) -> None:
        if self._shared_td is not None:
            count, mean, variance = statistics
            values = (mean * count, (variance + mean**2) * count, count)
            for shared, value in zip(self._sums(number), values, strict=True):
                shared.copy_(value)
            return
        self._buffers.update({f"{name}_{number}": value for name, value in zip(_MOMENTS, statistics, strict=True)})

    def _update(self, number: int, value: Tensor, ndim: int) -> None:
        """Merge the moments of a batch with the statistics."""
        count, mean, variance = _moments(value, self._batch_axes(number, value, ndim))
        old = self._statistics(number)
        if old is not None:
            count, mean, variance = (moment.to(old[1].device) for moment in (count, mean, variance))
            old_count, old_mean, old_variance = old[0] * self.decay, *old[1:]
            weight, difference = count / (old_count + count), mean - old_mean
            variance = old_variance + (variance - old_variance) * weight + difference**2 * (weight * (1 - weight))
            mean = old_mean + difference * weight
            count = old_count + count
        self._set_statistics(number, count, mean, variance)

    def _normalize(self, number: int, value: Tensor) -> Tensor:
        _, mean, variance = self._require_statistics(number, "call fit(data), or unfreeze()")
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        value = value.to(dtype) if value.dtype == torch.bool else value  # torch subtracts no bools
        return (value - mean.to(value.device, dtype)).div_(variance.sqrt().clamp(min=self.eps).to(value.device, dtype))

    def _require_statistics(self, number: int, hint: str) -> tuple[Tensor, Tensor, Tensor]:
        statistics = self._statistics(number)
        if statistics is None:
            raise InvalidArgumentError("VecNorm has no statistics", hint=hint)
        return statistics

    def to_observation_norm(self, key: NestedKey | None = None) -> ObservationNorm:
        """Return an `ObservationNorm` with the current statistics of one entry.

        Args:
            key: Key of the entry; the first of `in_keys` by default.

        Raises:
            InvalidArgumentError: If no data has been normalized or fitted.
        """
        number = 0 if key is None else self.in_keys.index(resolve_key(flat_key(key), self.loc))
        _, mean, variance = self._require_statistics(number, "call fit(data)")
        dtype = torch.get_default_dtype()
        scale = variance.sqrt().clamp(min=self.eps)
        keys = self.in_keys[number : number + 1], self.out_keys[number : number + 1]
        return ObservationNorm(mean.to(dtype), scale.to(dtype), *keys, standard_normal=True)

    @override
    def frozen_copy(self) -> VecNorm:
        other = super().frozen_copy()
        other._shared_td = None  # noqa: SLF001 - a copy of this object
        for number in range(len(self.in_keys)):
            statistics = self._require_statistics(number, "call fit(data)")
            other._set_statistics(number, *(value.clone() for value in statistics))  # noqa: SLF001
        return other

    @override
    def _affine(self) -> tuple[TensorDict, TensorDict]:
        loc, scale = TensorDict(), TensorDict()
        for number, key in enumerate(self.in_keys):
            _, mean, variance = self._require_statistics(number, "call fit(data)")
            loc.set(key, mean)
            scale.set(key, variance.sqrt().clamp(min=self.eps))
        return loc, scale

    @override
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for number in range(len(self.in_keys)):
            # A state has no mean of an entry before its first batch.
            if f"{prefix}count_{number}" in state_dict:
                state_dict.setdefault(f"{prefix}mean_{number}")
                state_dict.setdefault(f"{prefix}variance_{number}")
        super()._load_from_state_dict(state_dict, prefix, *args)


class VecNormV2(RunningNorm):
    """Normalize entries by moving averages of each element, as TorchRL's class of that name does.

        loc <- loc + w (x - loc)            w = 1 - decay, and 1 / count if decay is 1
        var <- var + w (x^2 - var)          b = 1 - decay^count corrects for the start at 0
        out = (x - loc / b) / sqrt((var - loc^2) / b)

    The statistics have the shape of the entries, including the batch size, unless `reduce_batch_dims` is set: then a
    batch counts as its n steps, ``w = 1 - decay^n``, and x and x^2 are averages over the batch. For the moments of all
    steps so far, use `VecNorm`.

    Args:
        in_keys: Keys of the entries to normalize, each with separate statistics.
        out_keys: Keys of the results; `in_keys` by default.
        lock: Lock that is held while the statistics are updated.
        stateful: Whether the transform holds the statistics; if not, they are read from and written to the batch, as
            ``"_vecnorm_loc"``, ``"_vecnorm_var"`` and ``"_vecnorm_count"``, with the entries `in_keys`.
        decay: Factor by which the weight of earlier data decreases, in (0, 1].
        eps: Minimum standard deviation to divide by.
        shared_data: Initial statistics: a TensorDict with the entries "loc", "var" and "count", each with `in_keys`.
        reduce_batch_dims: Whether to average over the batch axes.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1], or statistics are given without `stateful`.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        *,
        lock: Any = None,
        stateful: bool = True,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shared_data: Any = None,
        reduce_batch_dims: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, decay=decay, eps=eps, lock=lock)
        if not stateful and (shared_data is not None or reduce_batch_dims):
            raise InvalidArgumentError("shared_data and reduce_batch_dims need statistics; expected stateful=True")
        self.stateful, self.reduce_batch_dims = stateful, reduce_batch_dims
        for number, key in enumerate(self.in_keys):
            for name in _AVERAGES:
                value = None if shared_data is None else get_entry(shared_data, flat_key((name, key)))
                self.register_buffer(f"{name}_{number}", value)

    @override
    def transform_batch(self, batch: Any) -> Any:
        for number, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = self.tensor(batch, in_key)
            value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
            keys = [flat_key((f"_vecnorm_{name}", in_key)) for name in _AVERAGES]
            with self.lock or nullcontext():
                statistics = self._held(number) if self.stateful else [batch.get(key, None) for key in keys]
                loc, var, count = self._updated(value, batch.ndim, *statistics)
                if self.stateful:
                    self._buffers.update({f"loc_{number}": loc, f"var_{number}": var, f"count_{number}": count})
                else:
                    for key, statistic in zip(keys, (loc, var, count), strict=True):
                        batch.set(key, statistic)
            loc, scale = self._loc_and_scale(loc, var, count)
            batch.set(out_key, (value - loc.to(value.device)) / scale.to(value.device))
        return batch

    def _held(self, number: int) -> list[Any]:
        return [self._buffers[f"{name}_{number}"] for name in _AVERAGES]

    def _updated(
        self, value: Tensor, ndim: int, loc: Tensor | None, var: Tensor | None, count: Tensor | None
    ) -> _Statistics:
        """Return the statistics with a batch added; `None` is a statistic before the first batch."""
        squares, steps, axes = value**2, 1, tuple(range(ndim))
        if self.reduce_batch_dims and axes:
            steps = value.shape[:ndim].numel()
            value, squares = value.mean(axes), squares.mean(axes)
        if loc is None or var is None or count is None:
            loc, var = torch.zeros_like(value), torch.zeros_like(value)
            count = torch.zeros((), dtype=torch.int64, device=value.device)
            if not self.stateful:
                count = torch.zeros_like(value, dtype=torch.int64)
        if self.frozen:
            return loc, var, count
        count = count + steps
        weight = steps / count if self.decay == 1 else torch.tensor(1 - self.decay**steps)
        weight = weight.to(loc)
        return loc.lerp(value.detach().to(loc), weight), var.lerp(squares.detach().to(var), weight), count

    def _loc_and_scale(self, loc: Tensor, var: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        # In float64: for a decay close to 1, the correction is the difference of two numbers close to 1.
        correction = (1 - self.decay ** count.double()).to(loc) if self.decay < 1 else 1
        return loc / correction, ((var - loc**2).clamp(min=0) / correction).sqrt().clamp(min=self.eps)

    @override
    def _affine(self) -> tuple[TensorDict, TensorDict]:
        loc, scale = TensorDict(), TensorDict()
        for number, key in enumerate(self.in_keys):
            statistics = self._held(number)
            if any(value is None for value in statistics):
                raise InvalidArgumentError("VecNormV2 has no statistics", hint="transform a batch, with stateful=True")
            mean, deviation = self._loc_and_scale(*statistics)
            loc.set(key, mean)
            scale.set(key, deviation)
        return loc, scale

    def to_observation_norm(self) -> ObservationNorm:
        """Return an `ObservationNorm` with the current statistics of a single entry.

        Raises:
            InvalidArgumentError: If there are several entries, or no data has been normalized.
        """
        if len(self.in_keys) > 1:
            raise InvalidArgumentError(
                f"in_keys are {self.in_keys}; expected a single key", hint="use a VecNormV2 for each key"
            )
        loc, scale = self._affine()
        key = self.in_keys[0]
        return ObservationNorm(loc.get(key), scale.get(key), [key], self.out_keys, standard_normal=True)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            entry = self.transformed_spec(spec[in_key])
            if not self.stateful:
                for name in _AVERAGES:
                    zeros = entry.zero().long() if name == "count" else entry.zero()
                    spec.set(flat_key((f"_vecnorm_{name}", in_key)), any_like(zeros))
            spec.set(out_key, entry)


def _moments(value: Tensor, ndim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number, mean and variance of steps, in float64 so that a small variance is not lost next to a large mean."""
    steps = value.detach().reshape(-1, *value.shape[ndim:]).double()
    return torch.tensor(len(steps), dtype=torch.float64), steps.mean(0), steps.var(0, correction=0)


def _with_suffix(key: NestedKey, name: str) -> NestedKey:
    return f"{key}_{name}" if isinstance(key, str) else (*key[:-1], f"{key[-1]}_{name}")
