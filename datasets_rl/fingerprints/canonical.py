"""The canonical form of values, in which equal values have equal bits, however they are stored.

    row of a field      [0.5, -0.0, nan]   float16, float32 or float64
    words               the bits of 0.5, 0.0 and the only NaN as float32, two numbers a word: uint64 [2]
    digest of the row   sum of the products of the words with random factors, uint64

A row is a step's values in C order, without their shape. These rules decide which rows are equal:

* A number is its value: 1 as a boolean, an integer or a float is the same number. -0.0 is 0.0, and there is one NaN.
* A row of at least `PACKED` numbers that are all integers from 0 to 255 is these bytes, as an image is.
* Any other row of numbers that float32 has is these float32. Otherwise it is float64, or int64 for integers that float64 does not have.
* A text is its UTF-8.
* An image that stays PNG or JPEG is the bytes of its file, because decoders of JPEG differ in the pixels.

The digests are not cryptographic: nobody who wants two different episodes with one digest is kept from making them. The digests of
the files, in the manifest, are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.hashing import FIRST, Words, dot

RowDigests = Words
"""The digest of each row, uint64 [n]."""

PACKED = 64
"""The least number of elements of a row that are hashed as bytes if all of them are integers from 0 to 255."""
_BYTE = 255
_WORD = 8
_BLOCK_BYTES = 1 << 19  # fits the cache of a core


def digest_numbers(values: NDArray[Any]) -> RowDigests:
    """Return the digests of rows of numbers, [n].

    Args:
        values: Numbers of any dtype but complex, [n, ...].
    """
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    digests = np.empty(len(rows), np.uint64)
    block = max(1, _BLOCK_BYTES // (_WORD * max(1, rows.shape[1])))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), block):
            digests[start : start + block] = _digest_block(rows[start : start + block])
    return digests


def fine_rows(values: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows hardly equal others by chance, [m]: bytes, and rows with a number that is no multiple of 1/1024.

    Args:
        values: Numbers of any dtype but complex, [n, ...].
        numbers: The numbers of the rows, [m].
    """
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    if not rows.shape[1] or (rows.dtype.kind != "f" and rows.shape[1] < PACKED):
        return np.zeros(len(numbers), np.bool_)
    if rows.dtype.kind != "f":
        return _are_bytes(rows[numbers])
    fine = _are_fine(rows[numbers, 0])
    others = np.flatnonzero(~fine)  # the first element decides for most rows
    if len(others):
        rest = rows[numbers[others]]
        fine[others] = _are_fine(rest).any(axis=1) | _are_bytes(rest)
    return fine


