"""Steps that bring fields to one scale; what they learned is stored with the dataset, so that it can be undone.

y = (x - shift) / scale          x = y * scale + shift
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import mapped, need
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, as_key

__all__ = ["Normalise", "NormaliseRange"]

Array = NDArray[np.float64]


@dataclass
class _Affine(Step):
    """y = (x - shift) / scale, a pair of them for each number of a field."""

    keys: tuple[str, ...] = ("observation",)

    _shift: dict[Key, Array] = field(default_factory=dict, init=False, repr=False, compare=False)
    _scale: dict[Key, Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    requires_fit = True

    def __post_init__(self) -> None:
        if not self.keys:
            raise InvalidArgumentError("keys is empty; expected fields")

    @abstractmethod
    def _found(self, seen: Iterable[Array]) -> tuple[Array, Array]:
        """Return shift and scale of one field, [...], of its values, blocks [N, ...]."""

    def fit(self, blocks: Iterable[EpisodeBatch]) -> None:
        """Find shift and scale of each field."""
        totals: dict[Key, list[Array]] = {}
        for block in blocks:
            for key in need(block, self.keys):
                values = self._seen(block, key)
                if key in block.vocabulary or values.dtype.kind not in "iuf":
                    raise InvalidArgumentError(f"{'.'.join(key)} holds no numbers that have a mean")
                totals.setdefault(key, []).append(self._moments(values))
        for key, moments in totals.items():
            self._shift[key], self._scale[key] = self._found(moments)

    def _seen(self, block: EpisodeBatch, key: Key) -> NDArray[Any]:
        """Return what is learned from, [N, ...]: a field at every step."""
        return np.asarray(block.steps[key] if key in block.steps else block.states[key])

    @abstractmethod
    def _moments(self, values: NDArray[Any]) -> Array:
        """Return what is kept of a block, [N, ...]: [K, ...]."""

    @property
    def fitted(self) -> Mapping[str, Any]:
        """Shift and scale of each field, [...]."""
        pairs = (("shift", self._shift), ("scale", self._scale))
        return {f"{'.'.join(key)}/{name}": values for name, found in pairs for key, values in found.items()}

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with its fields brought to scale, float32 or what they were."""

        def scaled(key: Key, values: NDArray[Any]) -> NDArray[Any]:
            dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
            found: NDArray[Any] = ((values - self._shift[key]) / self._scale[key]).astype(dtype)
            return found

        return mapped(block, map(as_key, self.keys), scaled)


@dataclass
class Normalise(_Affine):
    """Bring fields to mean 0 and standard deviation 1 over all steps; final states are brought to the same scale.

        y = (x - mean) / (std + eps)

    Args:
        keys: The fields.
        eps: Added to the standard deviations; 1e-3 as in TD3+BC (Fujimoto and Gu, 2021).
    """

    eps: float = 1e-3

    summary = "fields to mean 0 and standard deviation 1"

    def _moments(self, values: NDArray[Any]) -> Array:
        values = values.astype(np.float64)
        mean = values.mean(0)
        return np.stack([np.full_like(mean, len(values)), mean, ((values - mean) ** 2).sum(0)])

    def _found(self, seen: Iterable[Array]) -> tuple[Array, Array]:
        # Chan, Golub and LeVeque, 1979: sums of squares around the means of parts give that around the mean of all.
        counts, means, squares = np.stack(list(seen), axis=1)
        mean = (counts * means).sum(0) / counts.sum(0)
        around = (squares + counts * (means - mean) ** 2).sum(0)
        return mean, np.sqrt(around / counts.sum(0)) + self.eps


@dataclass
class NormaliseRange(_Affine):
    """Bring fields between -1 and 1: the lowest value of all steps becomes -1, the highest one 1.

    Final states count too, where they are known. What never changes becomes 0.

    Args:
        keys: The fields.
    """

    summary = "fields to the range from -1 to 1"

    def _seen(self, block: EpisodeBatch, key: Key) -> NDArray[Any]:
        rows = super()._seen(block, key)
        return (
            rows
            if key in block.steps
            else np.concatenate([rows, np.asarray(block.final_states[key])[block.final_known]])
        )

    def _moments(self, values: NDArray[Any]) -> Array:
        return np.stack([values.min(0), values.max(0)]).astype(np.float64)

    def _found(self, seen: Iterable[Array]) -> tuple[Array, Array]:
        lows, highs = np.stack(list(seen), axis=1)
        low, high = lows.min(0), highs.max(0)
        return (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)
