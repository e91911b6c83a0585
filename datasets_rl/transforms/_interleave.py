"""Channels of several images next to each other for each pixel, in a compiled loop that is imported only when needed.

frames    r g b r g b ...  of frame 0, then of frame 1, ...
out       r g b of frame 0, r g b of frame 1, ... of pixel 0, then of pixel 1, ...
"""

from __future__ import annotations

from typing import Any

import numba

from datasets_rl.loop_compiler import compile_for

CHANNELS = 3
"""Bytes of a pixel in a frame."""
_USUAL_FRAMES = 4
"""Number of frames whose loop is unrolled: loops over a number that is not known before take up to four times as long."""


@compile_for(numba.void(numba.uint8[:, :, ::1], numba.uint8[:, :, ::1]))
def interleave(frames: Any, out: Any) -> None:
    """Interleave the pixels of N frames.

    Args:
        frames: B stacks of N frames of P pixels, [B, N, P * CHANNELS].
        out: Output, [B, P, N * CHANNELS].
    """
    count = frames.shape[1]
    for number in range(out.shape[0]):
        for pixel in range(out.shape[1]):
            if count == _USUAL_FRAMES:
                for frame in range(_USUAL_FRAMES):
                    for channel in range(CHANNELS):
                        value = frames[number, frame, CHANNELS * pixel + channel]
                        out[number, pixel, CHANNELS * frame + channel] = value
            else:
                for frame in range(count):
                    for channel in range(CHANNELS):
                        value = frames[number, frame, CHANNELS * pixel + channel]
                        out[number, pixel, CHANNELS * frame + channel] = value
