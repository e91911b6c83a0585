"""Decoder of PNG and JPEG images to arrays, on all cores, into the caller's memory.

The format and the shape are read from the header. No pixel is decoded before the shape is checked.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.read.exif import UPRIGHT
from datasets_rl.read.streams import AGAIN, first_problems, unexpected_format
from datasets_rl.read.threads import run_on_all_cores

EncodedImages: TypeAlias = "bytes | bytearray | memoryview"

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8\xff"
_U32 = struct.Struct(">I")
_PIXELS_MAX = 1 << 26  # a frame of 8,192 by 8,192
_TASK_BYTES = 1 << 17  # pixels per task of a thread: some 100 microseconds
# Exceptions that the decoders raise for damaged images.
_DECODE_ERRORS = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, zlib.error)
_JPEG_CHANNELS = {"Gray": 1, "YCbCr": 3, "RGB": 3}
_JPEG_SPACES = {1: "GRAY", 3: "RGB"}
_PALETTE = 3
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_PNG_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


class _DamagedError(Exception):
    """An invalid or unexpected image."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of an image."""

    format: str
    """``png`` or ``jpeg``."""
    shape: tuple[int, int, int]
    """Rows, columns and channels: 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha."""
    dtype: np.dtype[Any]
    """uint8, or uint16 for depth images."""
    orientation: int = UPRIGHT
    """Orientation in the EXIF metadata, from 1 to 8, if these were read. The pixels are never turned."""


def read_header(image: EncodedImages, name: str = "image") -> Header:
    """Read the header of an image, without decoding the image.

    Raises:
        ConversionError: If the bytes are not a PNG or JPEG image, or of an unsupported type.
    """
    try:
        return _parse_header(image)
    except _DamagedError as error:
        raise ConversionError(name, [str(error)], hint=AGAIN) from error


def decode(
    images: Sequence[EncodedImages],
    out: NDArray[Any],
    name: str = "images",
    *,
    first: int = 0,
    positions: Sequence[int] | None = None,
) -> None:
    """Decode images of a shape, on all cores.

    Args:
        images: N encoded images.
        out: Output, [N, rows, columns, channels], uint8 or uint16. Each image must have this shape and dtype.
        name: Name of the images in errors.
        first: Number of the first image in errors.
        positions: Position of each image in an `out` that has more than N, [N], by default 0 to N - 1.

    Raises:
        ConversionError: If images are damaged, or have another shape or dtype. The error names the number of each image.
        ValueError: If `out` has another number of images, or is not contiguous.
    """
    if (positions is None and out.shape[:1] != (len(images),)) or out.ndim != 4 or not out.flags.c_contiguous:
        expected = f"[{len(images)}, rows, columns, channels], contiguous"
        raise ValueError(f"out is {list(out.shape)} of {out.dtype}, expected {expected}")
    places = range(len(images)) if positions is None else positions
    problems: dict[int, str] = {}

    def decode_range(start: int, stop: int) -> None:
        for number in range(start, stop):
            if problem := _decode_one(images[number], out[places[number]]):
                problems[number] = f"image {first + number:,} {problem}"

    per_task = max(_TASK_BYTES // max(math.prod(out.shape[1:]) * out.itemsize, 1), 1)
    run_on_all_cores(decode_range, len(images), per_task)
    if problems:
        raise ConversionError(
            name, first_problems([problems[number] for number in sorted(problems)], "images"), hint=AGAIN
        )


def _decode_one(image: EncodedImages, out: NDArray[Any]) -> str:
    """Decode an image, and return the problem, or an empty string."""
    try:
        info = _parse_header(image)
        if info.shape != out.shape or info.dtype != out.dtype:
            return f"is {list(info.shape)} of {info.dtype}, expected {list(out.shape)} of {out.dtype}"
        if info.format == "jpeg":
            import simplejpeg

            simplejpeg.decode_jpeg(image, _JPEG_SPACES[info.shape[2]], buffer=out)
        else:
            _decode_png(image, out)
    except _DamagedError as error:
        return str(error)
    except _DECODE_ERRORS as error:
        return f"cannot be decoded: {error}"
    return ""


def _parse_header(image: EncodedImages) -> Header:
    head = bytes(image[:64])
    if head.startswith(_PNG_MAGIC):
        info = _png_header(head)
    elif head.startswith(_JPEG_MAGIC):
        info = _jpeg_header(image)
    else:
        raise _DamagedError(unexpected_format(head, "a PNG or JPEG image").replace("it ", "", 1))
    rows, columns, _ = info.shape
    if not 0 < rows * columns <= _PIXELS_MAX:
        raise _DamagedError(f"declares {rows:,} by {columns:,} pixels, expected at most {_PIXELS_MAX:,}")
    return info


def _png_header(head: bytes) -> Header:
    if len(head) < 33 or head[12:16] != b"IHDR":
        raise _DamagedError("is a truncated PNG")
    columns, rows, bits, kind = struct.unpack_from(">IIBB", head, 16)
    if kind not in _PNG_CHANNELS or bits not in {1, 2, 4, 8, 16}:
        raise _DamagedError(f"is a PNG of color type {kind} with {bits} bits, which is not supported")
    if bits == 16 and kind != 0:
        raise _DamagedError("is a color PNG with 16 bits per channel, expected 8 bits, or 16 bits of gray")
    return Header("png", (rows, columns, _PNG_CHANNELS[kind]), np.dtype(np.uint16 if bits == 16 else np.uint8))


def _jpeg_header(image: EncodedImages) -> Header:
    import simplejpeg

    try:
        rows, columns, space, _ = simplejpeg.decode_jpeg_header(image)
    except ValueError as error:
        raise _DamagedError(f"is a JPEG with a damaged header: {error}") from error
    if space not in _JPEG_CHANNELS:
        raise _DamagedError(f"is a JPEG in the color space {space}, expected RGB or gray")
    return Header("jpeg", (rows, columns, _JPEG_CHANNELS[space]), np.dtype(np.uint8))


def _without_metadata(image: EncodedImages) -> bytes:
    """Return the compressed pixels of a PNG, after a check of the checksums and the end, which pillow does not check."""
    view, at, kind = memoryview(image), len(_PNG_MAGIC), b""
    parts: list[memoryview] = []
    while kind != b"IEND":
        size = _U32.unpack_from(view, at)[0] if at + 12 <= len(view) else len(view)
        end = at + 8 + size
        if end + 4 > len(view):
            raise _DamagedError(f"is a PNG that is truncated at byte {len(view):,}")
        if zlib.crc32(view[at + 4 : end]) != _U32.unpack_from(view, end)[0]:
            raise _DamagedError(f"is a PNG whose bytes {at:,} to {end:,} do not match the checksum")
        kind = bytes(view[at + 4 : at + 8])
        if kind == b"IDAT":
            parts.append(view[at + 8 : end])
        at = end + 4
    return b"".join(parts)


def _decode_png(image: EncodedImages, out: NDArray[Any]) -> None:
    packed = _without_metadata(image)
    bits, kind, *_, interlaced = image[24:29]
    if bits == 8 and kind != _PALETTE and not interlaced:
        from datasets_rl.read import png  # compiles

        png.decode(packed, out)
        return
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image), formats=("PNG",)) as opened:
            opened.load()
            mode = opened.mode if bits == 16 else _PNG_MODES[out.shape[2]]
            out[...] = np.asarray(opened if opened.mode == mode else opened.convert(mode)).reshape(out.shape)
    except Image.DecompressionBombError as error:  # a second header declares another shape
        raise _DamagedError(f"cannot be decoded: {error}") from error
