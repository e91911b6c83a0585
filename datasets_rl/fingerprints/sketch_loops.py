"""Compiled loops of sketches: the windows of an episode with the smallest hashes."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import int64, njit, uint64
from numpy.typing import NDArray

from datasets_rl.fingerprints.constants import (
    COARSE,
    FINE,
    FIRST,
    GOLDEN,
    HASH_BITS,
    SAMPLED,
    SECOND,
    SMALLEST_RANGE,
    SPAN,
    WINDOW_GRAM,
)
from datasets_rl.loop_compiler import compile_for

_VALUES, _NUMBERS, _PLACES = numba.float64[:, ::1], numba.int64[::1], numba.int64[:, ::1]
_DIGESTS, _PAIRS = numba.uint64[:, :, ::1], numba.uint64[:, ::1]
_FLAGS, _STATE, _WORDS = numba.boolean[::1], numba.int64[::1], numba.uint64[::1]


@njit(inline="always")
def _mixed(word: Any) -> Any:
    word = (word ^ (word >> uint64(30))) * FIRST
    word = (word ^ (word >> uint64(27))) * SECOND
    return word ^ (word >> uint64(31))


@njit
def _keep(word: Any, step: Any, kept: Any, count: Any) -> Any:
    """Insert a window among those with the smallest hashes, unless its hash is there. Return the number of windows."""
    entry = (word << HASH_BITS) | uint64(step)
    if count == len(kept) and entry >= kept[count - 1]:
        return count
    place = int64(np.searchsorted(kept[:count], entry))
    if place > 0 and kept[place - 1] >> HASH_BITS == word:
        return count
    if place < count and kept[place] >> HASH_BITS == word:
        kept[place] = entry
        return count
    if count < len(kept):
        count += 1
    for number in range(count - 1, place, -1):
        kept[number] = kept[number - 1]
    kept[place] = entry
    return count


@njit(inline="always")
def _shape(values: Any, middle: Any, levels: Any, word: Any) -> Any:
    """Return the hash of a window of an element: the quantized differences to its middle. 0 stands for no shape."""
    center = values[middle]
    low = high = center
    for offset in range(-SPAN, SPAN + 1, 2):
        value = values[middle + offset]
        if np.isnan(value):
            return uint64(0)
        low = min(low, value)
        high = max(high, value)
    extent = high - low
    if not extent > SMALLEST_RANGE * max(abs(low), abs(high)):
        return uint64(0)
    factor = levels / extent
    for offset in range(-SPAN, SPAN + 1, 2):
        difference = abs(center - values[middle + offset]) * factor
        word = (word ^ uint64(int64(np.floor(difference + 0.5)) + 64)) * GOLDEN
        word ^= word >> uint64(29)
    return word


@njit(inline="always")
def _is_only(values: Any, middle: Any) -> Any:
    """Return whether no other value of a window is equal to the one in its middle."""
    for offset in range(1, SPAN + 1):
        if values[middle - offset] == values[middle] or values[middle + offset] == values[middle]:
            return False
    return True


@njit
def _keep_window(values: Any, first: Any, group: Any, middle: Any, kind: Any, step: Any, kept: Any, count: Any) -> Any:
    """Keep the window of a group of elements around a step. Return the number of windows.

    The first half of the hash depends on one element, so that the others are seldom looked at.
    """
    word = _shape(values[first], middle, FINE if group == 1 else COARSE, uint64(group + 4 * kind))
    half = _mixed(word) >> uint64(48) << uint64(16) | uint64(1 << 16)
    if word == uint64(0) or (count == len(kept) and half > kept[count - 1] >> HASH_BITS):
        return count
    for other in range(first + 1, first + group):
        if word != uint64(0):
            word = _shape(values[other], middle, COARSE, word)
    if word == uint64(0):
        return count
    return _keep(half | _mixed(word) >> uint64(48), step, kept, count)


@njit
def _keep_rows(digests: Any, start: Any, stop: Any, gram: Any, step: Any, kept: Any, count: Any) -> Any:
    """Keep windows of 16 rows with the same values, a fourth of those that end where the value changes."""
    for row in range(start, stop):
        word = digests[row, 0]
        gram[0] = gram[0] * WINDOW_GRAM + word
        number = step + row - start
        if word != gram[1] and word % uint64(SAMPLED) == uint64(0) and number >= 2 * SPAN - 1:
            count = _keep(_mixed(gram[0]) >> HASH_BITS | uint64(1), number - SPAN, kept, count)
        gram[1] = word
    return count


@compile_for(
    numba.int64(
        _VALUES,
        numba.float32[:, ::1],
        _NUMBERS,
        _NUMBERS,
        _PLACES,
        numba.int64,
        _DIGESTS,
        _PAIRS,
        _NUMBERS,
        _NUMBERS,
        _FLAGS,
        _STATE,
        _WORDS,
        _PAIRS,
    )
)
def sketch_rows(
    values: NDArray[np.float64],
    anchors: NDArray[np.float32],
    firsts: NDArray[np.int64],
    groups: NDArray[np.int64],
    places: NDArray[np.int64],
    tail: int,
    digests: NDArray[np.uint64],
    grams: NDArray[np.uint64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ended: NDArray[np.bool_],
    state: NDArray[np.int64],
    kept: NDArray[np.uint64],
    sketches: NDArray[np.uint64],
) -> int:
    """Keep the windows of episodes, and write those of the episodes that end.

    Args:
        values: Elements of float fields in consecutive steps, [C, tail + n]: the last steps of the open episode, and new ones.
        anchors: The values, and their changes, of which extreme ones are the middle of a window, [A, tail + n].
        firsts: The first element in `values` of the group of each anchor, [A].
        groups: The number of elements in the group of each anchor, [A].
        places: Step and anchor of each value that may be extreme, ascending, [P, 2].
        tail: The number of steps of the open episode before the new ones.
        digests: Digests of the rows of other fields, [F, n, 2].
        grams: The hash of the last 16 rows and the digest of the last row of these fields, which change, [F, 2].
        starts: The first row of each run of rows of an episode, [m]. The first run continues the open episode.
        stops: The row after the last row of each run, [m].
        ended: Which runs end their episode, [m].
        state: The number of windows in `kept`, and of steps of the open episode, which change, [2].
        kept: Hash and step of each window of the open episode, ascending, which change, [K].
        sketches: The windows of the episodes that end are written here, [E, K].

    Returns:
        The number of episodes that end.
    """
    place, episodes, count = 0, 0, state[0]
    kinds = len(anchors) // 2
    for run in range(len(starts)):
        steps = state[1]
        begin = max(starts[run] + tail - steps, 0)
        zero = starts[run] + tail - steps
        earliest = max(begin + SPAN, starts[run] + tail - SPAN)
        while place < len(places) and places[place, 0] < stops[run] + tail - SPAN:
            middle, anchor = places[place, 0], places[place, 1]
            place += 1
            kind = 1 if anchor >= kinds else 0
            is_inside = middle >= earliest and middle >= begin + SPAN + kind
            if is_inside and _is_only(anchors[anchor], middle):
                count = _keep_window(values, firsts[anchor], groups[anchor], middle, kind, middle - zero, kept, count)
        for field in range(len(digests)):
            count = _keep_rows(digests[field], starts[run], stops[run], grams[field], steps, kept, count)
        state[1] = steps + stops[run] - starts[run]
        if ended[run]:
            sketches[episodes] = kept
            episodes += 1
            kept[:] = 0
            grams[:] = 0
            count, state[1] = 0, 0
    state[0] = count
    return episodes
