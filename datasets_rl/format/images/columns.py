"""Images of a stored field that are not stored as pixels, as readers see the images in every form.

A batch asks for rows, and gets pixels in separate memory. Each image is read once, even if the batch has copies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import IntegrityError
from datasets_rl.fingerprints.canonical import RowDigests, digest_bytes
from datasets_rl.format.images.cache import COPIED_BYTES, ImageCache
from datasets_rl.read.streams import first_problems
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.ted.episode import StoredImages


class ImageColumn(ABC):
    """N images of the same shape, indexed like an array.

    Args:
        count: Number of images, N.
        shape: Shape of the pixels of one image.
        path: The file, for messages.
    """

    def __init__(self, count: int, shape: tuple[int, ...], path: Path) -> None:
        self._path = path
        self.shape = (count, *shape)
        self.dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        """Return the number of images, N."""
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.integer[Any]] | NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return the pixels of a slice, of row numbers, or of a mask, uint8 [n, ...]."""
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        if index.dtype == np.bool_:
            return self.take(np.flatnonzero(index))
        return self.take(np.where(index < 0, index + len(self), index))

    def take(self, rows: NDArray[np.integer[Any]], cache: ImageCache | None = None) -> NDArray[np.uint8]:
        """Return the pixels of the images of these rows, uint8 [n, ...].

        Args:
            rows: Row numbers, [n].
            cache: Pixels of images of this column, which are copied instead of read again.

        Raises:
            IntegrityError: If an image is damaged.
        """
        from datasets_rl.format.images.loops import copy_repeated, find_firsts  # deferred: it loads numba

        numbers = np.ascontiguousarray(rows, np.int64)
        pixels = np.empty((len(numbers), *self.shape[1:]), np.uint8)
        firsts, origins = np.empty_like(numbers), np.empty_like(numbers)
        count = find_firsts(numbers, firsts, origins)
        self._read(numbers[firsts[:count]], firsts[:count], pixels, cache)
        if count < len(numbers):
            flat, per_task = self._flat(pixels), max(COPIED_BYTES // max(self._image_bytes, 1), 1)
            run_on_all_cores(lambda first, last: copy_repeated(flat, origins, first, last), len(numbers), per_task)
        return pixels

    def new_cache(self, part: float) -> ImageCache | None:
        """Return a cache for `take` of a part of all images, 1 for all, or None for less than a single image."""
        slots = min(int(len(self) * part), len(self))
        return ImageCache(slots, self._image_bytes) if slots else None

    @property
    def _image_bytes(self) -> int:
        return math.prod(self.shape[1:])

    def _flat(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels.reshape(len(pixels), self._image_bytes)

    def _read(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64], out: NDArray[np.uint8], cache: ImageCache | None
    ) -> None:
        """Write the pixels of distinct rows to positions of `out`."""
        if cache is None:
            self._decode(rows, out, positions)
            return
        missing = cache.find(rows, self._flat(out), positions)
        rows, positions = rows[missing], positions[missing]
        self._decode(rows, out, positions)
        cache.add(rows, self._flat(out), positions)

    @abstractmethod
    def read_stored(self, start: int, stop: int) -> StoredImages:
        """Return the stored images of rows `start` to `stop`, which become an array on first access."""

    def read_comparable(self, start: int, stop: int) -> NDArray[Any]:
        """Return values of rows `start` to `stop`, [n, ...], that are equal where the stored images are the same."""
        return self[start:stop]

    def digests(self, start: int, stop: int) -> RowDigests:
        """Return the digests of the images of rows `start` to `stop`, [n], as `FieldWriter.digests` does."""
        return digest_bytes(self[start:stop])

    def read_file(self, row: int) -> bytes:
        """Return the image of a row as the stored PNG or JPEG file. Empty for an unknown image, and for other forms."""
        del row
        return b""

    @abstractmethod
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        """Write the pixels of these rows, [n], to these positions of `out`, [n]. An image without bytes is zeros.

        Raises:
            IntegrityError: If an image is damaged.
        """


class SeparateImageColumn(ImageColumn):
    """Images of which each has separate bytes. See `ImageColumn`.

        data    | image 0 | image 1    | image 2 |       uint8 [B]
        ends              ^ ends[0]    ^ ends[1] ^ ends[2]    int64 [N]

    Args:
        data: Bytes of all images, uint8 [B].
        ends: Byte after the last byte of each image in `data`, int64 [N].
        shape: Shape of the pixels of one image.
        path: The file, for messages.
    """

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64], shape: tuple[int, ...], path: Path) -> None:
        super().__init__(len(ends), shape, path)
        # Plain arrays: indexing a memory map, which is a subclass, takes three times as long.
        self._data, self._ends = np.asarray(data), np.asarray(ends)

    def extents(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first byte of each of these images, [n], and the byte after the last byte of the image, [n].

        Raises:
            IntegrityError: If the offsets are not of consecutive images.
        """
        stops = self._ends[rows]
        starts = np.where(rows > 0, self._ends[np.maximum(rows - 1, 0)], 0)
        wrong = np.flatnonzero((starts < 0) | (stops < starts) | (stops > len(self._data)))
        if len(wrong):
            problems = [
                f"image {rows[at]:,} has the bytes {starts[at]:,} to {stops[at]:,} of {len(self._data):,}"
                for at in wrong
            ]
            raise IntegrityError(str(self._path), first_problems(problems, "images"))
        return starts, stops


class PixelsOnAccess(ABC):
    """Images of some rows that become an array, uint8 [n, ...], on first access."""

    shape_of_each: tuple[int, ...]
    """Shape of the pixels of one image."""
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images, n."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, [n, ...]."""
        return (len(self), *self.shape_of_each)

    @property
    def ndim(self) -> int:
        """Number of axes of the array."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the pixels, which the first call decodes and keeps.

        Raises:
            IntegrityError: If an image cannot be decoded.
        """
        return self._pixels.astype(dtype or np.uint8, copy=bool(copy))

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        pixels = np.empty(self.shape, np.uint8)
        self._decode(pixels)
        pixels.flags.writeable = False
        return pixels

    @abstractmethod
    def _decode(self, out: NDArray[np.uint8]) -> None:
        """Write the pixels of all images."""
