"""Images that are stored as PNG or JPEG files, decoded on access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.images import ImageColumn
from datasets_rl.read.images import decode
from datasets_rl.ted.episode import EncodedImages


class EncodedImageColumn(ImageColumn):
    """Images of rows, columns and channels, each stored as a PNG or JPEG file; see `ImageColumn`."""

    @override
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        _decode_images(self._encoded_images(rows), out, self._path, rows.tolist(), positions.tolist())

    def read_encoded(self, start: int, stop: int) -> EncodedColumn:
        """Return the images of rows `start` to `stop` without decoding them."""
        return EncodedColumn(self._encoded_images(np.arange(start, stop)), self.shape[1:], self._path)

    def _encoded_images(self, rows: NDArray[np.integer[Any]]) -> list[memoryview]:
        starts, stops = self.extents(rows)
        data = self._data.data
        return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


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
