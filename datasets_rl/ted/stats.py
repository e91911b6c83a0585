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
        self._count: NDArray[np.int64] = np.zeros(self._width, np.int64)
        self._mean: NDArray[np.float64] = np.zeros(self._width)
        self._squares: NDArray[np.float64] = np.zeros(self._width)
        self._low: NDArray[np.float64] = np.full(self._width, np.inf)
        self._high: NDArray[np.float64] = np.full(self._width, -np.inf)

    @property
    def _width(self) -> int:
        return int(np.prod(self._shape))

    def update(self, block: NDArray[Any]) -> None:
        """Take a further block, [n, ...]; values that are not finite are left out, each for itself."""
        # One contiguous row an element: numpy reduces along it several times faster than down the columns.
        values = np.ascontiguousarray(block.reshape(-1, self._width).T, dtype=np.float64)
        if not values.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            sums = values.sum(axis=1)
            if np.isfinite(sums).all():
                self._merge(values, values, values, np.asarray(values.shape[1]), sums)
                return
            finite = np.isfinite(values)
            zeroed = np.where(finite, values, 0)
            mean = zeroed.sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
            self._merge(
                np.where(finite, values, mean[:, None]),
                np.where(finite, values, np.inf),
                np.where(finite, values, -np.inf),
                finite.sum(axis=1),
                zeroed.sum(axis=1),
            )

    def _merge(
        self,
        values: NDArray[np.float64],
        lows: NDArray[np.float64],
        highs: NDArray[np.float64],
        count: NDArray[np.int64],
        sums: NDArray[np.float64],
    ) -> None:
        np.minimum(self._low, lows.min(axis=1), out=self._low)
        np.maximum(self._high, highs.max(axis=1), out=self._high)
        mean = sums / np.maximum(count, 1)
        values = values - mean[:, None]
        self._add(count, mean, np.einsum("ij,ij->i", values, values))

    def _add(self, count: NDArray[np.int64], mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        total = self._count + count
        share = count / np.maximum(total, 1)
        apart = mean - self._mean
        self._squares += squares + apart**2 * (self._count * share)
        self._mean += apart * share
        self._count = total

    def merge(self, state: list[list[float]]) -> None:
        """Take what another one has seen, as its `state` says."""
        count, mean, squares, low, high = (np.array(column) for column in state)
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        with np.errstate(over="ignore", invalid="ignore"):
            self._add(count.astype(np.int64), mean, squares)

    def state(self) -> list[list[float]]:
        """Return what `restore` needs, as JSON values with NaN and infinity."""
        return [column.tolist() for column in self._columns()]

    def restore(self, state: list[list[float]]) -> None:
        """Go on from what `state` returned."""
        for column, values in zip(self._columns(), state, strict=True):
            column[:] = values

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self._count, self._mean, self._squares, self._low, self._high

    def to_json(self) -> dict[str, Any]:
        """Return the statistics in the shape of one step, as JSON values; None where no finite number says it."""
        seen = self._count > 0
        columns = {
            "min": self._low,
            "max": self._high,
            "mean": np.where(seen, self._mean, np.nan),
            "std": np.where(seen, np.sqrt(self._squares / np.maximum(self._count, 1)), np.nan),
        }
        return {
            name: np.where(np.isfinite(column), column, None).reshape(self._shape).tolist()  # type: ignore[call-overload]
            for name, column in columns.items()
        }


def summary(values: NDArray[Any]) -> dict[str, Any]:
    """Return minimum, maximum, mean and standard deviation of one number an episode, [E]."""
    moments = Moments(())
    moments.update(values)
    return moments.to_json()
