"""Loops over the frames of a write, without Python between two frames, imported only when needed."""

from __future__ import annotations

from typing import Any

import numba

from datasets_rl.loop_compiler import compile_for, copy_items

_BYTES, _NUMBERS = numba.uint8[::1], numba.int64[::1]
_FRAMES = numba.types.Array(numba.uint8, 2, "C", readonly=True)


@compile_for(numba.int64(_FRAMES, _BYTES, _NUMBERS, _BYTES, _NUMBERS, _NUMBERS, _NUMBERS, *(numba.int64,) * 3))
def place_frames(
    frames: Any,
    compressed: Any,
    ends: Any,
    data: Any,
    live: Any,
    cursor: Any,
    references: Any,
    length_bits: int,
    segment_bytes: int,
    first: int,
) -> int:
    """Copy the frames from `first` on to a segment, as far as they fit. Return the number after the last copied frame.

    A frame that zstd could not make smaller is copied uncompressed.

    Args:
        frames: Frames, uint8 [n, bytes].
        compressed: The same frames compressed and joined, uint8 [B].
        ends: Byte after the last byte of each frame in `compressed`, [n].
        data: Output: all segments, uint8 [S * segment_bytes].
        live: Output, [S]: the bytes of each segment that references name.
        cursor: First free byte of the segment, which moves, and the byte after the segment's last byte, [2].
        references: Output, [n]: ``first byte << length_bits | bytes`` of each frame.
        length_bits: See `references`.
        segment_bytes: Size of a segment in bytes.
        first: Number of the first frame.
    """
    count: int = ends.size
    start = ends[first - 1] if first else 0
    for number in range(first, count):
        head, stop = cursor[0], ends[number]
        length = min(stop - start, frames.shape[1])
        if head + length > cursor[1]:
            return number
        if length < frames.shape[1]:
            copy_items(compressed, start, data, head, length)
        else:
            copy_items(frames, number * length, data, head, length)
        references[number] = head << length_bits | length
        live[head // segment_bytes] += length
        cursor[0] = head + length
        start = stop
    return count


@compile_for(numba.void(_NUMBERS, _NUMBERS, *(numba.int64,) * 3))
def count_references(references: Any, live: Any, length_bits: int, segment_bytes: int, sign: int) -> None:
    """Add the bytes of frames to the live bytes of their segments, or subtract the bytes.

    Args:
        references: References, see `place_frames`, [n].
        live: Output, [S]: the bytes of each segment that references name.
        length_bits: See `place_frames`.
        segment_bytes: Size of a segment in bytes.
        sign: 1 or -1.
    """
    for reference in references:
        live[(reference >> length_bits) // segment_bytes] += sign * (reference & ((1 << length_bits) - 1))
