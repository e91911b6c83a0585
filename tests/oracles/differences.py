"""Differences between converted values and raw files, as the comparisons of all sources count and report them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import UnknownKeyError
from datasets_rl.ted.keys import Key, dotted_name

Column: TypeAlias = Callable[[Key, int, int], Any]
"""``column(key, start, stop)`` returns converted values, [stop - start, ...]."""


class Differences:
    """First difference of each column, and the number of different rows.

    Args:
        column: Returns converted values.
        noun: Name of what is counted.
    """

    def __init__(self, column: Column, noun: str = "rows") -> None:
        self._column = column
        self._noun = noun
        self._by_name: dict[str, tuple[str, int]] = {}

    def add(self, name: str, text: str, count: int = 1) -> None:
        """Count differences of a column; only the first text of a column is reported."""
        first, before = self._by_name.get(name, (text, 0))
        self._by_name[name] = first, before + count

    def compare(self, key: Key, start: int, raw: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> bool:
        """Compare the rows that begin at `start`, unless the selection excludes the field.

        Args:
            key: The key of the column.
            start: The first row.
            raw: Expected values, [T, ...]; only their number per row must be that of the column.
            mask: The rows to compare, [T].

        Returns:
            Whether the dataset has the field.
        """
        try:
            converted = np.asarray(self._column(key, start, start + len(raw)))
        except UnknownKeyError:
            return False
        self.compare_values(key, start, raw, converted, mask)
        return True

    def compare_values(
        self, key: Key, start: int, raw: NDArray[Any], converted: NDArray[Any], mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Compare converted values, [T, ...], that are already read; see `compare`."""
        name = dotted_name(key)
        if raw.size != converted.size:
            text = f"{name} at row {start:,} has shape {list(converted.shape)}, in the file {list(raw.shape)}"
            self.add(name, text, len(raw))
            return
        raw = raw.reshape(converted.shape)
        differ = ~equal_rows(raw, converted)
        wrong = np.flatnonzero(differ if mask is None else differ & mask)
        if len(wrong):
            row = int(wrong[0])
            text = f"{name} at row {start + row:,} is {converted[row]!s:.80}, in the file {raw[row]!s:.80}"
            self.add(name, text, len(wrong))

    def texts(self) -> list[str]:
        """Return a sentence for each column with differences."""
        return [f"{text} ({count:,} such {self._noun})" for text, count in self._by_name.values()]


def equal_rows(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of equal rows of two arrays, [T, ...]; NaN equals NaN."""
    same = left == right
    if left.dtype.kind in "fO" and right.dtype.kind in "fO":
        same |= (left != left) & (right != right)  # noqa: PLR0124 -- NaN
    return np.asarray(same.reshape(len(left), int(np.prod(left.shape[1:]))).all(axis=1))
