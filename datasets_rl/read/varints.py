"""Branch-free decoder of protobuf's varints, consecutive integers of 1 to 10 bytes.

byte      | 1 low 7 bits | 1 next 7 bits | 0 last bits |      the top bit is set if another byte follows
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.loop_compiler import compile_for

WIDEST = 10
"""Maximum number of bytes of an integer."""

_SIGNATURE = numba.int64(numba.types.Array(numba.uint8, 1, "C", readonly=True), numba.uint64[::1])


def decode(raw: NDArray[np.uint8], out: NDArray[np.int64]) -> int:
    """Decode consecutive variable-length integers (varints of protocol buffers).

    Args:
        raw: The bytes. The last byte must be the end of an integer.
        out: Output, [V], where V is the number of bytes in `raw` below 128.

    Returns:
        The position of the first byte that exceeds the maximum length of the integer, or -1.
    """
    return int(_decode(raw, out.view(np.uint64)))


@compile_for(_SIGNATURE)
def _decode(raw: NDArray[np.uint8], out: NDArray[np.uint64]) -> int:
    value = np.uint64(0)
    shift = np.uint64(0)
    row = np.int64(0)
    wrong = -1
    for at in range(len(raw)):
        byte = np.uint64(raw[at])
        if shift >= np.uint64(7 * WIDEST):
            wrong = at
            break
        value |= (byte & np.uint64(0x7F)) << shift
        out[row] = value
        more = byte >> np.uint64(7)
        row += np.int64(1) - np.int64(more)
        value *= more
        shift = (shift + np.uint64(7)) * more
    return wrong
