"""Encoded images in a file, decoded on access and indexed like an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.image_cache import ImageCache, copy_images
from datasets_rl.read.images import decode
from datasets_rl.ted.episode import EncodedImages


class ImageColumn:
    """Array of N images of one shape, stored as concatenated PNG or JPEG files.

        data    | image 0 | image 1    | image 2 |
        ends              ^ ends[0]    ^ ends[1] ^ ends[2]

    An image without bytes, an unknown final state, reads as zeros.

    Args:
        data: Bytes of all images, uint8 [B].
        ends: End offset of each image in `data`, int64 [N].
        shape: Shape of one decoded image: rows, columns, channels.
        path: The file, for messages.

    Raises:
        IntegrityError: If the ends do not increase from 0 to B.
    """

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64], shape: tuple[int, ...], path: Path) -> None:
        self._data = data
        self._starts = np.concatenate([np.zeros(1, np.int64), ends])
        if (np.diff(self._starts) < 0).any() or self._starts[-1] != len(data):
            raise IntegrityError(str(path), [f"the ends of its {len(ends):,} images do not increase to {len(data):,}"])
        self._path = path
        self.shape = (len(ends), *shape)
        self.dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        """Return the number of images, N."""
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Return the decoded images of a slice or of row numbers, uint8 [n, rows, columns, channels]."""
        return self.take(np.arange(len(self))[index])

    def take(self, rows: NDArray[np.integer[Any]], cache: ImageCache | None = None) -> NDArray[np.uint8]:
        """Return the decoded images of these rows, uint8 [n, rows, columns, channels]; each image is decoded once.

        Args:
            rows: Row numbers, [n].
            cache: Decoded images of this file and others, which are copied instead of decoded again.

        Raises:
            IntegrityError: If an image cannot be decoded.
        """
        distinct, firsts, sources = np.unique(rows, return_index=True, return_inverse=True)
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        self._read(distinct, firsts.tolist(), images, cache)
        if len(distinct) < len(rows):
            origins = firsts[sources]
            repeated = np.flatnonzero(origins != np.arange(len(rows)))
            copy_images([images[origin] for origin in origins[repeated].tolist()], images, repeated.tolist())
        return images

    def _read(
        self, rows: NDArray[np.integer[Any]], positions: list[int], out: NDArray[np.uint8], cache: ImageCache | None
    ) -> None:
        """Write the images of distinct rows to positions of `out`."""
        if cache is None:
            _decode_images(self._encoded_images(rows), out, self._path, rows.tolist(), positions)
            return
        numbers = rows.tolist()
        found = cache.find(self, numbers)
        cached = [(image, position) for image, position in zip(found, positions, strict=True) if image is not None]
        if cached:
            copy_images([image for image, _ in cached], out, [position for _, position in cached])
            missing = [at for at, image in enumerate(found) if image is None]
            rows, positions = rows[missing], [positions[at] for at in missing]
            numbers = rows.tolist()
        _decode_images(self._encoded_images(rows), out, self._path, numbers, positions)
        cache.add(self, numbers, out, positions)

    def read_encoded(self, start: int, stop: int) -> EncodedColumn:
        """Return the images of rows `start` to `stop` without decoding them."""
        return EncodedColumn(self._encoded_images(np.arange(start, stop)), self.shape[1:], self._path)

    def _encoded_images(self, rows: NDArray[np.integer[Any]]) -> list[memoryview]:
        starts, stops = self._starts[rows].tolist(), self._starts[rows + 1].tolist()
        data = self._data.data
        return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]


@dataclass(frozen=True, eq=False)
class EncodedColumn(EncodedImages):
    """Encoded images of consecutive rows that become an array, uint8 [n, rows, columns, channels], on first access."""

    shape_of_each: tuple[int, ...]
    """Shape of one decoded image: rows, columns, channels."""
    path: Path
    """The file, for messages."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the decoded array, [n, rows, columns, channels]."""
        return (len(self), *self.shape_of_each)

    @property
    def ndim(self) -> int:
        """Number of axes of the decoded array."""
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the decoded images; the first call decodes and caches them.

        Raises:
            IntegrityError: If an image cannot be decoded.
        """
        return np.array(self._pixels, dtype, copy=copy)

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        pixels = np.empty(self.shape, np.uint8)
        _decode_images(self.images, pixels, self.path, range(len(self)), range(len(self)))
        pixels.flags.writeable = False
        return pixels


def _decode_images(
    encoded: Sequence[bytes | bytearray | memoryview],
    out: NDArray[np.uint8],
    path: Path,
    numbers: Sequence[int],
    positions: Sequence[int],
) -> None:
    """Decode images into some positions of `out`; those without bytes become zeros.

    Args:
        encoded: Bytes of each image, [n].
        out: Output, [N, rows, columns, channels].
        path: The file, for messages.
        numbers: Row number of each image, [n], for messages.
        positions: Position of each image in `out`, [n].
    """
    present = [at for at, image in enumerate(encoded) if len(image)]
    if len(present) < len(encoded):
        out[[position for position, image in zip(positions, encoded, strict=True) if not len(image)]] = 0
        encoded, positions = [encoded[at] for at in present], [positions[at] for at in present]
        numbers = [numbers[at] for at in present]
    try:
        decode(encoded, out, positions=positions)
    except ConversionError as error:
        problems = []
        for number, image in zip(numbers, encoded, strict=True):
            try:
                decode([image], out[:1])
            except ConversionError as problem:
                problems.append(problem.problems[0].replace("image 0", f"image {number:,}", 1))
        raise IntegrityError(str(path), problems) from error
