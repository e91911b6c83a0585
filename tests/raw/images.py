"""Encoded images, written and read by pillow."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def scene(rows, columns, channels=3, seed=0):
    """Return patches of color with some noise, uint8 [rows, columns, channels]."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (rows // 8 + 1, columns // 8 + 1, channels))
    pixels = np.repeat(np.repeat(patches, 8, 0), 8, 1)[:rows, :columns] + rng.integers(-3, 4, (rows, columns, channels))
    return pixels.clip(0, 255).astype(np.uint8)


def encoded(pixels, kind="PNG", **options):
    """Return pixels encoded as PNG, or in another format of pillow."""
    out = io.BytesIO()
    flat = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    Image.fromarray(flat).save(out, kind, **options)
    return out.getvalue()


def decoded(data):
    """Return the pixels of an encoded image."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)
