"""Steps that normalize fields. Their fitted parameters are stored with the dataset, so that they can be inverted.

y = (x - shift) / scale          x = y * scale + shift
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import map_fields, require_keys
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, as_key

Array = NDArray[np.float64]


@dataclass
class _Affine(Step):
    """An affine step, y = (x - shift) / scale, with a shift and a scale for each element of a field.

    Floating-point fields keep the dtype. Others become float32.
    """

    keys: tuple[str, ...] = ("observation",)

    _shift: dict[Key, Array] = field(default_factory=dict, init=False, repr=False, compare=False)
    _scale: dict[Key, Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    requires_fit = True

    def __post_init__(self) -> None:
        if not self.keys:
            raise InvalidArgumentError("keys is empty, expected fields")

    @abstractmethod
    def _parameters(self, moments: Iterable[Array]) -> tuple[Array, Array]:
        """Return the shift and the scale of a field, [...], from the moments in each batch."""

    def fit(self, batches: Iterable[EpisodeBatch]) -> None:
        """Compute the shift and the scale of each field."""
        totals: dict[Key, list[Array]] = {}
        for batch in batches:
            for key in require_keys(batch, self.keys):
                values = self._values(batch, key)
                if key in batch.vocabulary or values.dtype.kind not in "iuf":
                    raise InvalidArgumentError(f"{'.'.join(key)} is not numeric, expected integers or floating point")
                totals.setdefault(key, []).append(self._moments(values))
        for key, moments in totals.items():
            self._shift[key], self._scale[key] = self._parameters(moments)

    def _values(self, batch: EpisodeBatch, key: Key) -> NDArray[Any]:
        """Return the values of a field to fit to, [N, ...]: the values of all steps."""
        return np.asarray(batch.steps[key] if key in batch.steps else batch.states[key])

    @abstractmethod
    def _moments(self, values: NDArray[Any]) -> Array:
        """Return the moments of the values of a batch, [N, ...], from which the parameters are computed: [K, ...]."""

    def _finished(self, scaled: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """Return the final values of a field, [N, ...], given the scaled and the original values."""
        del values
        return scaled

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The shift and the scale of each field, [...]."""
        pairs = (("shift", self._shift), ("scale", self._scale))
        return {f"{'.'.join(key)}/{name}": values for name, by_key in pairs for key, values in by_key.items()}

    @override
    def restore(self, fitted: Mapping[str, Any]) -> None:
        for name in self.keys:
            self._shift[as_key(name)], self._scale[as_key(name)] = (
                np.asarray(fitted[f"{name}/{parameter}"], np.float64) for parameter in ("shift", "scale")
            )

    @override
    def for_environment(self, fields: EpisodeBatch) -> Step | None:
        step = copy(self)
        step.keys = tuple(name for name in self.keys if as_key(name) in {**fields.steps, **fields.states})
        return step if step.keys else None

    @override
    def invert_actions(
        self, actions: Mapping[Key, NDArray[Any]], before: Mapping[Key, NDArray[Any]]
    ) -> Mapping[Key, NDArray[Any]]:
        keys = {as_key(name) for name in self.keys}
        return {
            key: actions[key] * self._scale[key] + self._shift[key] if key in keys else actions[key] for key in before
        }

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:

        def scaled(key: Key, values: NDArray[Any]) -> NDArray[Any]:
            dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
            result: NDArray[Any] = self._finished((values - self._shift[key]) / self._scale[key], values).astype(dtype)
            return result

        return map_fields(batch, require_keys(batch, self.keys), scaled)


@dataclass
class Normalize(_Affine):
    """Normalize fields to mean 0 and standard deviation 1 over all steps.

        y = (x - mean) / (std + eps)

    The step `observation_norm` does so with given numbers, such as the statistics of another dataset. Final states are transformed alike. Values that are not finite do not count, and stay what they are.

    Args:
        keys: The fields.
        eps: A constant that is added to the standard deviations, 1e-3 as in TD3+BC (Fujimoto and Gu, 2021).
    """

    eps: float = 1e-3

    def _moments(self, values: NDArray[Any]) -> Array:
        values = values.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity of both signs
            counts, mean = np.full(values.shape[1:], len(values)), values.mean(0)
        if not np.isfinite(mean).all():
            finite = np.isfinite(values)
            counts = finite.sum(0)
            mean = np.where(finite, values, 0.0).sum(0) / np.maximum(counts, 1)
            values = np.where(finite, values, mean)
        return np.stack([counts, mean, ((values - mean) ** 2).sum(0)])

    def _parameters(self, moments: Iterable[Array]) -> tuple[Array, Array]:
        # Chan, Golub and LeVeque, 1979: combines the sums of squares around the means of batches, numerically stable.
        counts, means, squares = np.stack(list(moments), axis=1)
        total = np.maximum(counts.sum(0), 1)
        mean = (counts * means).sum(0) / total
        total_squares = (squares + counts * (means - mean) ** 2).sum(0)
        return mean, np.sqrt(total_squares / total) + self.eps


