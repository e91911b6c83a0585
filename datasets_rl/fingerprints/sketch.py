"""Sketches of episodes, by which near copies are found.

    codes of the steps    7 7 7 2 9 4 4 1 8 3 ...     a number of 8 bits and the exponent of each of two elements of a field
    window                    ^       ^   x           the codes at x and before x: a hash, and the step
    sketch                                            the `SKETCH_SIZE` windows with the smallest hashes

The code of a step is the same after rounding to float16, and mostly after other small changes. Whether a window ends at a step depends
on the code of this step alone, so that parts of episodes and joined episodes have the same windows. Windows of integers and texts are 16
steps with exactly these values. Images have no windows.

A common window is no evidence. It only says which two episodes are compared, and at which steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.hashing import CHAIN, FIRST, GOLDEN, Words, mixed
from datasets_rl.fingerprints.runs import CONTEXT, Runs

SKETCH = np.dtype([("hash", "<u4"), ("step", "<u4")])
"""A window of an episode: the hash of its codes, and its last step."""
SKETCH_SIZE = 64
"""Number of windows of a sketch: those with the smallest hashes, in ascending order. A sketch of fewer windows ends with zeros."""
_EXACT, _ROUNDED = tuple(range(CONTEXT)), (0, 4, 8, 12)
"""The steps of a window of other fields and of floats, before its last step."""
_SAMPLED, _SAMPLED_FLOATS = 4, 12
"""One of how many different codes ends a window."""
_HALF_ULP, _LOW = np.uint32(1 << 12), np.uint32(16)
"""Half of the last digit of float16 in float32, and the bits of float32 that a code leaves out."""
_SPREAD = np.uint32(0x9E3779B1)
_HASH, _RUN, _STEP = np.uint64(16), np.uint64(48), np.uint64(32)
Codes = NDArray[np.uint32]


class Sketcher:
    """Computes the sketches of episodes from their rows, in order.

    Args:
        sizes: Number of elements of a step of each field of floats, 0 for a field of other values, and -1 for images, by name.
        capacity: The greatest number of windows of an episode.
    """

    def __init__(self, sizes: Mapping[str, int], capacity: int = SKETCH_SIZE) -> None:
        self._floats = [name for name, size in sizes.items() if size > 0]
        self._others = [number for number, size in enumerate(sizes.values()) if size == 0]
        self._capacity = capacity
        self._tail = np.empty((len(self._floats) + len(self._others), 0), np.uint32)
        self._kept = np.empty(0, np.uint64)

    def add(self, digests: Words, numbers: Mapping[str, NDArray[Any]], runs: Runs) -> NDArray[np.void]:
        """Add rows, and return the sketches of the episodes that end, [E, K].

        Args:
            digests: Digests of the rows of each field, with the context, [F, c + n].
            numbers: Values of each field of floats, [n, ...].
            runs: The runs of rows, of at most 65,536 rows.
        """
        context, floats = runs.context, len(self._floats)
        codes = np.empty((len(self._tail), digests.shape[1]), np.uint32)
        codes[:, :context] = self._tail
        has_windows = (runs.stops - runs.begins >= CONTEXT).any()
        first = context if has_windows else max(context, digests.shape[1] - CONTEXT)  # only the tail is needed
        if floats:
            _fill_float_codes(codes[:floats, first:], [numbers[name][first - context :] for name in self._floats])
        codes[floats:, first:] = digests[self._others, first:] >> np.uint64(32)
        self._tail = runs.tail(codes)
        windows = np.empty(0, np.uint64)
        if has_windows:
            places = _Places(runs)
            windows = np.concatenate(
                [
                    _windows(codes[:floats], places, _ROUNDED, _SAMPLED_FLOATS),
                    _windows(codes[floats:], places, _EXACT, _SAMPLED),
                ]
            )
            windows.sort()
        return self._smallest(windows, runs)

    def _smallest(self, windows: Words, runs: Runs) -> NDArray[np.void]:
        """Return the sketches of the episodes that end, given run, hash and step of windows, and keep those of the open episode."""
        hashes, new = windows >> _HASH, np.ones(len(windows), np.bool_)
        np.not_equal(hashes[1:], hashes[:-1], out=new[1:])
        windows = windows[new]
        numbers = (windows >> _RUN).astype(np.int64)
        edges = np.searchsorted(numbers, np.arange(len(runs.starts) + 1))
        entries = (windows >> _HASH << _STEP) | (windows & np.uint64(0xFFFF))
        entries[: edges[1]] += np.uint64(runs.before)
        ranks = np.arange(len(entries)) - edges[numbers]
        few = ranks < self._capacity
        records = np.zeros((len(runs.starts), self._capacity), SKETCH)
        words = records.view("<u8")
        words[numbers[few], ranks[few]] = _swapped(entries[few])
        if len(self._kept):
            both = np.sort(np.concatenate([self._kept, entries[: edges[1]]]))
            both = both[np.unique(both >> _STEP, return_index=True)[1]][: self._capacity]
            words[0, : len(both)] = _swapped(both)
        self._kept = _swapped(words[-1][words[-1] > 0]) if runs.open else self._kept[:0]
        return records[: np.count_nonzero(runs.ended)]

    def forget(self) -> None:
        """Forget the open episode."""
        self._tail, self._kept = self._tail[:, :0], self._kept[:0]


def _swapped(words: Words) -> Words:
    """Return words with their halves in other places: a record has the hash first, and the order is that of the hashes."""
    swapped: Words = (words << _STEP) | (words >> _STEP)
    return swapped


def _fill_float_codes(codes: Codes, fields: Sequence[NDArray[Any]]) -> None:
    """Set codes, [F, n], to the first bits of the first and the middle element of each row of each field."""
    numbers = np.empty((2, *codes.shape), np.float32)
    for field, values in enumerate(fields):
        rows = values.reshape(len(values), math.prod(values.shape[1:]))
        middle = rows.shape[1] // 2
        with np.errstate(over="ignore"):  # values of float64 may be infinite as float32
            numbers[0, field] = rows[:, 0]
            numbers[1, field] = rows[:, middle] if middle else numbers[0, field]
    numbers += np.float32(0)  # -0.0 + 0.0 is 0.0
    bits = numbers.view(np.uint32)
    bits += _HALF_ULP
    bits[0] >>= _LOW
    bits[1] &= ~np.uint32(0) << _LOW
    np.bitwise_or(bits[0], bits[1], out=codes)


class _Places:
    """Where windows may end.

    Args:
        runs: The runs of rows.
    """

    def __init__(self, runs: Runs) -> None:
        steps = np.arange(len(runs.numbers)) - runs.starts[runs.numbers]
        self.inside = steps >= CONTEXT - 1
        """Which new rows have the rows of a window before them, [c + n]."""
        self.inside[max(CONTEXT - 1, runs.context) : runs.stops[0]] = True
        self.labels = (runs.numbers.astype(np.uint64) << _RUN) | steps.astype(np.uint64)
        """The number of the run of a new row, and the step in the run, 16 bits, [c + n]."""


def _windows(codes: Codes, places: _Places, distances: tuple[int, ...], sampled: int) -> Words:
    """Return the windows of fields: the number of the run, 16 bits, the hash, 32 bits, and the step in the run, 16 bits."""
    ends = codes * _SPREAD < np.uint32(2**32 // sampled)
    ends[:, 1:] &= codes[:, 1:] != codes[:, :-1]
    ends &= places.inside
    found = np.flatnonzero(ends)
    if not len(found):
        return np.empty(0, np.uint64)
    offsets = np.arange(len(codes)) * codes.shape[1]
    rows = found - np.repeat(offsets, np.diff(np.searchsorted(found, offsets), append=len(found)))
    flat, hashes = codes.reshape(-1), np.full(len(found), GOLDEN)
    found -= CONTEXT - 1
    for distance in distances:
        hashes ^= flat[CONTEXT - 1 - distance :][found]
        hashes *= FIRST
        hashes ^= hashes >> CHAIN
    hashes = mixed(hashes)
    hashes >>= _STEP
    np.maximum(hashes, np.uint64(1), out=hashes)
    hashes <<= _HASH
    hashes |= places.labels[rows]
    return hashes
