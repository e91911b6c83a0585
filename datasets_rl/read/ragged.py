"""Rows of unequal length, as flat values and how many belong to each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError

__all__ = ["Ragged"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column whose rows have unequal lengths.

    rows      [7 8 9]  []  [4 5]
    values     7 8 9        4 5
    lengths    3        0   2
    """

    values: NDArray[Any] | Sequence[memoryview | bytes | str | NDArray[Any]] | Ragged
    """[V, ...], those of all rows, one after the other; ragged themselves where lists lie in lists."""
    lengths: NDArray[np.int64]
    """[N], adding up to V."""

    def stacked(self, name: str) -> NDArray[Any]:
        """Return the rows side by side, [N, k, ...], where all have k values.

        Args:
            name: What the column is called in the error.

        Raises:
            ConversionError: If they have not, or are no numbers.
        """
        values = self.values.stacked(name) if isinstance(self.values, Ragged) else self.values
        if not isinstance(values, np.ndarray):
            raise ConversionError(name, ["its values are bytes or text; expected numbers"])
        sizes = np.unique(self.lengths)
        if len(sizes) > 1:
            raise ConversionError(name, [f"its rows have {sizes[0]:,} to {sizes[-1]:,} values; expected all the same"])
        width = int(sizes[0]) if len(sizes) else 0
        return values.reshape(len(self.lengths), width, *values.shape[1:])
