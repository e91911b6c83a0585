"""Compiled loops of fingerprints: digests of rows, and of the rows of an episode."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import float64, int64, njit, uint64
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from datasets_rl.fingerprints.constants import FIRST, GOLDEN, GRAMS, ROTATION_A, ROTATION_B, ROW_GRAM, ROWS, SECOND
from datasets_rl.loop_compiler import compile_for, pointer_to

_BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_FLOATS = numba.types.Array(numba.float32, 2, "C", readonly=True)
_DOUBLES = numba.types.Array(numba.float64, 2, "C", readonly=True)
_ENDS, _FLAGS = numba.int64[::1], numba.boolean[::1]
_PAIRS = numba.uint64[:, ::1]
_ONE, _BITS = np.uint64(1), np.uint64(63)


@intrinsic
def _word_at(typing_context: Any, data: Any, position: Any) -> Any:
    """Return the 8 bytes at a position of an array of bytes as an integer."""
    del typing_context, position

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature, arguments, 0)
        word = builder.bitcast(pointer, ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), generate


word_at: Any = _word_at  # its first argument is passed by the compiler


@njit(inline="always")
def _mixed(word: Any) -> Any:
    word = (word ^ (word >> uint64(30))) * FIRST
    word = (word ^ (word >> uint64(27))) * SECOND
    return word ^ (word >> uint64(31))


@njit(inline="always")
def _spread(word: Any, number: Any) -> Any:
    """Return the mixed bits of a word at a place of its row. Instructions for several words at once do this."""
    word = (word ^ (word >> uint64(32))) + number * GOLDEN
    word = (word ^ (word >> uint64(29))) * FIRST
    return word ^ (word >> uint64(32))


@intrinsic
def _bits_of(typing_context: Any, value: Any) -> Any:
    """Return the bits of a float64."""
    del typing_context, value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate


bits_of: Any = _bits_of  # its first argument is passed by the compiler


@njit(inline="always")
def _canonical(value: Any) -> Any:
    """Return the bits of a number, the same for 0.0 and -0.0, and for every NaN."""
    return bits_of(np.nan if np.isnan(value) else value + 0.0)


def _digest_rows(values: NDArray[Any], digests: NDArray[np.uint64], fine: NDArray[np.bool_]) -> None:
    """Compute the digests of rows of numbers.

    Args:
        values: The numbers, [n, D].
        digests: The digests are written here, [n, 2].
        fine: Whether a row has a number that is no multiple of 1/1024 is written here, [n].
    """
    count, size = values.shape
    for row in range(count):
        first, second = uint64(size), uint64(size)
        for number in range(size):
            word = _spread(_canonical(float64(values[row, number])), uint64(number + 1))
            first += word
            second += (word * SECOND) ^ (word >> uint64(23))
        digests[row, 0] = _mixed(first)
        digests[row, 1] = _mixed(second)
        is_fine = False
        for number in range(size):
            scaled = float64(values[row, number]) * 1024.0
            if scaled != np.floor(scaled):
                is_fine = True
                break
        fine[row] = is_fine


_digest_float32 = compile_for(numba.void(_FLOATS, _PAIRS, _FLAGS))(_digest_rows)
_digest_float64 = compile_for(numba.void(_DOUBLES, _PAIRS, _FLAGS))(_digest_rows)


def digest_rows(values: NDArray[Any], digests: NDArray[np.uint64], fine: NDArray[np.bool_]) -> None:
    """Compute the digests of rows of float32 or float64, see `_digest_rows`."""
    (_digest_float32 if values.dtype == np.float32 else _digest_float64)(values, digests, fine)


@compile_for(numba.void(_BYTES, _ENDS, _PAIRS))
def digest_bytes(data: NDArray[np.uint8], ends: NDArray[np.int64], digests: NDArray[np.uint64]) -> None:
    """Compute the digests of runs of bytes that follow each other. No bytes leave zeros.

    Args:
        data: The bytes of all runs, [B].
        ends: The byte after the last byte of each run, [n].
        digests: The digests are written here, zeros [n, 2].
    """
    start = int64(0)
    for row in range(len(ends)):
        size = ends[row] - start
        if size <= 0:
            continue
        whole = size // 8
        first, second = GOLDEN * uint64(size), uint64(size)
        for number in range(whole):
            word = _spread(word_at(data, start + 8 * number), uint64(number + 1))
            first += word
            second += (word * SECOND) ^ (word >> uint64(23))
        last = uint64(0)
        for number in range(size % 8):
            last |= uint64(data[start + 8 * whole + number]) << uint64(8 * number)
        word = _spread(last, uint64(whole + 1))
        first += word
        second += (word * SECOND) ^ (word >> uint64(23))
        digests[row, 0], digests[row, 1] = _mixed(first), _mixed(second)
        start = ends[row]


@njit(inline="always")
def _is_predicted(state: Any, last: Any, value: Any) -> Any:
    """Return whether a number continues the line of the last two, and keep the number."""
    size = abs(value) + abs(last[0]) + abs(last[1])
    predicted = state[2] >= uint64(2) and abs(value - 2 * last[0] + last[1]) <= 1e-6 * size
    last[1] = last[0]
    last[0] = value
    return predicted


@njit(inline="always")
def _count_row(state: Any, second: Any, is_fine: Any, predicted: Any) -> None:
    """Count a row that the episode did not have before, or had in another place among the 8 last rows."""
    bit, gram = _mixed(second), _mixed(state[3])
    place, mask = ROWS + int64(bit >> uint64(60)), _ONE << (bit & _BITS)
    gram_place, gram_mask = GRAMS + int64(gram >> uint64(60)), _ONE << (gram & _BITS)
    if not state[place] & mask:
        state[place] |= mask
        state[6] += _ONE
        if not predicted:
            state[4 if is_fine else 5] += _ONE
    elif not state[gram_place] & gram_mask and not predicted:
        state[5] += _ONE
    state[gram_place] |= gram_mask


@njit(inline="always")
def _bits(state: Any) -> Any:
    """Return the bits of information of a complete episode: 16 for a new fine row, and log2 of the choices for another."""
    choices, bits = state[6], uint64(0)
    while choices > _ONE:
        bits += _ONE
        choices >>= _ONE
    return min(uint64(16) * state[4] + bits * state[5], uint64(0xFFFFFFFF))


@compile_for(
    "void(uint64[:, ::1], boolean[::1], float64[::1], int64[::1], int64[::1], boolean[::1], uint64[::1], float64[::1], "
    "uint64[:, ::1], uint32[:, ::1])"
)
def fold_rows(
    rows: NDArray[np.uint64],
    fine: NDArray[np.bool_],
    values: NDArray[np.float64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ended: NDArray[np.bool_],
    state: NDArray[np.uint64],
    last: NDArray[np.float64],
    digests: NDArray[np.uint64],
    counts: NDArray[np.uint32],
) -> None:
    """Fold the digests of rows of one field into those of episodes.

    Args:
        rows: Digests of rows, [n, 2].
        fine: Which rows are fine, [n].
        values: The values of a field of one number, [n], or nothing.
        starts: The first row of each run of rows of an episode, [m]. The first run continues the episode of `state`.
        stops: The row after the last row of each run, [m].
        ended: Which runs end their episode, [m].
        state: The state of the open episode, [STATE], which changes. Zeros stand for an episode without rows.
        last: The last two values of the open episode, [2].
        digests: The digest of each run that ends its episode is written here, [m, 2].
        counts: The bits of information and the number of distinct rows of such a run are written here, [m, 2].
    """
    for run in range(len(starts)):
        for row in range(starts[run], stops[run]):
            first, second = rows[row, 0], rows[row, 1]
            state[0] = state[0] * ROTATION_A + first
            state[1] = state[1] * ROTATION_B + second
            state[3] = state[3] * ROW_GRAM + first
            predicted = _is_predicted(state, last, values[row]) if len(values) else False
            state[2] += _ONE
            _count_row(state, second, fine[row], predicted)
        if ended[run]:
            digests[run, 0] = _mixed(state[0] + state[2])
            digests[run, 1] = _mixed(state[1] ^ state[2])
            counts[run, 0], counts[run, 1] = _bits(state), state[6]
            state[:] = 0
