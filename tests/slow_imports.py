"""Packages whose import takes long, and which commands and modules that need none of them must not import."""

from __future__ import annotations

SLOW_IMPORTS = (
    "torch",
    "tensordict",
    "h5py",
    "PIL",
    "simplejpeg",
    "pyarrow",
    "httpx",
    "pandas",
    "sklearn",
    "minari",
    "huggingface_hub",
)
