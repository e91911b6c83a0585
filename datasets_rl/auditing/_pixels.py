"""The pixels of a grid in the images of a block, and what is counted of these pixels, in compiled loops."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.data import BRIGHT, DARK
from datasets_rl.loop_compiler import compile_for

COUNTS = 6
"""Numbers of each image that `count_pixels` sets."""

_IMAGES = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_GRIDS, _PLACES, _NUMBERS = numba.uint8[:, ::1], numba.uint32[::1], numba.float32[:, ::1]


@compile_for(numba.void(_IMAGES, _PLACES, _PLACES, numba.int64, _GRIDS, _NUMBERS), reorder=True)
def count_pixels(
    images: NDArray[np.uint8],
    places: NDArray[np.uint32],
    neighbors: NDArray[np.uint32],
    channels: int,
    grids: NDArray[np.uint8],
    counts: NDArray[np.float32],
) -> None:
    """Copy the pixels of a grid of each image, and count.

    Args:
        images: Images, [N, values].
        places: Place of each value of the grid in an image, [F].
        neighbors: Place of the value one column to the right, [F].
        channels: Number of channels, the last axis of the grid.
        grids: The values of the grid, which are set here, [N, F].
        counts: Numbers of each image, which are set here, [N, 6]: dark values, bright values, and the sums of the differences from
            the values to the right, of the differences from the next image, of the squares, and of the squares of the sums of
            the channels. The difference of the last image is infinite.
    """
    size = len(places)
    right = np.empty(size, np.uint8)
    for image in range(len(images)):
        for number in range(size):
            grids[image, number] = images[image, places[number]]
        for number in range(size):
            right[number] = images[image, neighbors[number]]
        dark = bright = contrast = squares = grays = np.float32(0)
        for number in range(size):
            value = np.float32(grids[image, number])
            dark += np.float32(value < DARK)
            bright += np.float32(value > BRIGHT)
            contrast += abs(np.float32(right[number]) - value)
            squares += value * value
        for pixel in range(0, size, channels):
            gray = np.float32(0)
            for channel in range(channels):
                gray += np.float32(grids[image, pixel + channel])
            grays += gray * gray
        counts[image, 0], counts[image, 1], counts[image, 2] = dark, bright, contrast
        counts[image, 3], counts[image, 4], counts[image, 5] = np.inf, squares, grays
    for image in range(len(images) - 1):
        apart = np.float32(0)
        for number in range(size):
            apart += abs(np.float32(grids[image + 1, number]) - np.float32(grids[image, number]))
        counts[image, 3] = apart


@compile_for(numba.void(_GRIDS, _NUMBERS, _NUMBERS), reorder=True)
def multiply(grids: NDArray[np.uint8], patterns: NDArray[np.float32], products: NDArray[Any]) -> None:
    """Set the scalar product of each grid and each pattern. Threads of a matrix library would compete with those of the audit.

    Args:
        grids: Grids, [N, F].
        patterns: Patterns, [K, F].
        products: The result, [N, K].
    """
    for image in range(len(grids)):
        for pattern in range(len(patterns)):
            product = np.float32(0)
            for number in range(grids.shape[1]):
                product += np.float32(grids[image, number]) * patterns[pattern, number]
            products[image, pattern] = product
