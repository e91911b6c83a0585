"""The step that changes how images are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.images.encoded import EncodedColumn, encode
from datasets_rl.format.schema import WIDE_BYTES
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import map_fields, require_keys
from datasets_rl.ted.episode import EncodedImages, StoredImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, dotted_name

_MIN_AXES = 2
"""The number of axes of a column with one axis per step, [n, ...]."""
_IMAGE_AXES, _CHANNELS = 3, (1, 3)
_MAX_QUALITY = 100


@dataclass
class CompressImages(DataStep):
    """Store images compressed without loss, as PNG or JPEG with form=encoded, or as pixels with form=raw.

    Args:
        keys: The fields. By default all of uint8 with at least 4,096 bytes per step, and all images that are encoded or
            compressed.
        form: How the images are stored: "compressed", "encoded" (PNG without loss or, with `quality`, JPEG), or "raw".
            With "encoded", encoded images stay unchanged.
        quality: The quality of JPEG images, 1 to 100. Their pixels are not quite the same: the metadata of the result
            name the loss.
    """

    keys: tuple[str, ...] = ()
    form: Literal["compressed", "encoded", "raw"] = "compressed"
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.form not in {"compressed", "encoded", "raw"}:
            raise InvalidArgumentError(f"form is {self.form!r}, expected 'compressed', 'encoded' or 'raw'")
        is_quality = isinstance(self.quality, int) and 1 <= self.quality <= _MAX_QUALITY
        if self.quality is not None and not (is_quality and self.form == "encoded"):
            raise InvalidArgumentError(
                f"quality is {self.quality!r} with form={self.form}, expected 1 to {_MAX_QUALITY} with form=encoded"
            )

    @property
    @override
    def fitted(self) -> dict[str, str]:
        if self.quality is None:
            return {}
        return {"loss": f"pixels were encoded as JPEG of quality {self.quality}, which is lossy"}

    @override
    def restore(self, fitted: Mapping[str, Any]) -> None:
        del fitted  # it follows from the arguments

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        arrays = {**batch.steps, **batch.states}
        keys = require_keys(batch, self.keys) or [
            key for key, values in arrays.items() if key in batch.compressed or _is_image(values)
        ]
        if not keys:
            raise InvalidArgumentError(
                f"no field has images: uint8 with at least {WIDE_BYTES:,} bytes per step", hint="name fields with keys="
            )
        if others := [key for key in keys if arrays[key].dtype != np.uint8 or arrays[key].ndim < _MIN_AXES]:
            actual = ", ".join(
                f"{dotted_name(key)} is {arrays[key].dtype} {list(arrays[key].shape[1:])}" for key in others
            )
            raise InvalidArgumentError(f"{actual}, expected uint8 with at least one axis")
        if self.form == "compressed":
            return replace(batch, compressed=batch.compressed | {*keys})
        if self.form == "encoded":
            keys = [key for key in keys if not isinstance(arrays[key], EncodedImages)]
            _check_can_be_encoded({key: arrays[key].shape[1:] for key in keys})
            return replace(map_fields(batch, keys, self._encode), compressed=batch.compressed - {*keys})
        stored = [key for key in keys if isinstance(arrays[key], StoredImages)]
        return replace(map_fields(batch, stored, lambda _, pixels: pixels), compressed=batch.compressed - {*keys})

    def _encode(self, key: Key, pixels: NDArray[np.uint8]) -> Any:
        return EncodedColumn(encode(pixels, self.quality), pixels.shape[1:], Path(dotted_name(key)))


def _check_can_be_encoded(shapes: Mapping[Key, tuple[int, ...]]) -> None:
    """Check the shapes of images."""
    others = [
        f"{dotted_name(key)} has the shape {list(shape)}"
        for key, shape in shapes.items()
        if len(shape) != _IMAGE_AXES or shape[-1] not in _CHANNELS or math.prod(shape) < WIDE_BYTES
    ]
    if others:
        raise InvalidArgumentError(
            f"{', '.join(others)}, expected images [rows, columns, channels] with 1 or 3 channels and at least "
            f"{WIDE_BYTES:,} bytes",
            hint="name other fields with keys=, or use form=compressed, which takes any shape",
        )


def _is_image(values: Any) -> bool:
    is_wide = values.dtype == np.uint8 and math.prod(values.shape[1:]) >= WIDE_BYTES
    return is_wide or isinstance(values, StoredImages)
