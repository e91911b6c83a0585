"""Images that are stored as PNG or JPEG files, encoded once and decoded on access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.images import PixelsOnAccess, SeparateImageColumn
from datasets_rl.read.images import decode
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.ted.episode import EncodedImages

_IMAGES_PER_TASK: Final = 8


def encode(pixels: NDArray[np.uint8], quality: int | None = None) -> list[bytes]:
    """Return images as PNG files, without loss, or as JPEG files, with loss; encoded in threads.

    Args:
        pixels: Pixels, uint8 [n, rows, columns, channels], of 1 or 3 channels; for PNG also of 4.
        quality: The quality of JPEG images, 1 to 100; None for PNG.
    """
    from PIL import Image

    form, options = ("png", {"compress_level": 1}) if quality is None else ("jpeg", {"quality": quality})
    files = [b""] * len(pixels)

    def encode_range(first: int, last: int) -> None:
        for number in range(first, last):
            image, stream = pixels[number], BytesIO()
            Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, form, **options)
            files[number] = stream.getvalue()

    run_on_all_cores(encode_range, len(pixels), _IMAGES_PER_TASK)
    return files


class EncodedImageColumn(SeparateImageColumn):
    """Images of rows, columns and channels, each stored as a PNG or JPEG file; see `SeparateImageColumn`."""

    @override
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        _decode_images(self._encoded_images(rows), out, self._path, rows.tolist(), positions.tolist())

    @override
    def read_stored(self, start: int, stop: int) -> EncodedColumn:
        return EncodedColumn(self._encoded_images(np.arange(start, stop)), self.shape[1:], self._path)

    def _encoded_images(self, rows: NDArray[np.integer[Any]]) -> list[memoryview]:
        starts, stops = self.extents(rows)
        data = self._data.data
        return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class EncodedColumn(EncodedImages, PixelsOnAccess):
    """Encoded images of some rows; see `PixelsOnAccess`."""

    shape_of_each: tuple[int, ...]
    path: Path
    """The file, for messages."""

    @override
    def _decode(self, out: NDArray[np.uint8]) -> None:
        _decode_images(self.images, out, self.path, range(len(self)), range(len(self)))


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