def digest_bytes(rows: NDArray[np.uint8]) -> RowDigests:
    """Return the digests of rows of the same number of bytes, [n, ...] -> [n]."""
    size = math.prod(rows.shape[1:])
    digests = np.zeros(len(rows), np.uint64)
    block = max(1, _BLOCK_BYTES // max(size, 1))
    for start in range(0, len(rows) if size else 0, block):
        part = rows[start : start + block]
        words = _room(len(part), size)
        words.view(np.uint8)[:, :size] = part.reshape(len(part), size)
        digests[start : start + block] = _sized(dot(words), size)
    return digests


def digest_spans(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> RowDigests:
    """Return the digest of each of n runs of bytes that follow each other, given the end of each, [n].

    The digest of no bytes is zero, as that of an unknown image.
    """
    sizes, digests = np.diff(ends, prepend=0), np.zeros(len(ends), np.uint64)
    for size in np.unique(sizes[sizes > 0]).tolist():
        rows = np.flatnonzero(sizes == size)
        digests[rows] = digest_bytes(np.stack([data[end - size : end] for end in ends[rows].tolist()]))
    return digests


def digest_texts(texts: Sequence[str]) -> RowDigests:
    """Return the digest of each text, [V]. The digest of an empty text is zero."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return digest_spans(np.frombuffer(b"".join(encoded), np.uint8), ends)


def _room(count: int, size: int) -> Words:
    """Return words for rows of some bytes, with zeros after the last byte."""
    words = np.empty((count, -(-size // _WORD)), np.uint64)
    if size % _WORD:
        words[:, -1] = 0
    return words


def _sized(digests: Words, kind: int) -> Words:
    """Return digests that differ for rows of other sizes, and for other kinds of words."""
    digests += np.uint64(kind * int(FIRST) % (1 << 64))
    return digests


def _digest_block(rows: NDArray[Any]) -> RowDigests:
    if rows.shape[1] < PACKED:
        return _digest_floats(rows)
    packed = _are_bytes(rows)
    if packed.all():
        return digest_bytes(rows.astype(np.uint8, copy=False))
    digests = _digest_floats(rows)
    if packed.any():
        digests[packed] = digest_bytes(rows[packed].astype(np.uint8))
    return digests


def _digest_floats(rows: NDArray[Any]) -> RowDigests:
    count, size = rows.shape
    kind, item_bytes = rows.dtype.kind, rows.dtype.itemsize
    if item_bytes > (4 if kind == "f" else 2):  # float32 has all others
        return _digest_wide(rows, rows.astype(np.float64, copy=False))
    if size == 1:
        single = np.empty(rows.shape, np.float32)
        _fill(single, rows)
        words = single.view(np.uint32).astype(np.uint64)
    else:
        words = _room(count, 4 * size)
        _fill(words.view(np.float32), rows)
    return _sized(dot(words), size + (1 << 32))


def _digest_wide(rows: NDArray[Any], numbers: NDArray[np.float64]) -> RowDigests:
    """Return the digests of rows of numbers that float32 may not have, given them as float64, too."""
    size = rows.shape[1]
    wide = np.zeros(len(rows), np.bool_)
    if rows.dtype.kind in "iu":
        wide = ((numbers.astype(rows.dtype) != rows) | (numbers > np.iinfo(rows.dtype).max)).any(axis=1)
    narrow = ~wide & _has_float32(numbers[:, :1]).all(axis=1)
    if narrow.any():  # the first number decides for most rows
        narrow[narrow] = _has_float32(numbers[narrow]).all(axis=1)
    if narrow.all():
        return _digest_floats(numbers.astype(np.float32))
    words = _room(len(rows), _WORD * size)
    _fill(words.view(np.float64), numbers)
    words[wide] = rows[wide].astype(np.uint64)
    digests = _sized(dot(words), size + (2 << 32))
    if narrow.any():
        digests[narrow] = _digest_floats(numbers[narrow].astype(np.float32))
    return digests


def _has_float32(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (numbers.astype(np.float32) == numbers) | np.isnan(numbers)
    return found


def _fill(room: NDArray[np.floating[Any]], rows: NDArray[Any]) -> None:
    """Copy numbers, with one zero and one NaN."""
    room[:, : rows.shape[1]] = rows
    room += room.dtype.type(0)  # -0.0 + 0.0 is 0.0
    if room.size and np.isnan(room.max()):
        room[np.isnan(room)] = np.nan


def _are_fine(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = numbers * numbers.dtype.type(1024)
    fine: NDArray[np.bool_] = scaled != np.floor(scaled)
    return fine


def _are_bytes(rows: NDArray[Any]) -> NDArray[np.bool_]:
    count, size = rows.shape
    if size < PACKED:
        return np.zeros(count, np.bool_)
    if rows.dtype.kind == "b" or rows.dtype == np.uint8:
        return np.ones(count, np.bool_)
    fits = np.asarray((rows[:, 0] >= 0) & (rows[:, 0] <= _BYTE))
    if fits.any():  # the first element decides for most rows of other numbers
        fits &= ((rows >= 0) & (rows <= _BYTE) & (rows == np.floor(rows))).all(axis=1)
    return fits
