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
from datasets_rl.preprocessing.steps._fields import mapped, need
from datasets_rl.settings import require_memory
from datasets_rl.ted.episode import known_only
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, dotted

__all__ = ["StackFrames", "ToUint8", "channels_first", "channels_last", "images"]

_CHANNELS = {1, 3, 4}
_HW, _CHW = 2, 3
"""The number of axes of an image without channels, and with channels."""


def images(batch: EpisodeBatch) -> list[Key]:
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


def channels_first(values: NDArray[Any], change: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Apply a function of [N, C, H, W] to images, and return the result in the layout of the images.

    The last axis is that of the channels if its size is 1, 3 or 4, and that of the first axis of an image is not.
    """
    result: NDArray[Any]
    if values.ndim - 1 == _HW:
        result = change(np.array(values)[:, None])[:, 0]
    elif _channels_last(values):
        result = np.moveaxis(change(np.array(np.moveaxis(values, -1, 1), order="C")), 1, -1)
    else:
        result = change(np.array(values))
    return np.ascontiguousarray(result)


def channels_last(values: NDArray[Any]) -> NDArray[Any]:
    """Return images as [N, H, W, C]."""
    if values.ndim - 1 == _HW:
        return np.array(values)[..., None]
    return np.array(values if _channels_last(values) else np.moveaxis(values, 1, -1))


def _channels_last(values: NDArray[Any]) -> bool:
    return bool(values.shape[-1] in _CHANNELS and values.shape[1] not in _CHANNELS)


@dataclass
class ToUint8(Step):
    """Convert floating-point images in [0, 1] to uint8: x * 255, rounded.

    Args:
        keys: The fields; by default all floating-point images.
    """

    keys: tuple[str, ...] = ()

    summary = "fractions from 0 to 1 as whole numbers to 255"

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        keys = need(batch, self.keys) or [key for key in images(batch) if batch.states[key].dtype.kind == "f"]
        return mapped(batch, keys, self._bytes)

    def _bytes(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind != "f":
            raise InvalidArgumentError(f"{dotted(key)} holds {values.dtype}; expected floating point")
        if len(values) and not 0 <= values.min() <= values.max() <= 1:
            raise InvalidArgumentError(
                f"{dotted(key)} holds {values.min():g} to {values.max():g}; expected values from 0 to 1"
            )
        return np.rint(values * 255).astype(np.uint8)  # type: ignore[no-any-return]  # an array of uint8


@dataclass
class StackFrames(Step):
    """Stack each frame with the previous ones; at the start of an episode the first frame is repeated.

        frame     f0        f1        f2        final       n = 3, along the channels
        stack     f0 f0 f0  f0 f0 f1  f0 f1 f2  f1 f2 f

    The result takes n times the space; the transform `CatFrames` of a buffer stacks frames when batches are sampled.

    Args:
        n: The number of frames of a stack, at least 1.
        keys: The states; by default all images. [H, W] becomes [n, H, W], and C channels become n * C.
    """

    n: int = 4
    keys: tuple[str, ...] = ()

    summary = "each frame with those before it, along the channels"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidArgumentError(f"n is {self.n}; expected at least 1")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        states, final_states = dict(batch.states), dict(batch.final_states)
        table = batch.table
        require_memory(self.n * batch.count * 8, f"stack_frames with n = {self.n:,}", hint="give a smaller n, as in 4")
        firsts = np.repeat(table.starts, batch.lengths)
        rows = [np.maximum(np.arange(batch.count) - offset, firsts) for offset in reversed(range(self.n))]
        ends = [np.maximum(table.stops - offset, table.starts) for offset in reversed(range(1, self.n))]
        for key in need(batch, self.keys) or images(batch):
            if key not in states:
                raise InvalidArgumentError(f"{dotted(key)} is not a state")
            frames, last = np.asarray(states[key]), np.asarray(final_states[key])
            require_memory(self.n * frames.nbytes, f"stack_frames of {dotted(key)} with n = {self.n:,}")
            no_channels = frames.ndim - 1 == _HW
            join: Any = np.stack if no_channels else np.concatenate
            axis = -1 if not no_channels and _channels_last(frames) else 1
            states[key] = join([frames[index] for index in rows], axis=axis)
            stacked = join([*(frames[index] for index in ends), last], axis=axis)
            final_states[key] = known_only(stacked, batch.final_known)
        return replace(batch, states=states, final_states=final_states)
