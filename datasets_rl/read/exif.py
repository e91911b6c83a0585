"""Orientation that the EXIF metadata of a JPEG image state."""

from __future__ import annotations

import struct

UPRIGHT = 1
"""Orientation of an image whose first row is the top, and of an image that states none."""
_APP1, _SCAN = 0xE1, 0xDA
_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
_SEGMENTS_MAX = 64
_SHORT = 3


def orientation(image: bytes) -> int:
    """Return the orientation of a JPEG image, from 1 to 8, by the first bytes of the image.

    Decoders of images differ: OpenCV turns the pixels, and Pillow does not.
    """
    at = 2
    for _ in range(_SEGMENTS_MAX):
        if len(image) < at + 4 or image[at] != 0xFF or image[at + 1] == _SCAN:
            break
        (size,) = struct.unpack_from(">H", image, at + 2)
        if image[at + 1] == _APP1 and image[at + 4 : at + 10] == _EXIF:
            return _orientation_of(image[at + 10 : at + 2 + size])
        at += 2 + size
    return UPRIGHT


def _orientation_of(tiff: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return UPRIGHT
    (first,) = struct.unpack_from(f"{order}I", tiff, 4)
    if len(tiff) < first + 2:
        return UPRIGHT
    (count,) = struct.unpack_from(f"{order}H", tiff, first)
    for entry in range(first + 2, min(first + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
        if tag == _ORIENTATION and kind == _SHORT:
            (value,) = struct.unpack_from(f"{order}H", tiff, entry + 8)
            return value if UPRIGHT <= value <= 8 else UPRIGHT
    return UPRIGHT
