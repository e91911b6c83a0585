"""Normalization of entries by running statistics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.arguments import is_number
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import (
    Keys,
    NestedKey,
    Transform,
    any_like,
    flat_key,
    get_entry,
    resolve_key,
    suffixed_key,
)
from datasets_rl.transforms.norms import ObservationNorm

_SUMS = ("sum", "ssq", "count")
Statistics = tuple[Tensor, Tensor, Tensor]
"""The statistics of an entry, in the order of the `names` of the class."""


def merge_moments(old: Statistics, new: Statistics) -> Statistics:
    """Return the number of samples, the mean and the variance of two sets of samples together.

    The algorithm is that of Chan, Golub and LeVeque (1982), "Updating formulae and a pairwise algorithm for computing
    sample variances".
    """
    weight, difference = new[0] / (old[0] + new[0]), new[1] - old[1]
    variance = old[2] + (new[2] - old[2]) * weight + difference**2 * (weight * (1 - weight))
    return old[0] + new[0], old[1] + difference * weight, variance


class RunningNorm(Transform):
    """Base class of the transforms that normalize entries by running statistics.

        batch  --- added ---> statistics of each entry  --- affine ---> (entry - loc) / scale

    Args:
        in_keys: Keys of the entries, each with separate statistics.
        decay: Factor by which the weight of earlier data decreases, in (0, 1].
        eps: Minimum standard deviation to divide by.
        lock: Lock that is held while the statistics are updated.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1].
    """

    shown = ("decay", "frozen")

    names: ClassVar[tuple[str, str, str]]
    """Names of the statistics. The statistics of entry 0 are the buffers ``<name>_0``."""

    def __init__(self, in_keys: Keys, out_keys: Keys | None, *, decay: float, eps: float, lock: Any) -> None:
        super().__init__(in_keys, out_keys)
        if not is_number(decay) or not 0 < decay <= 1:
            raise InvalidArgumentError(f"decay is {decay!r}, expected a number in (0, 1]")
        self.decay, self.eps, self.lock = decay, eps, lock
        self._frozen = False
        for number in range(len(self.in_keys)):
            for name in self.names:
                self.register_buffer(f"{name}_{number}", None)

    @abstractmethod
    def added(self, number: int, value: Tensor, ndim: int, held: Statistics | None) -> Statistics:
        """Return the statistics with an entry of a batch added.

        Args:
            number: Number of the entry among `in_keys`.
            value: The entry, [*batch, ...].
            ndim: Number of the batch axes.
            held: The statistics so far, or `None` before the first batch.
        """

    @abstractmethod
    def affine(self, *statistics: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation that an entry is normalized by."""

    def held(self, number: int, batch: Any) -> Statistics | None:
        """Return the statistics of an entry, or `None` before the first batch."""
        del batch
        # Faster than the attributes, which are looked up in Python.
        first, second, third = (self._buffers[f"{name}_{number}"] for name in self.names)
        return None if first is None or second is None or third is None else (first, second, third)

    def hold(self, number: int, batch: Any, statistics: Statistics) -> None:
        """Replace the statistics of an entry."""
        del batch
        self._buffers.update({f"{name}_{number}": value for name, value in zip(self.names, statistics, strict=True)})

    @override
    def transform_batch(self, batch: Any) -> Any:
        for number, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = self.tensor(batch, in_key)
            with self.lock or nullcontext():
                statistics = self.held(number, batch)
                if not self.frozen:
                    statistics = self.added(number, value, batch.ndim, statistics)
                    self.hold(number, batch, statistics)
            loc, scale = self.affine(*self._required(statistics))
            value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
            try:
                batch.set(out_key, (value - loc.to(value)).div_(scale.to(value)))
            except RuntimeError as error:
                raise error if isinstance(error, DatasetsRLError) else self.misfit(in_key, value, error) from error
        return batch

    def _required(self, statistics: Statistics | None) -> Statistics:
        if statistics is None:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no statistics", hint="transform a batch, call fit(data), or unfreeze()"
            )
        return statistics

    def _affine(self) -> tuple[TensorDict, TensorDict]:
        """Return the means and the standard deviations of the entries, by `in_keys`."""
        loc, scale = TensorDict(), TensorDict()
        for number, key in enumerate(self.in_keys):
            mean, deviation = self.affine(*self._required(self.held(number, None)))
            loc.set(key, mean)
            scale.set(key, deviation)
        return loc, scale

    def to_observation_norm(self, key: NestedKey | None = None) -> ObservationNorm:
        """Return an `ObservationNorm` with the current statistics of an entry.

        Args:
            key: Key of the entry, the first of `in_keys` by default.

        Raises:
            InvalidArgumentError: If no data has been normalized or fitted.
        """
        loc, scale = self._affine()
        number = 0 if key is None else self.in_keys.index(resolve_key(flat_key(key), loc))
        dtype, key = torch.get_default_dtype(), self.in_keys[number]
        return ObservationNorm(
            loc.get(key).to(dtype),
            scale.get(key).to(dtype),
            [key],
            self.out_keys[number : number + 1],
            standard_normal=True,
        )

    def frozen_copy(self) -> Self:
        """Return a frozen copy with statistics that no longer change.

        Raises:
            InvalidArgumentError: If no data has been normalized or fitted.
        """
        self._affine()
        other = self.clone()
        other._buffers.update({name: None if value is None else value.clone() for name, value in self._buffers.items()})  # noqa: SLF001 - of torch
        return other.freeze()

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
        """Return a copy of a batch with the entries under `in_keys` restored from the normalized entries under `out_keys`.

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
        """Means of the entries, by `in_keys`. See `scale`."""
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


class VecNorm(RunningNorm):
    """Normalize entries by running statistics of all batches, or by the statistics of given data.

        >>> norm = VecNorm(in_keys=["observation"]).fit(dataset[:100_000])     # fixed statistics
        >>> norm = VecNorm(in_keys=["observation"], decay=0.999)               # statistics updated by every batch

    Args:
        in_keys: Keys of the entries to normalize, each with separate statistics. By default ``"observation"`` and
            ``("next", "reward")``.
        shared_td: TensorDict in shared memory with the statistics, which several processes update: for each key its
            decaying sum, `<key>_sum`, sum of squares, `<key>_ssq`, and number of steps, `<key>_count`.
        lock: Lock that is held while the statistics are updated.
        decay: Factor by which the weight of earlier steps decreases with each batch, in (0, 1].
        eps: Minimum standard deviation to divide by.
        shapes: Shapes of the statistics, one for each key. By default the shapes of the entries of a single step.
            All axes before are averaged.
        new_api: Whether to return a `VecNormV2` instead.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1], or `shared_td` lacks an entry.
    """

    names = ("count", "mean", "variance")
    instead = "normalize"

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
        for number, key in enumerate(self.in_keys):
            if shared_td is not None:
                for name in _SUMS:
                    get_entry(shared_td, suffixed_key(key, name))
            self._buffers[f"count_{number}"] = torch.zeros((), dtype=torch.float64)

    def fit(self, data: Any) -> VecNorm:
        """Replace the statistics by the statistics of data, freeze them, and return the transform."""
        for number, key in enumerate(self.in_keys):
            self.hold(number, data, self.added(number, self.tensor(data, key), data.ndim, None))
        return self.freeze()

    @override
    def held(self, number: int, batch: Any) -> Statistics | None:
        if self._shared_td is None:
            return super().held(number, batch)
        total, squares, weight = self._sums(number)
        average = total / weight
        return (weight, average, (squares / weight - average**2).clamp(min=0)) if bool((weight > 0).all()) else None

    @override
    def hold(self, number: int, batch: Any, statistics: Statistics) -> None:
        if self._shared_td is None:
            super().hold(number, batch, statistics)
            return
        count, mean, variance = statistics
        values = (mean * count, (variance + mean**2) * count, count)
        for shared, value in zip(self._sums(number), values, strict=True):
            shared.copy_(value)

    def _sums(self, number: int) -> Statistics:
        total, squares, count = (get_entry(self._shared_td, suffixed_key(self.in_keys[number], name)) for name in _SUMS)
        return total, squares, count

    @override
    def added(self, number: int, value: Tensor, ndim: int, held: Statistics | None) -> Statistics:
        axes = ndim if self.shapes is None else value.ndim - len(self.shapes[number])
        # In float64, so that a small variance is not lost next to a large mean.
        steps = value.detach().reshape(-1, *value.shape[axes:]).double()
        new = torch.tensor(len(steps), dtype=torch.float64), steps.mean(0), steps.var(0, correction=0)
        if held is None:
            return new
        count, mean, variance = (moment.to(held[1].device) for moment in new)
        return merge_moments((held[0] * self.decay, *held[1:]), (count, mean, variance))

    @override
    def affine(self, *statistics: Tensor) -> tuple[Tensor, Tensor]:
        _, mean, variance = statistics
        return mean, variance.sqrt().clamp(min=self.eps)

    @override
    def frozen_copy(self) -> VecNorm:
        other = super().frozen_copy()
        if self._shared_td is not None:
            other._shared_td = None  # noqa: SLF001 - a copy of this object
            for number in range(len(self.in_keys)):
                other.hold(number, None, self._required(self.held(number, None)))
        return other

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
        lock: Lock that is held while the statistics are updated.
        stateful: Whether the transform holds the statistics. If not, they are read from and written to the batch, as
            ``"_vecnorm_loc"``, ``"_vecnorm_var"`` and ``"_vecnorm_count"``, with the entries `in_keys`.
        decay: Factor by which the weight of earlier data decreases, in (0, 1].
        eps: Minimum standard deviation to divide by.
        shared_data: Initial statistics: a TensorDict with the entries "loc", "var" and "count", each with `in_keys`.
        reduce_batch_dims: Whether to average over the batch axes.

    Raises:
        InvalidArgumentError: If `decay` is not in (0, 1], or statistics are given without `stateful`.
    """

    names = ("loc", "var", "count")
    instead = "normalize"

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
            raise InvalidArgumentError("shared_data and reduce_batch_dims need statistics, expected stateful=True")
        self.stateful, self.reduce_batch_dims = stateful, reduce_batch_dims
        for number, key in enumerate(self.in_keys if shared_data is not None else ()):
            loc, var, count = (get_entry(shared_data, flat_key((name, key))) for name in self.names)
            self.hold(number, None, (loc, var, count))

    @override
    def held(self, number: int, batch: Any) -> Statistics | None:
        if self.stateful or batch is None:
            return super().held(number, batch)
        loc, var, count = (batch.get(key, None) for key in self._batch_keys(number))
        return None if loc is None or var is None or count is None else (loc, var, count)

    @override
    def hold(self, number: int, batch: Any, statistics: Statistics) -> None:
        if self.stateful:
            super().hold(number, batch, statistics)
            return
        for key, statistic in zip(self._batch_keys(number), statistics, strict=True):
            batch.set(key, statistic)

    def _batch_keys(self, number: int) -> list[NestedKey]:
        return [flat_key((f"_vecnorm_{name}", self.in_keys[number])) for name in self.names]

    @override
    def added(self, number: int, value: Tensor, ndim: int, held: Statistics | None) -> Statistics:
        # In float64: in float32, the difference of var and loc^2 has no digits if the mean is large.
        value = value.detach().double()
        squares, steps, axes = value**2, 1, tuple(range(ndim))
        if self.reduce_batch_dims and axes:
            steps = value.shape[:ndim].numel()
            value, squares = value.mean(axes), squares.mean(axes)
        if held is None:
            count = torch.zeros(() if self.stateful else value.shape, dtype=torch.int64, device=value.device)
            held = torch.zeros_like(value), torch.zeros_like(value), count
        loc, var, count = held[0].double(), held[1].double(), held[2] + steps
        weight = (steps / count if self.decay == 1 else torch.tensor(1 - self.decay**steps)).to(loc)
        return loc.lerp(value.to(loc.device), weight), var.lerp(squares.to(var.device), weight), count

    @override
    def affine(self, *statistics: Tensor) -> tuple[Tensor, Tensor]:
        loc, var, count = statistics
        # In float64: for a decay close to 1, the correction is the difference of two numbers close to 1.
        correction = (1 - self.decay ** count.double()).to(loc) if self.decay < 1 else 1
        return loc / correction, ((var - loc**2).clamp(min=0) / correction).sqrt().clamp(min=self.eps)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            entry = self.transformed_spec(spec[in_key])
            if not self.stateful:
                for name in self.names:
                    zeros = entry.zero().to(torch.int64 if name == "count" else torch.float64)
                    spec.set(flat_key((f"_vecnorm_{name}", in_key)), any_like(zeros))
            spec.set(out_key, entry)
