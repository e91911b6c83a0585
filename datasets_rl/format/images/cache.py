"""Recently decoded images of a column, in a bounded number of bytes."""

from __future__ import annotations

import os
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from datasets_rl.read.threads import run_on_all_cores

COPIED_BYTES: Final = 1 << 21
"""Bytes of images that a thread copies at once: some 100 microseconds."""

_lock = Lock()
"""Held while images are copied to or from any cache of this process."""


class ImageCache:
    """Cache of the decoded images of a column, in which image `row` has the slot ``row % slots``.

    An image is copied to its slot when the image is decoded for the second time, without another image of the slot in
    between: a cache as large as the column gets all images, and where images are rarely read again, few are copied.
    Neighboring images never replace each other. Threads may share a cache.

    Args:
        slots: Maximum number of images, at least 1.
        image_bytes: Bytes of each image.
    """

    def __init__(self, slots: int, image_bytes: int) -> None:
        from datasets_rl.format.images.loops import EMPTY

        self._rows, self._seen = (np.full(slots, EMPTY, np.int64) for _ in range(2))
        self._images = np.empty((slots, image_bytes), np.uint8)  # the system gives memory only to written pages
        self._per_task = max(COPIED_BYTES // max(image_bytes, 1), 1)

    @property
    def max_bytes(self) -> int:
        """Maximum size of all images in bytes."""
        return self._images.nbytes

    def find(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Copy the images of some rows to positions of `out`, as far as the cache has these images.

        Args:
            rows: Row numbers, [n].
            out: Output, [N, bytes].
            positions: Position of each image in `out`, [n].

        Returns:
            Which images the cache does not have, bool [n].
        """
        from datasets_rl.format.images.loops import copy_cached

        missing = np.empty(len(rows), np.bool_)

        def copy_range(first: int, last: int) -> None:
            copy_cached(rows, self._rows, self._images, out, positions, missing, first, last)

        with _lock:
            run_on_all_cores(copy_range, len(rows), self._per_task)
        return missing

    def add(self, rows: NDArray[np.int64], images: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        """Store copies of decoded images, if they were decoded before.

        Args:
            rows: Row number of each image, [n], all different.
            images: Decoded images, [N, bytes].
            positions: Position of each image in `images`, [n].
        """
        from datasets_rl.format.images.loops import add_images, mark_added, reserve_slots

        def add_range(first: int, last: int) -> None:
            add_images(rows, self._rows, self._images, images, positions, first, last)

        with _lock:
            # An exception, or a fork, between these leaves slots without an image.
            if reserve_slots(rows, self._rows, self._seen):
                run_on_all_cores(add_range, len(rows), self._per_task)
                mark_added(rows, self._rows)


def _reset_after_fork() -> None:
    """Release, in a forked process, the lock that another thread of the parent was holding."""
    global _lock  # noqa: PLW0603 - one lock for the process
    _lock = Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
