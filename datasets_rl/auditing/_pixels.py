"""The pixels of a grid in the images of a block, and what is counted of these pixels, in compiled loops."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.data import BRIGHT, DARK
from datasets_rl.loop_compiler import compile_for

COUNTS = 5
"""Numbers of each image that `count_pixels` sets."""

_IMAGES = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_GRIDS, _PLACES, _NUMBERS = numba.uint8[:, ::1], numba.uint32[::1], numba.float32[:, ::1]
_CHANGES = numba.float32[::1]
_GRID = numba.uint8[::1]
_VALUES = numba.types.Array(numba.uint8, 1, "C", readonly=True)


@compile_for(numba.void(_VALUES, _PLACES, numba.boolean, _GRID))
def _copy_pixels(
    image: NDArray[np.uint8], places: NDArray[np.uint32], side_by_side: bool, grid: NDArray[np.uint8]
) -> None:
    """Copy the values at some places. Three channels that lie side by side, as in most images, are copied in a third of the time."""
    if side_by_side:
        for pixel in range(len(places) // 3):
            place = places[3 * pixel]
            grid[3 * pixel] = image[place]
            grid[3 * pixel + 1] = image[place + 1]
            grid[3 * pixel + 2] = image[place + 2]
    else:
        for number in range(len(places)):
            grid[number] = image[places[number]]


@compile_for(numba.float32(_GRID, numba.int64), reorder=True)
def _grays(grid: NDArray[np.uint8], channels: int) -> Any:
    """Return the sum of the squares of the sums of the channels. A loop over three channels is compiled for three channels."""
    grays = np.float32(0)
    if channels == 3:
        for pixel in range(len(grid) // 3):
            gray = np.float32(grid[3 * pixel]) + np.float32(grid[3 * pixel + 1]) + np.float32(grid[3 * pixel + 2])
            grays += gray * gray
    else:
        for pixel in range(0, len(grid), channels):
            gray = np.float32(0)
            for channel in range(channels):
                gray += np.float32(grid[pixel + channel])
            grays += gray * gray
    return grays


@compile_for(numba.void(_IMAGES, _PLACES, numba.int64, _GRIDS, _NUMBERS), reorder=True)
def count_pixels(
    images: NDArray[np.uint8],
    places: NDArray[np.uint32],
    channels: int,
    grids: NDArray[np.uint8],
    counts: NDArray[np.float32],
) -> None:
    """Copy the pixels of a grid of each image, and count.

    Args:
        images: Images, [N, values].
        places: Place of each value of the grid in an image, [F].
        channels: Number of channels, the last axis of the grid.
        grids: The values of the grid, which are set here, [N, F].
        counts: Numbers of each image, which are set here, [N, 5]: dark values, bright values, and the sums of the differences from
            the next image, of the squares, and of the squares of the sums of the channels. The difference of the last image is
            infinite.
    """
    size = len(places)
    side_by_side = channels == 3 and places[1] == places[0] + 1 and places[2] == places[0] + 2
    for image in range(len(images)):
        grid = grids[image]
        _copy_pixels(images[image], places, side_by_side, grid)
        dark = bright = squares = np.float32(0)
        for number in range(size):
            value = np.float32(grid[number])
            dark += np.float32(value < DARK)
            bright += np.float32(value > BRIGHT)
            squares += value * value
        grays = _grays(grid, channels)
        counts[image, 0], counts[image, 1], counts[image, 2] = dark, bright, np.inf
        counts[image, 3], counts[image, 4] = squares, grays
    for image in range(len(images) - 1):
        apart, grid, after = np.float32(0), grids[image], grids[image + 1]
        for number in range(size):
            apart += abs(np.float32(after[number]) - np.float32(grid[number]))
        counts[image, 2] = apart


_PAIR: Any = numba.types.UniTuple  # numba has no types


@compile_for(_PAIR(numba.float64, 2)(_VALUES, _VALUES), reorder=True)
def _powers(values: NDArray[np.uint8], others: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the sums of the squares of the differences of two arrays of equal length, and of their fourth powers."""
    squares = fourths = np.float32(0)
    for number in range(len(values)):
        change = np.float32(others[number]) - np.float32(values[number])
        square = change * change
        squares += square
        fourths += square * square
    return float(squares), float(fourths)


@compile_for(numba.void(_IMAGES, numba.int64[::1], numba.int64, numba.int64, numba.int64, _NUMBERS))
def measure_edges(
    images: NDArray[np.uint8], rows: NDArray[np.int64], height: int, line: int, step: int, edges: NDArray[np.float32]
) -> None:
    """Set the means of powers of the differences between values and their neighbors, on the right and below, of some images.

    Args:
        images: Images, [N, planes * height * line].
        rows: Numbers of the images.
        height: Number of lines of a plane of an image.
        line: Number of values of a line.
        step: Number of values from a value to its neighbor on the right.
        edges: The squares and the fourth powers, of the images of `rows`, [N, 2].
    """
    size = images.shape[1]
    for row in rows:
        image = images[row]
        squares = fourths = 0.0
        for first in range(0, size, line):
            of_line = image[first : first + line]
            square, fourth = _powers(of_line[: line - step], of_line[step:])
            squares, fourths = squares + square, fourths + fourth
            if (first // line + 1) % height:
                square, fourth = _powers(of_line, image[first + line : first + 2 * line])
                squares, fourths = squares + square, fourths + fourth
        edges[row, 0], edges[row, 1] = squares / size, fourths / size


@compile_for(numba.int32(_VALUES, _VALUES))
def _squares(values: NDArray[np.uint8], others: NDArray[np.uint8]) -> Any:
    """Return the sum of the squares of the differences of two arrays of equal length, of at most 32,768 values."""
    total = np.int32(0)
    for number in range(len(values)):
        change = np.int32(np.int16(others[number]) - np.int16(values[number]))
        total = np.int32(total + change * change)
    return total


@compile_for(numba.void(_IMAGES, _CHANGES))
def measure_changes(images: NDArray[np.uint8], changes: NDArray[np.float32]) -> None:
    """Set the mean square difference between each image and the next image. Nothing is set for the last image.

    Args:
        images: Images, [N, values]. Of more than 16,384 values, so many are looked at, in 64 spans that are evenly spread.
        changes: The result, [N].
    """
    size = images.shape[1]
    every, span = (size, size) if size <= 1 << 14 else (size // 64, 1 << 8)
    for row in range(len(images) - 1):
        image, after = images[row], images[row + 1]
        total, count = 0, 0
        for first in range(0, size - span + 1, every):
            total += _squares(image[first : first + span], after[first : first + span])
            count += span
        changes[row] = total / count


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
