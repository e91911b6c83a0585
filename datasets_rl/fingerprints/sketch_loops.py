"""Compiled loops of sketches: the windows of an episode with the smallest hashes."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import int64, njit, uint64
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GRAM = np.uint64(0x9FB21C651E98DF25 << 4 & 0xFFFFFFFFFFFFFFFF)
"""Sixteen multiplications by this factor, a multiple of 16, make any integer zero modulo 2^64."""
SPAN = 8
"""Steps of a window before its middle, and as many after it."""
ELEMENTS = 12
"""The elements of a field that have windows: the first ones."""
_GROUP = 3
_COARSE, _FINE = 6.0, 16.0
_SMALLEST_RANGE = 2.0**-7
_SAMPLED = 4
_HASH = np.uint64(32)
_ROWS = numba.types.Array(numba.float64, 2, "C", readonly=True)
_DIGESTS = numba.types.Array(numba.uint64, 2, "C", readonly=True)


@njit(inline="always")  # type: ignore[untyped-decorator]  # numba has no types
def _mixed(word: Any) -> Any:
    word = (word ^ (word >> uint64(30))) * _FIRST
    word = (word ^ (word >> uint64(27))) * _SECOND
    return word ^ (word >> uint64(31))


@njit  # type: ignore[untyped-decorator]  # numba has no types
def _keep(word: Any, step: Any, kept: Any, count: Any) -> Any:
    """Insert a window among those with the smallest hashes, unless its hash is there. Return the number of windows."""
    entry = (word << _HASH) | uint64(step)
    if count == len(kept) and entry >= kept[count - 1]:
        return count
    place = int64(np.searchsorted(kept[:count], entry))
    if place > 0 and kept[place - 1] >> _HASH == word:
        return count
    if place < count and kept[place] >> _HASH == word:
        kept[place] = entry
        return count
    if count < len(kept):
        count += 1
    for number in range(count - 1, place, -1):
        kept[number] = kept[number - 1]
    kept[place] = entry
    return count


@njit(inline="always")  # type: ignore[untyped-decorator]
def _shape(values: Any, middle: Any, levels: Any, sign: Any, word: Any) -> Any:
    """Return the hash of a window of an element: the quantized differences to its middle. 0 stands for no shape."""
    center = values[middle]
    low = high = center
    for offset in range(-SPAN, SPAN + 1, 2):
        value = values[middle + offset]
        low = min(low, value)
        high = max(high, value)
    extent = high - low
    if not extent > _SMALLEST_RANGE * max(abs(low), abs(high)):
        return uint64(0)
    factor = levels / extent
    for offset in range(-SPAN, SPAN + 1, 2):
        difference = (center - values[middle + offset]) * factor
        difference = difference * sign if sign != 0.0 else abs(difference)
        word = (word ^ uint64(int64(np.floor(difference + 0.5)) + 64)) * _GOLDEN
        word ^= word >> uint64(29)
    return word


@njit(inline="always")  # type: ignore[untyped-decorator]
def _is_only(values: Any, middle: Any) -> Any:
    """Return whether no other value of a window is equal to the one in its middle."""
    for offset in range(1, SPAN + 1):
        if values[middle - offset] == values[middle] or values[middle + offset] == values[middle]:
            return False
    return True


@njit  # type: ignore[untyped-decorator]
def _find_extremes(values: Any, highs: Any, lows: Any) -> None:
    """Write the greatest and the least of the 16 values from each on: each step doubles the number of values."""
    count = len(values)
    highs[:count] = values
    lows[:count] = values
    for distance in (1, 2, 4, 8):
        for row in range(count - distance):
            high, low = highs[row + distance], lows[row + distance]
            highs[row] = max(highs[row], high)
            lows[row] = min(lows[row], low)


@compile_for(numba.int64(_ROWS, numba.int64, numba.int64, numba.uint64[::1], numba.int64))
def keep_shapes(values: NDArray[np.float64], first: int, step: int, kept: NDArray[np.uint64], count: int) -> int:
    """Keep windows in whose middle an element is extreme, by the shape of that element and of the next two.

    The hash is the same after an affine change of any element, and mostly after rounding. Its first half depends on one element, so
    that the others are seldom looked at.

    Args:
        values: Values of each element in consecutive steps, [D, n].
        first: The first step in `values` that may be the middle of a window, at least `SPAN`.
        step: The number of the first step of `values` in its episode.
        kept: Hash and step of each window, ascending, [K].
        count: The number of windows in `kept`.

    Returns:
        The new number of windows.
    """
    elements, steps = values.shape
    if steps < first + SPAN + 1:
        return count
    highs, lows = np.empty(steps), np.empty(steps)
    for element in range(0, elements, _GROUP):
        column = values[element]
        _find_extremes(column, highs, lows)
        group = min(_GROUP, elements - element)
        levels = _FINE if group == 1 else _COARSE
        for middle in range(first, steps - SPAN):
            value = column[middle]
            start = middle - SPAN
            is_high = value >= highs[start] and value >= highs[start + 1]
            if not is_high and not (value <= lows[start] and value <= lows[start + 1]):
                continue
            if not _is_only(column, middle):
                continue
            word = _shape(column, middle, levels, 1.0 if is_high else -1.0, uint64(group))
            if word == uint64(0):
                continue
            half = _mixed(word) >> uint64(48) << uint64(16) | uint64(1 << 16)
            if count == len(kept) and half > kept[count - 1] >> _HASH:
                continue
            for other in range(element + 1, element + group):
                if word != uint64(0):
                    word = _shape(values[other], middle, _COARSE, 0.0, word)
            if word != uint64(0):
                count = _keep(half | _mixed(word) >> uint64(48), step + middle, kept, count)
    return count


@compile_for(numba.int64(_DIGESTS, numba.uint64[::1], numba.int64, numba.uint64[::1], numba.int64))
def keep_rows(
    digests: NDArray[np.uint64], gram: NDArray[np.uint64], step: int, kept: NDArray[np.uint64], count: int
) -> int:
    """Keep windows of 16 rows with the same values, a fourth of those that end where the value changes.

    Args:
        digests: Digests of consecutive rows, [n, 2].
        gram: The hash of the last 16 rows and the digest of the last row, which change, [2].
        step: The step of row 0 in its episode.
        kept: As in `keep_shapes`.
        count: As in `keep_shapes`.

    Returns:
        The new number of windows.
    """
    for row in range(len(digests)):
        word = digests[row, 0]
        gram[0] = gram[0] * _GRAM + word
        if word != gram[1] and word % uint64(_SAMPLED) == uint64(0) and step + row >= 2 * SPAN - 1:
            count = _keep(_mixed(gram[0]) >> _HASH | uint64(1), step + row - SPAN, kept, count)
        gram[1] = word
    return count
