"""Images as files, without loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from datasets_rl.format.images.encoded import encode
from datasets_rl.ted.episode import EncodedImages


def encode_images(images: Any) -> list[bytes]:
    """Return images as files: encoded images unchanged, and pixels, uint8 [n, rows, columns, channels], as PNG."""
    if isinstance(images, EncodedImages):
        return [bytes(image) for image in images.images]
    return encode(np.asarray(images))
