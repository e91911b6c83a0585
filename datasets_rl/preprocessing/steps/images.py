"""Steps for images: [N, H, W], [N, C, H, W] or [N, H, W, C], in the layout of the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import map_fields, require_keys
from datasets_rl.settings import require_memory
from datasets_rl.ted.episode import zero_unknown_states
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

    The last axis is that of the channels if its size is 1, 3 or 4, and that of the first axis of an image is not.
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


S = TypeVar("S", "ToUint8", "StackFrames")


def _for_images(step: S, fields: EpisodeBatch) -> S | None:
    """Return a step restricted to the images of an environment, see `Step.for_environment`."""
    if named := [name for name in step.keys if as_key(name) in fields.steps]:
        raise InvalidArgumentError(f"{', '.join(named)} is an action, which has no inverse")
    names = tuple(name for name in step.keys if as_key(name) in fields.states)
    applies = bool(names if step.keys else fields.states)
    return replace(step, keys=names) if applies else None


@dataclass
class ToUint8(Step):
    """Convert floating-point images in [0, 1] to uint8: x * 255, rounded.

    Args:
        keys: The fields; by default all floating-point images.
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
        return _for_images(self, fields)

    def _to_bytes(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind != "f":
            raise InvalidArgumentError(f"{dotted_name(key)} holds {values.dtype}; expected floating point")
        if len(values) and not 0 <= values.min() <= values.max() <= 1:
            raise InvalidArgumentError(
                f"{dotted_name(key)} holds {values.min():g} to {values.max():g}; expected values from 0 to 1"
            )
        return np.rint(values * 255).astype(np.uint8)  # type: ignore[no-any-return]  # an array of uint8


@dataclass
class StackFrames(Step):
    """Stack each frame with the previous ones of its episode.

        frame     f0        f1        f2        final       n = 3, along the channels
        stack     f0 f0 f0  f0 f0 f1  f0 f1 f2  f1 f2 f

    The result takes n times the space; the transform `CatFrames` of a buffer stacks frames when batches are sampled.

    Args:
        n: The number of frames of a stack, at least 1.
        keys: The fields; by default all images. [H, W] becomes [n, H, W], and C channels become n * C.
        dim: The axis of concatenation, counted from the last one, -1; an axis before the first one is added. By
            default it is that of the channels of images, and the first axis of other fields.
        padding: The frames before the first one of an episode: "same" repeats the first one, "zeros" are zeros.
    """

    n: int = 4
    keys: tuple[str, ...] = ()
    dim: int | None = None
    padding: Literal["same", "zeros"] = "same"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidArgumentError(f"n is {self.n}; expected at least 1")
        if self.dim is not None and self.dim >= 0:
            raise InvalidArgumentError(f"dim is {self.dim}; expected a negative axis, counted from the last one")
        if self.padding not in {"same", "zeros"}:
            raise InvalidArgumentError(f"padding is {self.padding!r}; expected 'same' or 'zeros'")

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        steps, states, final_states = dict(batch.steps), dict(batch.states), dict(batch.final_states)
        table = batch.table
        require_memory(self.n * batch.count * 8, f"stack_frames with n = {self.n:,}", hint="give a smaller n, as in 4")
        starts = np.repeat(table.starts, batch.lengths)
        rows = [np.arange(batch.count) - offset for offset in reversed(range(self.n))]
        ends = [table.stops - offset for offset in reversed(range(1, self.n))]
        for key in require_keys(batch, self.keys) or image_keys(batch):
            frames = np.asarray(states[key] if key in states else steps[key])
            require_memory(self.n * frames.nbytes, f"stack_frames of {dotted_name(key)} with n = {self.n:,}")
            axis = self._axis(key, frames)
            stack = _stack_channels([self._padded_frames(frames, index, starts) for index in rows], axis)
            if key in steps:
                steps[key] = stack
                continue
            states[key] = stack
            last = [
                *(self._padded_frames(frames, index, table.starts) for index in ends),
                np.asarray(final_states[key]),
            ]
            final_states[key] = zero_unknown_states(_stack_channels(last, axis), batch.final_known)
        return replace(batch, steps=steps, states=states, final_states=final_states)

    @property
    @override
    def window(self) -> int:
        return self.n

    @override
    def for_environment(self, fields: EpisodeBatch) -> StackFrames | None:
        return _for_images(self, fields)

    def _axis(self, key: Key, frames: NDArray[Any]) -> int:
        """Return the axis of concatenation in [N, ...]; 0 stands for an axis that is added after the first one."""
        axes = frames.ndim - 1
        if self.dim is None:
            return 0 if axes in {0, _HW} else frames.ndim - 1 if _is_channels_last(frames) else 1
        if -self.dim > axes + 1:
            raise InvalidArgumentError(
                f"dim is {self.dim}; expected at least {-axes - 1} for {dotted_name(key)} {list(frames.shape[1:])}"
            )
        return frames.ndim + self.dim

    def _padded_frames(self, frames: NDArray[Any], rows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[Any]:
        """Return the frames of some rows, or their padding where a row is before the first one of its episode."""
        result: NDArray[Any] = frames[np.maximum(rows, starts)]
        if self.padding == "zeros":
            result[rows < starts] = 0
        return result


def _stack_channels(frames: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
    """Concatenate frames along an axis; 0 adds an axis after the first one."""
    result: NDArray[Any] = np.concatenate(frames, axis=axis) if axis else np.stack(frames, axis=1)
    return result
