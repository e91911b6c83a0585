"""The step that changes how images are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import WIDE_BYTES
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import map_fields, require_keys
from datasets_rl.ted.episode import StoredImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import dotted_name

_MIN_AXES = 2
"""The number of axes of a column with one axis per step, [n, ...]."""


@dataclass
class CompressImages(DataStep):
    """Store images compressed by zstd, without loss; or as pixels, with form=raw.

    Args:
        keys: The fields; by default all of uint8 with at least 4,096 bytes per step, and all images that are encoded or
            compressed.
        form: How they are stored: "compressed" or "raw".
    """

    keys: tuple[str, ...] = ()
    form: Literal["compressed", "raw"] = "compressed"

    def __post_init__(self) -> None:
        if self.form not in {"compressed", "raw"}:
            raise InvalidArgumentError(f"form is {self.form!r}; expected 'compressed' or 'raw'")

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
            raise InvalidArgumentError(f"{actual}; expected uint8 with at least one axis")
        if self.form == "compressed":
            return replace(batch, compressed=batch.compressed | {*keys})
        stored = [key for key in keys if isinstance(arrays[key], StoredImages)]
        return replace(map_fields(batch, stored, lambda _, pixels: pixels), compressed=batch.compressed - {*keys})


def _is_image(values: Any) -> bool:
    is_wide = values.dtype == np.uint8 and math.prod(values.shape[1:]) >= WIDE_BYTES
    return is_wide or isinstance(values, StoredImages)
