"""Encoding of pixels as PNG images, without loss."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np


def encode_images(pixels: Any) -> list[bytes]:
    """Return images, uint8 [n, rows, columns, channels], as PNG files."""
    from PIL import Image

    files = []
    for image in np.asarray(pixels):
        stream = BytesIO()
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, "png", compress_level=1)
        files.append(stream.getvalue())
    return files
