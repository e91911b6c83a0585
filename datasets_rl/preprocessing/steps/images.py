"""Steps for images: [N, H, W], [N, C, H, W] or [N, H, W, C], in the layout of the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import map_fields, require_keys
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, as_key, dotted_name

_CHANNELS = {1, 3, 4}
_HW, _CHW = 2, 3
"""The number of axes of an image without channels, and with channels."""


def image_keys(batch: EpisodeBatch) -> list[Key]:
    """Return the keys of the states that hold images: uint8 with two or three axes, or floating point with three.

    Raises:
        InvalidArgumentError: If no state holds images.
    """
    keys = [
        key
        for key, values in batch.states.items()
        if (values.dtype == np.uint8 and values.ndim - 1 in {_HW, _CHW})
        or (values.dtype.kind == "f" and values.ndim - 1 == _CHW)
    ]
    if not keys:
        raise InvalidArgumentError("no state holds images", hint="name the field with in_keys= or keys=")
    return keys


def apply_channels_first(values: NDArray[Any], change: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Apply a function of [N, C, H, W] to images, and return the result in the layout of the images.

    The last axis has the channels if the size of this axis is 1, 3 or 4, and the size of the first axis is not.
    """
    result: NDArray[Any]
    if values.ndim - 1 == _HW:
        result = change(np.array(values)[:, None])[:, 0]
    elif _is_channels_last(values):
        result = np.moveaxis(change(np.array(np.moveaxis(values, -1, 1), order="C")), 1, -1)
    else:
        result = change(np.array(values))
    return np.ascontiguousarray(result)


def to_channels_last(values: NDArray[Any]) -> NDArray[Any]:
    """Return images as [N, H, W, C]."""
    if values.ndim - 1 == _HW:
        return np.array(values)[..., None]
    return np.array(values if _is_channels_last(values) else np.moveaxis(values, 1, -1))


def _is_channels_last(values: NDArray[Any]) -> bool:
    return bool(values.shape[-1] in _CHANNELS and values.shape[1] not in _CHANNELS)


@dataclass
class ToUint8(Step):
    """Convert floating-point images in [0, 1] to uint8: x * 255, rounded.

    Args:
        keys: The fields. By default all floating-point images.
    """

    keys: tuple[str, ...] = ()

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        keys = require_keys(batch, self.keys) or [
            key for key in image_keys(batch) if batch.states[key].dtype.kind == "f"
        ]
        return map_fields(batch, keys, self._to_bytes)

    @override
    def for_environment(self, fields: EpisodeBatch) -> ToUint8 | None:
        if named := [name for name in self.keys if as_key(name) in fields.steps]:
            raise InvalidArgumentError(f"{', '.join(named)} is an action, which has no inverse")
        names = tuple(name for name in self.keys if as_key(name) in fields.states)
        applies = bool(names if self.keys else fields.states)
        return replace(self, keys=names) if applies else None

    def _to_bytes(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind != "f":
            raise InvalidArgumentError(f"{dotted_name(key)} holds {values.dtype}, expected floating point")
        if len(values) and not 0 <= values.min() <= values.max() <= 1:
            raise InvalidArgumentError(
                f"{dotted_name(key)} holds {values.min():g} to {values.max():g}, expected values from 0 to 1"
            )
        return np.rint(values * 255).astype(np.uint8)  # type: ignore[no-any-return]  # an array of uint8