@dataclass
class NormalizeRange(_Affine):
    """Normalize fields to [-1, 1]: the lowest value of all steps becomes -1, and the highest becomes 1.

    Known final states are included, except in info. Values that are not finite are left out. Elements that are
    constant become 0.

    Args:
        keys: The fields.
        eps: Elements whose range is below this number are shifted so that their lowest value becomes 0, and not scaled.
            Diffusion Policy (Chi et al., 2023) has 1e-4.
    """

    eps: float = 0.0

    def _values(self, batch: EpisodeBatch, key: Key) -> NDArray[Any]:
        values = super()._values(batch, key)
        # `final_known` is about the observation: many sources that have the final observation lack the final info.
        if key in batch.steps or key[0] == "info":
            return values
        return np.concatenate([values, np.asarray(batch.final_states[key])[batch.final_known]])

    def _moments(self, values: NDArray[Any]) -> Array:
        bounds = np.stack([values.min(0), values.max(0)]).astype(np.float64)
        if not np.isfinite(bounds).all():
            finite = np.isfinite(values)
            bounds = np.stack([np.where(finite, values, np.inf).min(0), np.where(finite, values, -np.inf).max(0)])
        return bounds

    def _parameters(self, moments: Iterable[Array]) -> tuple[Array, Array]:
        lows, highs = np.stack(list(moments), axis=1)
        low, high = lows.min(0), highs.max(0)
        low, high = (np.where(high < low, 0.0, bound) for bound in (low, high))  # no value of the element is finite
        scaled = (high > low) & (high - low >= self.eps)
        return np.where(scaled, (low + high) / 2, low), np.where(scaled, (high - low) / 2, 1.0)


@dataclass
class NormalizeQuantiles(_Affine):
    """Normalize fields so that two quantiles become -1 and 1, and clip them to [-1, 1].

        y = 2 (x - q_low) / (q_high - q_low + eps) - 1

    Octo (Ghosh et al., 2024) and OpenVLA (Kim et al., 2024) normalize actions in this way. Quantiles are exact, over the
    finite values of all steps, with linear interpolation. All values of a field are in memory while they are computed.
    Elements that are constant become 0.

    Args:
        keys: The fields.
        low: The probability of the quantile that becomes -1.
        high: The probability of the quantile that becomes 1.
        eps: A constant that is added to the difference of the quantiles.
        unchanged: Indices of elements that are not normalized, in the last axis: -1 for a gripper.
    """

    keys: tuple[str, ...] = ("action",)
    low: float = 0.01
    high: float = 0.99
    eps: float = 1e-8
    unchanged: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low < self.high <= 1:
            raise InvalidArgumentError(f"low is {self.low} and high is {self.high}, expected 0 <= low < high <= 1")

    def _moments(self, values: NDArray[Any]) -> Array:
        return values.astype(np.float64)

    def _parameters(self, moments: Iterable[Array]) -> tuple[Array, Array]:
        values = np.concatenate(list(moments))
        quantile, finite = np.quantile, np.isfinite(values)
        if not finite.all():
            values[~finite] = np.nan
            values[:, ~finite.any(0)] = 0.0  # no value of these elements is finite
            quantile = np.nanquantile
        low, high = quantile(values, [self.low, self.high], axis=0)
        half = (high - low + self.eps) / 2
        constant = np.nanmin(values, 0) == np.nanmax(values, 0)
        shift, scale = np.where(constant, low, low + half), np.where(constant, 1.0, half)
        for element in self.unchanged:
            shift[..., element], scale[..., element] = 0.0, 1.0
        return shift, scale

    @override
    def _finished(self, scaled: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        clipped: NDArray[Any] = np.clip(scaled, -1.0, 1.0)
        for element in self.unchanged:
            clipped[..., element] = values[..., element]
        return clipped
