"""Selected rows of a dataset as ranges, so that a selection takes memory for ranges and not for rows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError

Index = NDArray[np.int64]


class RowRanges:
    """Ranges of rows in ascending order that do not overlap, K ranges with M rows in total.

        starts     2        7  9             rows       2 3 4 7 9
        lengths    3        1  1             numbers    0 1 2 3 4

    Args:
        starts: First row of each range, int64 [K].
        lengths: Number of rows of each range, int64 [K]. Ranges without a row are left out.

    Raises:
        InvalidArgumentError: If no row is left, or the ranges are not ascending.
    """

    def __init__(self, starts: Index, lengths: Index) -> None:
        kept = lengths > 0
        self.starts, self.lengths = (starts, lengths) if kept.all() else (starts[kept], lengths[kept])
        if not len(self.starts) or (self.starts[1:] < self.stops[:-1]).any():
            raise InvalidArgumentError(
                f"the {int(lengths.sum()):,} rows are empty or not strictly ascending, expected at least 1 row, each above "
                "the previous"
            )

    @classmethod
    def from_rows(cls, rows: Index) -> RowRanges:
        """Return the ranges of rows, int64 [M], strictly ascending."""
        firsts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1)
        return cls(rows[firsts], np.diff(firsts, append=len(rows)))

    def __len__(self) -> int:
        """Return the number of rows, M."""
        return int(self._ends[-1])

    @property
    def stops(self) -> Index:
        """Row after the last row of each range, [K]."""
        return self.starts + self.lengths

    @cached_property
    def _ends(self) -> Index:
        """Number of rows up to the end of each range, [K]."""
        return np.cumsum(self.lengths)

    @cached_property
    def shifts(self) -> Index:
        """Difference between the rows of each range and the numbers of these rows, [K]."""
        return self.starts - (self._ends - self.lengths)

    def at(self, numbers: Index) -> Index:
        """Return rows, in the shape of `numbers`, by number, below M."""
        rows: Index = numbers + self.shifts[self._ends.searchsorted(numbers, "right")]
        return rows

    def split_at(self, bounds: Index) -> RowRanges:
        """Return the same rows as ranges that touch only at some rows. Each such row starts a range if selected.

        Args:
            bounds: Rows, int64 [n], ascending.
        """
        opens = np.ones(len(self.starts), np.bool_)
        opens[1:] = self.starts[1:] != self.stops[:-1]
        firsts, stops = self.starts[opens], self.stops[np.append(np.flatnonzero(opens)[1:] - 1, -1)]
        owners = firsts.searchsorted(bounds, "right") - 1
        starts = np.union1d(firsts, bounds[(owners >= 0) & (bounds < stops[owners])])
        owners = firsts.searchsorted(starts, "right") - 1
        # A range ends where the next range starts, or with the range that it was a part of.
        return RowRanges(starts, np.minimum(np.append(starts[1:], stops[-1]), stops[owners]) - starts)

    def __repr__(self) -> str:
        return f"RowRanges({len(self):,} rows in {len(self.starts):,} ranges)"
