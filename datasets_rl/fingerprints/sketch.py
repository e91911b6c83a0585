"""Sketches of episodes, by which near copies are found.

    element of a field    . . o         window of 17 steps around an extreme value: its shape, and that of the next elements
                        .       . .     hash of the quantized shape, and its step: 64 of these with the smallest hashes

The shape of a window is the same after an affine change of each element, and mostly after rounding to float16. It does not depend on the
rest of the episode, so that parts of episodes and joined episodes have the same windows. Windows of integers, texts and images are 16
steps with exactly these values.

A common window is no evidence. It only says which two episodes are compared, and at which steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import RowDigests

SKETCH = np.dtype([("hash", "<u4"), ("step", "<u4")])
"""A window of an episode: the hash of its shape, and the step in its middle."""
SKETCH_SIZE = 64
"""Number of windows of a sketch: those with the smallest hashes, in ascending order. A sketch of fewer windows ends with zeros."""
_HASH = np.uint64(32)


class Sketcher:
    """Computes the sketches of episodes from their rows, in order.

    Args:
        sizes: Number of elements of a step of each field of floats that has shapes, and 0 for any other field, by name.
        capacity: The greatest number of windows of an episode.
    """

    def __init__(self, sizes: Mapping[str, int], capacity: int = SKETCH_SIZE) -> None:
        self._tails = {name: np.empty((size, 0)) for name, size in sizes.items() if size}
        self._grams = {name: np.zeros(2, np.uint64) for name, size in sizes.items() if not size}
        self._kept = np.zeros(capacity, np.uint64)
        self._count = self._steps = 0

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
            numbers: Values of each field with shapes, [n, ...].
            starts: As in `Fingerprinter.add`.
            stops: As in `Fingerprinter.add`.
            ended: As in `Fingerprinter.add`.
        """
        from datasets_rl.fingerprints.sketch_loops import ELEMENTS, SPAN, keep_rows, keep_shapes

        floats = {
            name: numbers[name].reshape(len(numbers[name]), -1)[:, :ELEMENTS].T.astype(np.float64, order="C")
            for name in self._tails
        }
        sketches = []
        for start, stop, ends in zip(starts.tolist(), stops.tolist(), ended.tolist(), strict=True):
            for name, tail in self._tails.items():
                length = tail.shape[1]
                rows = floats[name][:, start:stop]
                values = np.concatenate([tail[: len(rows)], rows], axis=1)
                first, step = max(SPAN, length - SPAN), self._steps - length
                self._count = keep_shapes(values, first, step, self._kept, self._count)
                self._tails[name] = values[:, :0] if ends else values[:, -2 * SPAN :]
            for name, gram in self._grams.items():
                self._count = keep_rows(digests[name][start:stop], gram, self._steps, self._kept, self._count)
            self._steps += stop - start
            if ends:
                sketches.append(self._sketch())
                self.forget()
        return np.stack(sketches) if sketches else np.zeros((0, len(self._kept)), SKETCH)

    def forget(self) -> None:
        """Forget the open episode."""
        self._tails = {name: tail[:, :0] for name, tail in self._tails.items()}
        for gram in self._grams.values():
            gram[:] = 0
        self._kept[:] = 0
        self._count = self._steps = 0

    def _sketch(self) -> NDArray[np.void]:
        sketch = np.zeros(len(self._kept), SKETCH)
        sketch["hash"] = self._kept >> _HASH
        sketch["step"] = self._kept & np.uint64(0xFFFFFFFF)
        return sketch
