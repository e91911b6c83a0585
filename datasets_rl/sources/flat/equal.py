"""Rows that are equal to the row before, and episodes that are equal to an earlier episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_Flags = NDArray[np.bool_]
_Index = NDArray[np.int64]
EQUAL: Mapping[str, str] = {
    "equal-rows": "rows are equal to the row before in all fields: they were kept",
    "equal-episodes": "episodes are equal to an earlier one of the same files, compared in up to 64 elements of each value: "
    "they were kept",
}
"""Text of each decision, by rule."""
_COMPARED = 64
"""Maximum number of elements of a value that are compared first, before rows that are equal in them."""


class EqualEpisodes:
    """Counter of the episodes that are equal to an earlier episode."""

    def __init__(self) -> None:
        self._seen = np.empty(0, np.uint64)

    def count(self, hashes: NDArray[np.uint64]) -> int:
        """Return how many of the hashes, [n], are equal to an earlier hash."""
        known = len(self._seen)
        self._seen = np.unique(np.concatenate([self._seen, hashes]))
        return known + len(hashes) - len(self._seen)

    def counts(self, columns: Sequence[Any], ends: _Flags) -> Counter[str]:
        """Return how often each rule applies to a block, with the values of each field, [T, ...], and its last rows, [T]."""
        rows, hashes = equal_rows(columns), episode_hashes(columns, ends)
        return Counter({"equal-rows": len(rows), "equal-episodes": self.count(hashes)})


def equal_rows(columns: Sequence[Any]) -> _Index:
    """Return the rows that are equal to the row before in every column.

    Args:
        columns: The values of each field, [T, ...], or a list of T texts or byte strings. Beside frames of videos, which are
            not decoded here, no row is known to be equal.
    """
    if not _are_comparable(columns):
        return np.empty(0, np.int64)
    arrays = sorted(
        (flat(values) for values in columns if isinstance(values, np.ndarray)), key=lambda one: one.shape[1]
    )
    lists = [values for values in columns if isinstance(values, list)]
    if not arrays:
        return np.empty(0, np.int64)
    sample = sampled(arrays[0])
    rows = 1 + np.flatnonzero((sample[1:] == sample[:-1]).all(1))
    for take in (sampled, lambda values: values):  # whole rows are compared only if their samples are equal
        for values in map(take, arrays):
            if len(rows):
                rows = rows[(values[rows] == values[rows - 1]).all(1)]
    for items in lists:
        rows = rows[[items[row] == items[row - 1] for row in rows.tolist()]] if len(rows) else rows
    return rows


def episode_hashes(columns: Sequence[Any], ends: _Flags) -> NDArray[np.uint64]:
    """Return a hash of each whole episode of a block, [n], of a sample of the elements of every value.

    Args:
        columns: As of `equal_rows`.
        ends: Mask of the last rows of episodes, [T].
    """
    if not _are_comparable(columns):
        return np.empty(0, np.uint64)
    starts = np.append(0, np.flatnonzero(ends[:-1]) + 1)
    rows = np.zeros(len(ends), np.uint64)
    draw = np.random.default_rng(0)
    for values in columns:
        words = _checksums(values) if isinstance(values, list) else _words(sampled(flat(values)))
        rows += words @ draw.integers(1, 1 << 63, words.shape[1], np.uint64)
    # The rows of another episode may be the same in another order.
    places = np.arange(len(ends)) - np.repeat(starts, np.diff(np.append(starts, len(ends))))
    rows = (rows ^ (rows >> np.uint64(29))) * (2 * places.astype(np.uint64) + np.uint64(1))
    return np.add.reduceat(rows, starts)[: int(ends.sum())]


def flat(values: NDArray[Any]) -> NDArray[Any]:
    """Return values, [T, ...], with a single axis of elements, [T, n]."""
    return values.reshape(len(values), -1)


def sampled(values: NDArray[Any]) -> NDArray[Any]:
    """Return every k-th element of rows, [T, n], so that at most 64 elements are left."""
    return values[:, :: -(-values.shape[1] // _COMPARED)] if values.shape[1] > _COMPARED else values


def _are_comparable(columns: Sequence[Any]) -> bool:
    return all(isinstance(values, (np.ndarray, list)) for values in columns)


def _checksums(items: Sequence[str | bytes]) -> NDArray[np.uint64]:
    """Return the checksums of texts or byte strings, [T, 1]."""
    sums = (crc32(item.encode() if isinstance(item, str) else item) for item in items)
    return np.fromiter(sums, np.uint64, len(items)).reshape(-1, 1)


def _words(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the bits of the elements of rows, [T, n], as integers of 64 bits."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
