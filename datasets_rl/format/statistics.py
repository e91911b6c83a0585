"""Statistics of a dataset, accumulated in batches while it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.quantiles import quantiles, sample_rows, sample_size
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.table import EpisodeTable

if TYPE_CHECKING:
    from datasets_rl.format.schema import Column, Field, Schema

Take = Callable[[Sequence[Key], NDArray[np.int64]], list[NDArray[Any]]]
"""Function of keys and ascending rows, [K], that returns the values of each key in these rows, [K, ...]."""

TOLERANCE = 1e-9
"""Maximum difference between a stated and a recomputed mean or standard deviation, relative to the largest magnitude of
the values. Both depend on the batches in which the values were summed. Minimum and maximum do not."""
_BLOCK_BYTES = 4 << 20
_SAMPLE_BYTES = 32 << 20
_SQUARABLE = 1e150
"""Magnitude up to which sums of squares do not overflow float64, for any division into batches."""


class Moments:
    """Accumulator of count, minimum, maximum, mean and standard deviation of a column, updated in batches.

    Batches are merged with the pairwise update of Chan, Golub and LeVeque (1979), in float64, so that a large mean does
    not cancel a small deviation. Each element of a step has separate statistics. If a step has more than `MAX_ELEMENTS`
    elements (an image), all elements share the statistics.
    """

    MAX_ELEMENTS = 256

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape: tuple[int, ...] = () if self.pools(shape) else shape
        self._seen: NDArray[np.int64] = np.zeros(self._item_size, np.int64)
        self._count: NDArray[np.int64] = np.zeros(self._item_size, np.int64)
        self._mean: NDArray[np.float64] = np.zeros(self._item_size)
        self._squares: NDArray[np.float64] = np.zeros(self._item_size)
        self._low: NDArray[np.float64] = np.full(self._item_size, np.inf)
        self._high: NDArray[np.float64] = np.full(self._item_size, -np.inf)

    @classmethod
    def pools(cls, shape: tuple[int, ...]) -> bool:
        """Return whether all elements of a step of this shape share the statistics."""
        return math.prod(shape) > cls.MAX_ELEMENTS

    @property
    def _item_size(self) -> int:
        return math.prod(self._shape)

    def update(self, block: NDArray[Any]) -> None:
        """Add a batch of values, [n, ...]. Each value that is not finite is counted, and otherwise ignored."""
        # A contiguous row per element: numpy reduces rows several times faster than columns.
        values = np.ascontiguousarray(block.reshape(-1, self._item_size).T, dtype=np.float64)
        if not values.size:
            return
        self._seen = self._seen + values.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            sums = values.sum(axis=1)
            if np.isfinite(sums).all():
                self._merge_block(values, values, values, np.asarray(values.shape[1]), sums)
                return
            finite = np.isfinite(values)
            zeroed = np.where(finite, values, 0)
            mean = zeroed.sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
            self._merge_block(
                np.where(finite, values, mean[:, None]),
                np.where(finite, values, np.inf),
                np.where(finite, values, -np.inf),
                finite.sum(axis=1),
                zeroed.sum(axis=1),
            )

    def _merge_block(
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
        self._add_moments(count, mean, np.einsum("ij,ij->i", values, values))

    def _add_moments(self, count: NDArray[np.int64], mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        total = self._count + count
        share = count / np.maximum(total, 1)
        delta = mean - self._mean
        self._squares += squares + delta**2 * (self._count * share)
        self._mean += delta * share
        self._count = total

    def merge(self, state: list[list[float]]) -> None:
        """Add the values of another accumulator, from its `state`."""
        count, mean, squares, low, high, seen = (np.array(column) for column in state)
        self._seen = self._seen + seen.astype(np.int64)
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        with np.errstate(over="ignore", invalid="ignore"):
            self._add_moments(count.astype(np.int64), mean, squares)

    def state(self) -> list[list[float]]:
        """Return the state for `restore` and `merge`, as JSON values with NaN and infinity."""
        return [column.tolist() for column in self._state_arrays()]

    def restore(self, state: list[list[float]]) -> None:
        """Replace the state by a value of `state`."""
        for column, values in zip(self._state_arrays(), state, strict=True):
            column[:] = values

    def _state_arrays(self) -> tuple[NDArray[Any], ...]:
        return self._count, self._mean, self._squares, self._low, self._high, self._seen

    def to_json(self) -> dict[str, Any]:
        """Return the statistics in the shape of a step, as JSON values, None for a value that is not finite.

        ``not_finite``, the number of values that were ignored, is among the statistics if there were any.
        """
        has_values = self._count > 0
        columns = {
            "min": self._low,
            "max": self._high,
            "mean": np.where(has_values, self._mean, np.nan),
            "std": np.where(has_values, np.sqrt(self._squares / np.maximum(self._count, 1)), np.nan),
        }
        ignored = self._seen - self._count
        columns |= {"not_finite": ignored} if ignored.any() else {}
        return {
            name: np.where(np.isfinite(column), column, None).reshape(self._shape).tolist()  # type: ignore[call-overload]
            for name, column in columns.items()
        }


def summarize(values: NDArray[Any]) -> dict[str, Any]:
    """Return the moments and the exact quantiles of a number per episode, [E], as JSON values."""
    moments = Moments(())
    moments.update(values)
    return moments.to_json() | quantiles(values)


def has_statistics(column: Column) -> bool:
    """Return whether the manifest has statistics of a field, which must be a float field."""
    return column.dtype.kind == "f"


def has_quantiles(field: Field) -> bool:
    """Return whether the manifest has quantiles of a field, which must be a float field in rows.npy."""
    return has_statistics(field) and not field.wide


def field_quantiles(fields: Iterable[Field], steps: int, take: Take) -> dict[str, dict[str, Any]]:
    """Return the quantiles of all fields with quantiles, by dotted key, as JSON values.

    Args:
        fields: The fields.
        steps: Number of steps, N.
        take: Returns the values of sampled rows.
    """
    numbers = {}
    for count, group in _groups(fields, steps):
        taken = take([field.key for field in group], sample_rows(steps, count))
        for field, values in zip(group, taken, strict=True):
            numbers[field.name] = quantiles(values, () if Moments.pools(field.shape) else field.shape)
    return numbers


def _groups(all_fields: Iterable[Field], steps: int) -> Iterator[tuple[int, list[Field]]]:
    """Yield the fields whose samples are taken together, with the number of rows: visiting the rows costs most."""
    groups: dict[int, list[Field]] = {}
    for field in filter(has_quantiles, all_fields):
        count = sample_size(steps, math.prod(field.shape))
        fields = groups.setdefault(count, [])
        if fields and count * (field.step_bytes + sum(one.step_bytes for one in fields)) > _SAMPLE_BYTES:
            yield count, fields
            groups[count] = fields = []
        fields.append(field)
    yield from groups.items()


def episode_statistics(table: EpisodeTable) -> dict[str, Any]:
    """Return the statistics of the returns and lengths of episodes, as JSON values."""
    return {"return": summarize(table["return"]), "length": summarize(table["length"])}


def statistics_differences(
    stated: Mapping[str, Any],
    schema: Schema,
    table: EpisodeTable,
    column: Callable[[Key, int, int], NDArray[Any]],
    take: Take,
) -> Iterator[str]:
    """Recompute the statistics of a stored dataset in batches, and yield a problem for each stated value that differs.

    Args:
        stated: The statistics by dotted key, as in the manifest.
        schema: The fields.
        table: The episodes.
        column: Function of a key, a first row and a stop row that returns the values, [stop - start, ...].
        take: Returns the values of sampled rows.
    """
    recomputed = episode_statistics(table)
    for field in filter(has_statistics, schema):
        moments = Moments(field.shape)
        block = max(1, _BLOCK_BYTES // (8 * max(1, field.step_bytes // field.dtype.itemsize)))
        for start in range(0, table.steps, block):
            moments.update(column(field.key, start, min(start + block, table.steps)))
        recomputed[dotted_name(field.key)] = moments.to_json()
    for name, numbers in field_quantiles(schema, table.steps, take).items():
        recomputed[name] |= numbers
    if stated.keys() != recomputed.keys():
        different = ", ".join(sorted(stated.keys() ^ recomputed.keys()))
        yield f"statistics has the keys {', '.join(stated)}, expected {', '.join(recomputed)} (different: {different})"
    for name, expected in recomputed.items():
        if name in stated:
            yield from (f"statistics.{name}{text}" for text in _value_differences(stated[name], expected))


def _value_differences(stated: Any, expected: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(stated, Mapping) or stated.keys() != expected.keys():
        yield f" is {stated!s:.60}, expected {', '.join(expected)}"
        return
    numbers = {name: np.array(values, np.float64) for name, values in expected.items()}  # None becomes NaN
    scale = np.fmax(np.abs(numbers["min"]), np.abs(numbers["max"]))
    for name, recomputed in numbers.items():
        try:
            values = np.array(stated[name], np.float64)
        except (TypeError, ValueError):
            values = np.empty(0)
        if values.shape != recomputed.shape:
            yield f".{name} is {stated[name]!s:.60}, expected numbers of the shape {list(recomputed.shape)}"
            continue
        exact = name in {"min", "max", "not_finite"}
        with np.errstate(invalid="ignore"):
            equal = (values == recomputed) | (np.isnan(values) & np.isnan(recomputed))
            equal |= np.abs(values - recomputed) <= (0 if exact else TOLERANCE) * scale
        equal |= (scale > _SQUARABLE) & (not exact)
        wrong = np.flatnonzero(~equal)
        if len(wrong):
            first = int(wrong[0])
            index = str([int(axis) for axis in np.unravel_index(first, recomputed.shape)]) if recomputed.ndim else ""
            text = f".{name}{index} is {values.flat[first]:.17g}, expected {recomputed.flat[first]:.17g}"
            yield text + (f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else "")
