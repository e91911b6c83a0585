"""Rows of unequal length, as flat values and the length of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError


@dataclass(frozen=True, slots=True)
class Ragged:
    """Column of rows of unequal lengths.

    rows      [7 8 9]  []  [4 5]
    values     7 8 9        4 5
    lengths    3        0   2
    """

    values: NDArray[Any] | Sequence[memoryview | bytes | str | NDArray[Any]] | Ragged
    """Concatenated values of all rows, [V, ...], again ragged for lists of lists."""
    lengths: NDArray[np.int64]
    """Lengths of the rows, [N], with the sum V."""

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.lengths)

    def stacked(self, name: str) -> NDArray[Any]:
        """Return the rows as an array, [N, k, ...], if all have k values.

        Raises:
            ConversionError: If the rows have unequal lengths, or are not numbers.
        """
        values = self.values.stacked(name) if isinstance(self.values, Ragged) else self.values
        if not isinstance(values, np.ndarray):
            raise ConversionError(name, ["the values are bytes or text, expected numbers"])
        sizes = np.unique(self.lengths)
        if len(sizes) > 1:
            raise ConversionError(name, [f"the rows have {sizes[0]:,} to {sizes[-1]:,} values, expected equal lengths"])
        width = int(sizes[0]) if len(sizes) else 0
        return values.reshape(len(self.lengths), width, *values.shape[1:])
