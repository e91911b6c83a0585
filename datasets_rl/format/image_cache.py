"""Recently decoded images of a dataset, in a bounded number of bytes."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import TypeAlias
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from datasets_rl.read.threads import run_on_all_cores

Image: TypeAlias = NDArray[np.uint8]

_MIN_HITS = 1 / 32
"""A copy into the cache takes about 1/32 of the time of decoding: with fewer hits per image, the cache costs time."""
_PAUSE = 16
"""Turnovers for which a cache without hits stays empty before it is tried again."""

_TASK_BYTES = 1 << 21  # pixels that a thread copies at once: some 100 microseconds

_all: WeakSet[ImageCache] = WeakSet()
"""All caches of this process, for `_reset_after_fork`."""


class ImageCache:
    """Least-recently-used cache of decoded images.

    Threads may share it. Where images are rarely read again, as in uniform samples of a dataset that is much larger
    than the cache, it empties itself and pauses.

    Args:
        max_bytes: Maximum size of all images in bytes; 0 disables the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = Lock()
        self._images: OrderedDict[tuple[Hashable, int], Image] = OrderedDict()
        self.bytes = 0
        """Size of all images in the cache."""
        self._reads = self._hits = self._evicted = self._paused = 0

    def find(self, column: Hashable, rows: Sequence[int]) -> list[Image | None]:
        """Return the images of rows of a column, `None` for those that are not in the cache; callers only read them."""
        with self._lock:
            self._reads += len(rows)
            if not self._images:
                return [None] * len(rows)
            keys = [(column, row) for row in rows]
            found = [self._images.get(key) for key in keys]
            for key, image in zip(keys, found, strict=True):
                if image is not None:
                    self._images.move_to_end(key)
                    self._hits += 1
        return found

    def add(self, column: Hashable, rows: Sequence[int], images: Image, positions: Sequence[int]) -> None:
        """Store copies of decoded images, in place of those that were not read for the longest time.

        Args:
            column: The column of the images.
            rows: Row number of each image, [n].
            images: Decoded images, [N, rows, columns, channels].
            positions: Position of each image in `images`, [n].
        """
        size = math.prod(images.shape[1:])
        if self._paused:
            self._pass_over(len(rows) * size)
            return
        skipped = max(len(rows) - self.max_bytes // max(size, 1), 0)
        rows, positions = rows[skipped:], positions[skipped:]
        copies = [np.empty(images.shape[1:], np.uint8) for _ in rows]
        copy_images([images[position] for position in positions], copies, range(len(rows)))
        with self._lock:
            for row, image in zip(rows, copies, strict=True):
                if (column, row) not in self._images:  # else another thread decoded it at the same time
                    self._images[column, row] = image
                    self.bytes += size
            self._evicted += skipped * size
            while self.bytes > self.max_bytes:
                evicted = self._images.popitem(last=False)[1].nbytes
                self.bytes -= evicted
                self._evicted += evicted
            if self._evicted > self.max_bytes:
                self._judge()

    def _pass_over(self, size: int) -> None:
        """Count bytes of images that were not stored towards the end of a pause."""
        with self._lock:
            self._paused = max(self._paused - size, 0)
            self._reads = 0

    def _judge(self) -> None:
        """Empty the cache and pause it if, since all of its images were replaced, few reads found their image."""
        if self._hits < self._reads * _MIN_HITS:
            self._images.clear()
            self.bytes, self._paused = 0, _PAUSE * self.max_bytes
        self._reads = self._hits = self._evicted = 0


def copy_images(images: Sequence[Image], out: Image | Sequence[Image], positions: Sequence[int]) -> None:
    """Copy each image to its position of `out`, on all cores."""

    def copy_range(start: int, stop: int) -> None:
        for image, position in zip(images[start:stop], positions[start:stop], strict=True):
            out[position][...] = image

    if images:
        run_on_all_cores(copy_range, len(images), max(_TASK_BYTES // max(images[0].nbytes, 1), 1))


def _reset_after_fork() -> None:
    """Empty, in a forked process, the caches that another thread of the parent was changing."""
    for cache in list(_all):
        if cache._lock.locked():  # noqa: SLF001 - of this file
            cache._reset()  # noqa: SLF001 - of this file


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
