"""Statistics of a dataset, gathered block by block while it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments", "summary"]


class Moments:
    """Count, minimum, maximum, mean and standard deviation of a column that comes in blocks.

    Blocks are merged by the pairwise update of Chan, Golub and LeVeque (1979), in float64, so that a large mean does
    not swallow a small deviation. Each element of a step has its own statistics, or all share one where a step has
    more than `MAX_ELEMENTS` (an image).
    """

    MAX_ELEMENTS = 256

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._pooled = int(np.prod(shape)) > self.MAX_ELEMENTS
        self._shape: tuple[int, ...] = () if self._pooled else shape
        self._count = 0
        self._mean: NDArray[np.float64] = np.zeros(self._width)
        self._squares: NDArray[np.float64] = np.zeros(self._width)
        self._low: NDArray[np.float64] = np.full(self._width, np.inf)
        self._high: NDArray[np.float64] = np.full(self._width, -np.inf)

    @property
    def _width(self) -> int:
        return int(np.prod(self._shape))

    def update(self, block: NDArray[Any]) -> None:
        """Take a further block, [n, ...]; values that are not finite are left out of mean and deviation."""
        # One contiguous row an element: numpy reduces along it several times faster than down the columns.
        values = np.ascontiguousarray(block.reshape(-1, self._width).T, dtype=np.float64)
        if not values.size:
            return
        sums = values.sum(axis=1)
        if not np.isfinite(sums).all():
            self._update_finite(values)
            return
        self._merge(values, values.shape[1], sums / values.shape[1])

    def _update_finite(self, values: NDArray[np.float64]) -> None:
        finite = np.isfinite(values).all(axis=0)
        if finite.any():
            kept = np.ascontiguousarray(values[:, finite])
            self._merge(kept, kept.shape[1], kept.mean(axis=1))

    def _merge(self, values: NDArray[np.float64], count: int, mean: NDArray[np.float64]) -> None:
        np.minimum(self._low, values.min(axis=1), out=self._low)
        np.maximum(self._high, values.max(axis=1), out=self._high)
        values = values - mean[:, None]
        squares = np.einsum("ij,ij->i", values, values)
        total = self._count + count
        apart = mean - self._mean
        self._squares += squares + apart**2 * (self._count * count / total)
        self._mean += apart * (count / total)
        self._count = total

    def to_json(self) -> dict[str, Any]:
        """Return the statistics in the shape of one step, as JSON values; None where no finite value was seen."""
        if not self._count:
            return {"min": None, "max": None, "mean": None, "std": None}
        columns = {
            "min": self._low,
            "max": self._high,
            "mean": self._mean,
            "std": np.sqrt(self._squares / self._count),
        }
        return {name: column.reshape(self._shape).tolist() for name, column in columns.items()}


def summary(values: NDArray[Any]) -> dict[str, Any]:
    """Return minimum, maximum, mean and standard deviation of one number an episode, [E]."""
    moments = Moments(())
    moments.update(values)
    return moments.to_json()
