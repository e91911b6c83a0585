"""Loops over the images of a batch, without Python between two images. This module is imported only when needed."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from datasets_rl.loop_compiler import compile_for, copy_items

EMPTY = np.iinfo(np.int64).min
"""Row number of a slot of a cache without an image. While an image is copied to its slot, the number is ``~row``."""

_NUMBERS, _IMAGES = numba.int64[::1], numba.uint8[:, ::1]
_READ_ONLY = numba.types.Array(numba.int64, 1, "C", readonly=True)
_READ_ONLY_IMAGES = numba.types.Array(numba.uint8, 2, "C", readonly=True)


@compile_for(numba.int64(_READ_ONLY, _NUMBERS, _NUMBERS))
def find_firsts(rows: Any, firsts: Any, origins: Any) -> int:
    """Find the position of the first occurrence of each row, and return the number of distinct rows.

    Args:
        rows: Row numbers, [n].
        firsts: Output, [n]: position of the first occurrence of each distinct row, in order.
        origins: Output, [n]: for each position, the position of the first occurrence of its row.
    """
    size = 16
    while size < 2 * rows.size:
        size *= 2
    table = np.full(size, -1, np.int64)
    count = 0
    for position in range(rows.size):
        row = rows[position]
        place = (row * 0x9E3779B1 >> 8) & (size - 1)
        while table[place] >= 0 and rows[table[place]] != row:
            place = (place + 1) & (size - 1)
        if table[place] < 0:
            table[place] = position
            firsts[count] = position
            count += 1
        origins[position] = table[place]
    return count


@compile_for(numba.void(_IMAGES, _NUMBERS, numba.int64, numba.int64))
def copy_repeated(images: Any, origins: Any, first: int, last: int) -> None:
    """Copy the image of another position to each of the positions `first` to `last`, unless it is the same position.

    Args:
        images: Images, uint8 [n, bytes].
        origins: Position of the image of each position, [n]: that of an image that is not copied.
        first: First position.
        last: Position after the last position.
    """
    size = images.shape[1]
    for position in range(first, last):
        if origins[position] != position:
            copy_items(images, origins[position] * size, images, position * size, size)


@compile_for(numba.boolean(_READ_ONLY_IMAGES, _READ_ONLY, _IMAGES, numba.int64, numba.int64))
def copy_rows(images: Any, rows: Any, out: Any, first: int, last: int) -> bool:
    """Copy the images of the rows `first` to `last`.

    Args:
        images: Images, uint8 [N, bytes].
        rows: Row numbers, [n].
        out: Output, uint8 [n, bytes].
        first: Number of the first row.
        last: Number after the one of the last row.

    Returns:
        Whether all these rows are in [0, N). If not, the output is incomplete.
    """
    size = images.shape[1]
    for number in range(first, last):
        row = rows[number]
        if row < 0 or row >= len(images):
            return False
        copy_items(images, row * size, out, number * size, size)
    return True


@compile_for(numba.void(_READ_ONLY_IMAGES, _READ_ONLY_IMAGES, numba.boolean[::1], numba.int64, numba.int64))
def compare_images(images: Any, others: Any, equal: Any, first: int, last: int) -> None:
    """Compare the images `first` to `last` of two arrays.

    Args:
        images: Images, uint8 [n, bytes].
        others: Images, uint8 [n, bytes].
        equal: Output, bool [n]: which images are equal.
        first: Number of the first image.
        last: Number after the one of the last image.
    """
    for number in range(first, last):
        image, other = images[number], others[number]
        difference = numba.uint8(0)
        for place in range(image.size):  # of all bytes: without an exit, 32 are compared at once
            difference = numba.uint8(difference | numba.uint8(image[place] ^ other[place]))
        equal[number] = difference == 0


@compile_for(numba.void(_NUMBERS, _NUMBERS, _IMAGES, _IMAGES, _NUMBERS, numba.boolean[::1], numba.int64, numba.int64))
def copy_cached(
    rows: Any, slots: Any, cached: Any, out: Any, positions: Any, missing: Any, first: int, last: int
) -> None:
    """Copy the images `first` to `last` of some rows from a cache, as far as the cache has the images.

    Args:
        rows: Row numbers, [n].
        slots: Row number of the image in each slot of the cache, [S].
        cached: Image in each slot, uint8 [S, bytes].
        out: Output, uint8 [N, bytes].
        positions: Position of each image in `out`, [n].
        missing: Output, bool [n]: which images the cache does not have.
        first: Number of the first image.
        last: Number after the one of the last image.
    """
    size = out.shape[1]
    for number in range(first, last):
        slot = rows[number] % slots.size
        missing[number] = slots[slot] != rows[number]
        if not missing[number]:
            copy_items(cached, slot * size, out, positions[number] * size, size)


@compile_for(numba.int64(_NUMBERS, _NUMBERS, _NUMBERS))
def reserve_slots(rows: Any, slots: Any, seen: Any) -> int:
    """Mark the slots of images that will be copied to a cache: those that were seen before, and are seen again.

    Of two images with the same slot, the last image gets the slot.

    Args:
        rows: Row numbers, [n].
        slots: Row number of the image in each slot of the cache, [S].
        seen: The last row number that was seen for each slot, [S].

    Returns:
        The number of images to copy, or more.
    """
    count = 0
    for row in rows:
        slot = row % slots.size
        if seen[slot] == row:
            slots[slot] = ~row
            count += 1
        seen[slot] = row
    return count


@compile_for(numba.void(_NUMBERS, _NUMBERS, _IMAGES, _IMAGES, _NUMBERS, numba.int64, numba.int64))
def add_images(rows: Any, slots: Any, cached: Any, images: Any, positions: Any, first: int, last: int) -> None:
    """Copy the images `first` to `last` of some rows to the slots that are marked for these images.

    Args:
        rows: Row numbers, [n].
        slots: Row number of the image in each slot of the cache, [S].
        cached: Output, uint8 [S, bytes].
        images: Images, uint8 [N, bytes].
        positions: Position of each image in `images`, [n].
        first: Number of the first image.
        last: Number after the one of the last image.
    """
    size = images.shape[1]
    for number in range(first, last):
        slot = rows[number] % slots.size
        if slots[slot] == ~rows[number]:
            copy_items(images, positions[number] * size, cached, slot * size, size)


@compile_for(numba.void(_NUMBERS, _NUMBERS))
def mark_added(rows: Any, slots: Any) -> None:
    """Mark the slots of copied images as occupied. See `reserve_slots`."""
    for row in rows:
        if slots[row % slots.size] == ~row:
            slots[row % slots.size] = row
