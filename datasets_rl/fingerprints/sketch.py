"""Sketches of episodes, by which near copies are found.

    element of a field    . . o         window of 17 steps around an extreme value: its shape, and that of the next elements
                        .       . .     hash of the quantized shape, and its step: 64 of these with the smallest hashes

The shape of a window is the same after an affine change of each element, and mostly after rounding to float16. It does not depend on the
rest of the episode, so that parts of episodes and joined episodes have the same windows. Windows of integers and texts are 16 steps with
exactly these values. Images have no windows.

A common window is no evidence. It only says which two episodes are compared, and at which steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import RowDigests
from datasets_rl.fingerprints.choice import window_loops
from datasets_rl.fingerprints.constants import ELEMENTS, GROUP

_RUN, _PLACE = 100_000, 2_000
"""Nanoseconds in numpy of a run of rows, of each field, and of a place where a window may be."""
SKETCH = np.dtype([("hash", "<u4"), ("step", "<u4")])
"""A window of an episode: the hash of its shape, and the step in its middle."""
SKETCH_SIZE = 64
"""Number of windows of a sketch: those with the smallest hashes, in ascending order. A sketch of fewer windows ends with zeros."""
_HASH, _STEP = np.uint64(32), np.uint64(0xFFFFFFFF)
_BLOCK = 4096
_WINDOW = 16
"""Steps of a window but its middle."""


class Sketcher:
    """Computes the sketches of episodes from their rows, in order.

    Args:
        sizes: Number of elements of a step of each field of floats that has shapes, and 0 for any other field, by name.
        capacity: The greatest number of windows of an episode.
    """

    def __init__(self, sizes: Mapping[str, int], capacity: int = SKETCH_SIZE) -> None:
        self._floats = {name: min(size, ELEMENTS) for name, size in sizes.items() if size > 0}
        self._others = [name for name, size in sizes.items() if size == 0]
        counts = [*self._floats.values()]
        offsets = np.cumsum([0, *counts])
        spans = [
            (offset + first, min(GROUP, count - first))
            for offset, count in zip(offsets.tolist(), counts, strict=False)
            for first in range(0, count, GROUP)
        ]
        self._anchors = np.array([first for first, _ in spans], np.int64)
        self._firsts = np.tile(self._anchors, 2)
        self._groups = np.tile(np.array([count for _, count in spans], np.int64), 2)
        self._tail = np.empty((int(offsets[-1]), 0))
        self._grams = np.zeros((len(self._others), 2), np.uint64)
        self._kept = np.zeros(capacity, np.uint64)
        self._state = np.zeros(2, np.int64)

    def add(
        self,
        digests: Mapping[str, RowDigests],
        numbers: Mapping[str, NDArray[Any]],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> NDArray[np.void]:
        """Add rows, and return the sketches of the m episodes that end, [m, K].

        Args:
            digests: Digests of the rows of each field, [n, 2].
            numbers: Values of each field of floats, [n, ...].
            starts: As in `Fingerprinter.add`.
            stops: As in `Fingerprinter.add`.
            ended: As in `Fingerprinter.add`.
        """
        count, tail = int(stops[-1]), self._tail.shape[1]
        values = np.empty((len(self._tail), tail + count))
        values[:, :tail] = self._tail
        first = 0
        for name, size in self._floats.items():
            values[first : first + size, tail:] = numbers[name].reshape(count, -1)[:, :size].T
            first += size
        with np.errstate(over="ignore", invalid="ignore"):  # values of float64 may be infinite as float32
            chosen = values[self._anchors].astype(np.float32)  # rounded copies of float64 have the same extremes
            anchors = np.concatenate([chosen, np.diff(chosen, axis=1, prepend=np.float32(np.nan))])
        others = np.zeros((len(self._others), count, 2), np.uint64)
        for number, name in enumerate(self._others):
            others[number] = digests[name]
        kept = np.zeros((int(ended.sum()), len(self._kept)), np.uint64)
        places = _extremes(anchors)
        loops = window_loops(_RUN * (1 + len(others)) * len(starts) + _PLACE * len(places))
        loops.sketch_rows(
            values,
            anchors,
            self._firsts,
            self._groups,
            places,
            tail,
            others,
            self._grams,
            starts,
            stops,
            ended,
            self._state,
            self._kept,
            kept,
        )
        self._tail = values[:, max(0, tail + count - min(int(self._state[1]), _WINDOW + 1)) :].copy()
        sketches = np.zeros(kept.shape, SKETCH)
        sketches["hash"], sketches["step"] = kept >> _HASH, kept & _STEP
        return sketches

    def forget(self) -> None:
        """Forget the open episode."""
        self._tail = self._tail[:, :0]
        for array in (self._grams, self._kept, self._state):
            array[...] = 0


def _extremes(anchors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return step and anchor of each value of [A, n] that none of the 8 before and after it exceeds, or all of them do, [P, 2]."""
    found = [np.empty((0, 2), np.int64)]
    for start in range(0, anchors.shape[1] - _WINDOW, _BLOCK):  # a block fits the cache
        block = anchors[:, start : start + _BLOCK + _WINDOW]
        highs = lows = block
        for distance in (1, 2, 4, 8):  # the greatest of 2, 4, 8 and 16 values from each on
            highs = np.maximum(highs[:, :-distance], highs[:, distance:])
            lows = np.minimum(lows[:, :-distance], lows[:, distance:])
        half = _WINDOW // 2
        middle = block[:, half : block.shape[1] - half]
        extreme = middle >= np.maximum(highs[:, :-1], highs[:, 1:])
        extreme |= middle <= np.minimum(lows[:, :-1], lows[:, 1:])
        extreme &= middle != block[:, half - 1 : block.shape[1] - half - 1]  # a rest has no only extreme value
        steps, numbers = np.nonzero(np.ascontiguousarray(extreme.T))
        found.append(np.stack([steps + (start + half), numbers], axis=1))
    return np.concatenate(found)
