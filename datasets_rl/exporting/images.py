"""Images as files, without loss."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from datasets_rl.ted.episode import EncodedImages


def encode_images(images: Any) -> list[bytes]:
    """Return images as files: encoded ones unchanged, and pixels, uint8 [n, rows, columns, channels], as PNG."""
    if isinstance(images, EncodedImages):
        return [bytes(image) for image in images.images]
    from PIL import Image

    files = []
    for image in np.asarray(images):
        stream = BytesIO()
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, "png", compress_level=1)
        files.append(stream.getvalue())
    return files
