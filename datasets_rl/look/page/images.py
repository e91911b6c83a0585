"""Detection of image fields, and conversion of arrays to image files that a browser shows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.schema import Column

_CHANNELS = {1, 3, 4}
_MAX_STACKED = 16
"""Maximum number of frames of a stack, [frames, height, width], that is shown side by side."""


def is_image(field: Column) -> bool:
    """Return whether a field is shown as an image.

    Images are encoded images, and arrays of the shapes [height, width], [height, width, channels], [channels, height,
    width] and, for uint8, [frames, height, width].
    """
    return field.image_form.holds_files or (not field.text and _layout(field.shape, field.dtype) is not None)


def _layout(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """Return the axes of an image: "HW", "HWC", "CHW" or "SHW". Return None if the array is not an image."""
    pixels = dtype == np.uint8
    min_side = 4 if pixels else 8
    if len(shape) == 2:
        return "HW" if min(shape) >= max(min_side, 8) else None
    if len(shape) != 3:
        return None
    if shape[2] in _CHANNELS and min(shape[:2]) >= min_side:
        return "HWC"
    if shape[0] in {1, 3} and min(shape[1:]) >= min_side:
        return "CHW"
    return "SHW" if pixels and shape[0] <= _MAX_STACKED and min(shape[1:]) >= 16 else None


def as_pixels(values: NDArray[Any], scale: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Return an array as gray, RGB or RGBA pixels, uint8 [height, width] or [height, width, channels].

    Values of other dtypes than uint8, such as depths, are scaled linearly.

    Args:
        values: The image, in any of the shapes of `is_image`.
        scale: The values that are drawn black and white, by default the least and the greatest value of the image.
    """
    layout = _layout(values.shape, values.dtype)
    if values.dtype != np.uint8:
        values = _scaled(values, scale_of(values) if scale is None else scale)
    if layout == "CHW":
        values = values.transpose(1, 2, 0)
    elif layout == "SHW":
        values = values.transpose(1, 0, 2).reshape(values.shape[1], -1)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    return np.ascontiguousarray(values)


def scale_of(values: NDArray[Any]) -> tuple[float, float]:
    """Return the least and the greatest finite value, or (0, 0) if no value is finite."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _scaled(values: NDArray[Any], scale: tuple[float, float]) -> NDArray[np.uint8]:
    low, high = scale
    numbers = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        # Halves do not overflow, whatever the range.
        parts = (numbers / 2 - low / 2) / max(high / 2 - low / 2, np.finfo(float).tiny)
    return (np.where(np.isfinite(numbers), parts.clip(0, 1), 0) * 255).round().astype(np.uint8)


def encode(values: NDArray[Any], *, scale: tuple[float, float] | None = None, max_side: int | None = None) -> bytes:
    """Return an image as the bytes of a PNG file, or with `max_side` of the smaller of a PNG and a JPEG file.

    Args:
        values: The image, in any of the shapes of `is_image`.
        scale: The values that are drawn black and white, as in `as_pixels`.
        max_side: The maximum height and width of the image, by default the original size.
    """
    from PIL import Image

    image = Image.fromarray(as_pixels(values, scale))
    if max_side is None:
        return _file(image, "PNG", compress_level=1)
    if max(image.size) > max_side:
        image.thumbnail((max_side, max_side))
    opaque = image.convert("RGB") if image.mode == "RGBA" else image
    return min(_file(image, "PNG", optimize=True), _file(opaque, "JPEG", quality=85, subsampling=0), key=len)


def _file(image: Any, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def media_type(data: bytes) -> str:
    """Return the media type of the bytes of a PNG or JPEG file."""
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
