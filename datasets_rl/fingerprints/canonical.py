"""The canonical form of values, in which equal values have equal bits, however they are stored.

    row of a field      [0.5, -0.0, nan]   float16, float32 or float64
    words               the bits of 0.5, 0.0 and the only NaN as float64, uint64 [3]
    digest of the row   two sums of mixed words, uint64 [2]

A row is a step's values in C order, without their shape. These rules decide which rows are equal:

* A number is its value as float64: 1 as a boolean, an integer or a float is the same number. -0.0 is 0.0, and there is one
  NaN. An integer that float64 does not have is equal to the same integer only.
* A row of at least `PACKED` numbers that are all integers from 0 to 255 is these bytes, as an image is.
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

from datasets_rl.fingerprints.choice import row_loops

RowDigests = NDArray[np.uint64]
"""The digest of each row, uint64 [n, 2]."""

PACKED = 64
"""The least number of elements of a row that are hashed as bytes if all of them are integers from 0 to 255."""
_EXACT = 1 << 53
_BYTE = 255
_CALL, _NUMBER, _BYTE_TIME = 50_000, 30, 4
"""Nanoseconds of a call of the loops in numpy, for a number, and for a byte."""


def digest_numbers(values: NDArray[Any]) -> tuple[RowDigests, NDArray[np.bool_]]:
    """Return the digests of rows of numbers, and which rows are fine.

    A row is fine if it is bytes, or has a value that is no multiple of 1/1024: two fine rows are hardly equal by chance.

    Args:
        values: Numbers of any dtype but complex, [n, ...].

    Returns:
        The digests, [n, 2], and which rows are fine, bool [n].
    """
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    digests, fine = np.empty((len(rows), 2), np.uint64), np.ones(len(rows), np.bool_)
    packed = _are_bytes(rows)
    if packed.all():
        return (digest_bytes(rows.astype(np.uint8, copy=False)), fine) if len(rows) else (digests, fine)
    floats = rows if rows.dtype == np.float32 else rows.astype(np.float64, copy=False)
    row_loops(_CALL + _NUMBER * rows.size).digest_rows(np.ascontiguousarray(floats), digests, fine)
    _digest_wide_integers(rows, digests)
    if packed.any():
        digests[packed] = digest_bytes(rows[packed].astype(np.uint8))
        fine[packed] = True
    return digests, fine


def digest_bytes(rows: NDArray[np.uint8]) -> RowDigests:
    """Return the digests of rows of the same number of bytes, [n, ...]."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    size = flat.size // len(rows) if len(rows) else 0
    return digest_spans(flat, np.arange(1, len(rows) + 1, dtype=np.int64) * size)


def digest_spans(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> RowDigests:
    """Return the digest of each of n runs of bytes that follow each other, given the end of each, [n, 2].

    The digest of no bytes is zeros, as an unknown image is.
    """
    digests = np.zeros((len(ends), 2), np.uint64)
    loops = row_loops(_CALL * (1 + len(ends) // 8) + _BYTE_TIME * data.size)
    loops.digest_bytes(np.ascontiguousarray(data), np.ascontiguousarray(ends, np.int64), digests)
    return digests


def digest_texts(texts: Sequence[str]) -> RowDigests:
    """Return the digest of each text, [V, 2]. The digest of an empty text is zeros."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return digest_spans(np.frombuffer(b"".join(encoded), np.uint8), ends)


def _are_bytes(rows: NDArray[Any]) -> NDArray[np.bool_]:
    count, size = rows.shape
    if size < PACKED:
        return np.zeros(count, np.bool_)
    if rows.dtype.kind == "b" or rows.dtype == np.uint8:
        return np.ones(count, np.bool_)
    fits = np.asarray((rows[:, 0] >= 0) & (rows[:, 0] <= _BYTE))
    if fits.any():  # the first element decides for most rows of other numbers
        with np.errstate(invalid="ignore"):
            fits &= ((rows >= 0) & (rows <= _BYTE) & (rows == np.floor(rows))).all(axis=1)
    return fits


def _digest_wide_integers(rows: NDArray[Any], digests: RowDigests) -> None:
    """Replace the digests of rows with an integer that float64 does not have by the digests of their 64-bit integers."""
    if rows.dtype.kind not in "iu" or rows.dtype.itemsize < np.dtype(np.int64).itemsize:
        return
    wide = ((rows > _EXACT) | (rows < -_EXACT)).any(axis=1)
    for row in np.flatnonzero(wide).tolist():
        if any(int(float(value)) != value for value in rows[row].tolist()):
            digests[row] = digest_bytes(np.ascontiguousarray(rows[row : row + 1], "<i8").view(np.uint8))
