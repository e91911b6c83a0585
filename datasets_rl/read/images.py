"""PNG and JPEG images to arrays, in threads, into the caller's memory.

What an image is, is read from its first bytes; no pixel is decoded before its size was found to be the one wanted.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import AGAIN, unlike

__all__ = ["Header", "decode", "header"]

EncodedImages: TypeAlias = "bytes | bytearray | memoryview"

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8\xff"
_U32 = struct.Struct(">I")
_PIXELS_MOST = 1 << 26  # a frame of 8,192 by 8,192
_SHOWN_MOST = 20
_BATCH = 16  # images a thread takes at once
_THREADS = 4
# What the decoders were seen to raise on damaged images.
_DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_JPEG_CHANNELS = {"Gray": 1, "YCbCr": 3, "RGB": 3}
_JPEG_SPACES = {1: "GRAY", 3: "RGB"}
_PALETTE = 3
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_PNG_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


class _Damaged(Exception):
    """An image that is none, or not the one wanted."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself."""

    format: str
    """``png`` or ``jpeg``."""
    shape: tuple[int, int, int]
    """Rows, columns, channels: 1 grey, 2 grey and alpha, 3 colours, 4 colours and alpha."""
    dtype: np.dtype[Any]
    """uint8; or uint16, as depth has it."""


def header(image: EncodedImages, name: str = "image") -> Header:
    """Read what an image is, without decoding it.

    Raises:
        ConversionError: If it is no PNG or JPEG image, or one that cannot be read as it is.
    """
    try:
        return _header(image)
    except _Damaged as error:
        raise ConversionError(name, [str(error)], hint=AGAIN) from error


def decode(images: Sequence[EncodedImages], out: NDArray[Any], name: str = "images", *, first: int = 0) -> None:
    """Decode images of one shape.

    Args:
        images: N of them, encoded.
        out: [N, rows, columns, channels], uint8 or uint16; each image must have this very shape and type.
        name: What they are called in errors.
        first: The number of the first one there.

    Raises:
        ConversionError: If images are damaged, or are others than wanted; every one of them, with its number.
        ValueError: If `out` has another number of images, or is not contiguous.
    """
    if out.shape[:1] != (len(images),) or out.ndim != 4 or not out.flags.c_contiguous:
        wanted = f"[{len(images)}, rows, columns, channels], contiguous"
        raise ValueError(f"out is {list(out.shape)} of {out.dtype}; expected {wanted}")

    def batch(start: int) -> list[str]:
        return [
            f"image {first + number:,} {fault}"
            for number in range(start, min(start + _BATCH, len(images)))
            if (fault := _decode(images[number], out[number]))
        ]

    starts = range(0, len(images), _BATCH)
    if len(starts) < 2:
        problems = [problem for start in starts for problem in batch(start)]
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="decode") as pool:
            problems = [problem for found in pool.map(batch, starts) for problem in found]
    if problems:
        more = [f"and {len(problems) - _SHOWN_MOST:,} more images"] if len(problems) > _SHOWN_MOST else []
        raise ConversionError(name, [*problems[:_SHOWN_MOST], *more], hint=AGAIN)


def _decode(image: EncodedImages, out: NDArray[Any]) -> str:
    """Decode an image; return what is wrong with it, if anything is."""
    try:
        found = _header(image)
        if found.shape != out.shape or found.dtype != out.dtype:
            return f"is {list(found.shape)} of {found.dtype}; expected {list(out.shape)} of {out.dtype}"
        if found.format == "jpeg":
            simplejpeg.decode_jpeg(image, _JPEG_SPACES[found.shape[2]], buffer=out)
        else:
            _png(image, out)
    except _Damaged as error:
        return str(error)
    except _DECODE_ERRORS as error:
        return f"does not decode: {error}"
    return ""


def _header(image: EncodedImages) -> Header:
    head = bytes(image[:64])
    if head.startswith(_PNG_MAGIC):
        found = _png_header(head)
    elif head.startswith(_JPEG_MAGIC):
        found = _jpeg_header(image)
    else:
        raise _Damaged(unlike(head, "a PNG or JPEG image").replace("it ", "", 1))
    rows, columns, _ = found.shape
    if not 0 < rows * columns <= _PIXELS_MOST:
        raise _Damaged(f"declares {rows:,} by {columns:,} pixels; expected {_PIXELS_MOST:,} at most")
    return found


def _png_header(head: bytes) -> Header:
    if len(head) < 33 or head[12:16] != b"IHDR":
        raise _Damaged("is a PNG that is cut")
    columns, rows, bits, kind = struct.unpack_from(">IIBB", head, 16)
    if kind not in _PNG_CHANNELS or bits not in {1, 2, 4, 8, 16}:
        raise _Damaged(f"is a PNG of kind {kind} with {bits} bits")
    if bits == 16 and kind != 0:
        raise _Damaged("is a PNG of colours with 16 bits each; expected 8, or 16 of grey")
    return Header("png", (rows, columns, _PNG_CHANNELS[kind]), np.dtype(np.uint16 if bits == 16 else np.uint8))


def _jpeg_header(image: EncodedImages) -> Header:
    try:
        rows, columns, space, _ = simplejpeg.decode_jpeg_header(image)
    except ValueError as error:
        raise _Damaged(f"is a JPEG whose header is damaged: {error}") from error
    if space not in _JPEG_CHANNELS:
        raise _Damaged(f"is a JPEG of {space}; expected colours or grey")
    return Header("jpeg", (rows, columns, _JPEG_CHANNELS[space]), np.dtype(np.uint8))


def _pixels(image: EncodedImages) -> bytes:
    """Return the packed pixels of a PNG. Its checksums are checked, and that it has its end: pillow does neither."""
    view, at, kind = memoryview(image), len(_PNG_MAGIC), b""
    parts: list[memoryview] = []
    while kind != b"IEND":
        size = _U32.unpack_from(view, at)[0] if at + 12 <= len(view) else len(view)
        end = at + 8 + size
        if end + 4 > len(view):
            raise _Damaged(f"is a PNG that is cut at byte {len(view):,}")
        if zlib.crc32(view[at + 4 : end]) != _U32.unpack_from(view, end)[0]:
            raise _Damaged(f"is a PNG whose bytes {at:,} to {end:,} do not have the checksum that they should")
        kind = bytes(view[at + 4 : at + 8])
        if kind == b"IDAT":
            parts.append(view[at + 8 : end])
        at = end + 4
    return b"".join(parts)


def _png(image: EncodedImages, out: NDArray[Any]) -> None:
    packed = _pixels(image)
    bits, kind, *_, interlaced = image[24:29]
    if bits == 8 and kind != _PALETTE and not interlaced:
        from datasets_rl.read import png  # compiles

        png.decode(packed, out)
        return
    with Image.open(io.BytesIO(image), formats=("PNG",)) as opened:
        opened.load()
        wanted = opened.mode if bits == 16 else _PNG_MODES[out.shape[2]]
        out[...] = np.asarray(opened if opened.mode == wanted else opened.convert(wanted)).reshape(out.shape)
