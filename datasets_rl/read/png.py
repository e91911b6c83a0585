"""The pixels of plain PNG images, at twice the speed of pillow and without holding the interpreter.

A row is stored as differences to what lies left of it and above it; its first byte says to which:

    0  nothing      1  left      2  above      3  mean of both      4  whichever of left, above, and above left
                                                                       is nearest to left + above - above left
"""

from __future__ import annotations

import zlib
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.compiled import compiled

try:
    from isal import isal_zlib as inflating
    from isal.igzip_lib import IsalError

    _ERRORS: tuple[Any, ...] = (zlib.error, IsalError)
except ImportError:  # no wheel for this machine
    inflating = zlib  # type: ignore[misc]  # the same interface
    _ERRORS = (zlib.error,)

__all__ = ["decode"]

_READ_ONLY = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_SIGNATURE = numba.void(_READ_ONLY, numba.uint8[:, ::1], numba.int64)


def decode(packed: bytes, out: NDArray[np.uint8]) -> None:
    """Decode the pixels of an image of 8 bits a channel that is not interlaced.

    Args:
        packed: The content of its IDAT chunks, joined.
        out: [rows, columns, channels], contiguous; the pixels are put there.

    Raises:
        ValueError: If they are damaged, or more or fewer than that.
    """
    rows, columns, channels = out.shape
    size = rows * (columns * channels + 1)
    stream = inflating.decompressobj()
    try:
        inflated = stream.decompress(packed, size + 1)
    except _ERRORS as error:
        raise ValueError(f"its pixels do not inflate: {error}") from error
    if len(inflated) != size or not stream.eof:
        raise ValueError(f"its pixels are cut, or more than the {size:,} bytes that it declares")
    raw = np.frombuffer(inflated, np.uint8).reshape(rows, -1)
    if raw[:, 0].max() > 4:
        raise ValueError(f"a row has filter {raw[:, 0].max()}; expected 4 at most")
    _undo(raw, out.reshape(rows, -1), channels)


@compiled(_SIGNATURE)
def _undo(raw: NDArray[np.uint8], out: NDArray[np.uint8], step: int) -> None:
    """Add up the differences of each row, in place of `out`."""
    rows, width = out.shape
    above = np.zeros(width, np.uint8)
    for y in range(rows):
        kind, line, row = raw[y, 0], raw[y, 1:], out[y]
        if kind == 0:
            row[:] = line
        elif kind == 1:
            row[:step] = line[:step]
            for x in range(step, width):
                row[x] = line[x] + row[x - step]
        elif kind == 2:
            for x in range(width):
                row[x] = line[x] + above[x]
        elif kind == 3:
            for x in range(width):
                before = int(row[x - step]) if x >= step else 0
                row[x] = line[x] + np.uint8((before + int(above[x])) >> 1)
        else:
            for x in range(width):
                left = int(row[x - step]) if x >= step else 0
                corner = int(above[x - step]) if x >= step else 0
                up = int(above[x])
                far, near, last = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                best = left if far <= near and far <= last else up if near <= last else corner
                row[x] = line[x] + np.uint8(best)
        above = row
