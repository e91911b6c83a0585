"""Steps for pictures: [N, H, W], [N, C, H, W] or [N, H, W, C], whichever way the source has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import mapped, need
from datasets_rl.settings import require_memory
from datasets_rl.ted.episode import known_only
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import Key, dotted

__all__ = ["StackFrames", "ToUint8", "channels_first", "channels_last", "images"]

_CHANNELS = {1, 3, 4}
_BARE, _FULL = 2, 3
"""Axes of a picture without channels, and with them."""


def images(block: EpisodeBatch) -> list[Key]:
    """Return the states that hold pictures: bytes of two axes or three, or fractions of three.

    Raises:
        InvalidArgumentError: If there is none.
    """
    found = [
        key
        for key, values in block.states.items()
        if (values.dtype == np.uint8 and values.ndim - 1 in {_BARE, _FULL})
        or (values.dtype.kind == "f" and values.ndim - 1 == _FULL)
    ]
    if not found:
        raise InvalidArgumentError("no state holds pictures", hint="name the field with in_keys= or keys=")
    return found


def channels_first(values: NDArray[Any], change: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Return pictures changed by a function of [N, C, H, W], laid out as they were.

    The channels stand last where there are 1, 3 or 4 of them there, and not so many at the front.
    """
    found: NDArray[Any]
    if values.ndim - 1 == _BARE:
        found = change(np.array(values)[:, None])[:, 0]
    elif _channels_last(values):
        found = np.moveaxis(change(np.array(np.moveaxis(values, -1, 1), order="C")), 1, -1)
    else:
        found = change(np.array(values))
    return np.ascontiguousarray(found)


def channels_last(values: NDArray[Any]) -> NDArray[Any]:
    """Return pictures as [N, H, W, C]."""
    if values.ndim - 1 == _BARE:
        return np.array(values)[..., None]
    return np.array(values if _channels_last(values) else np.moveaxis(values, 1, -1))


def _channels_last(values: NDArray[Any]) -> bool:
    return bool(values.shape[-1] in _CHANNELS and values.shape[1] not in _CHANNELS)


@dataclass
class ToUint8(Step):
    """Store pictures of fractions from 0 to 1 as whole numbers from 0 to 255: x * 255, rounded.

    Args:
        keys: The fields; by default all pictures of fractions.
    """

    keys: tuple[str, ...] = ()

    summary = "fractions from 0 to 1 as whole numbers to 255"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with its pictures as bytes."""
        found = need(block, self.keys) or [key for key in images(block) if block.states[key].dtype.kind == "f"]
        return mapped(block, found, self._bytes)

    def _bytes(self, key: Key, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind != "f":
            raise InvalidArgumentError(f"{dotted(key)} holds {values.dtype}; expected fractions")
        if len(values) and not 0 <= values.min() <= values.max() <= 1:
            raise InvalidArgumentError(
                f"{dotted(key)} holds {values.min():g} to {values.max():g}; expected numbers from 0 to 1"
            )
        return np.rint(values * 255).astype(np.uint8)  # type: ignore[no-any-return]  # of an array


@dataclass
class StackFrames(Step):
    """Put the frames before each one in front of it; before the first one of an episode there is the first one.

        frame     f0        f1        f2        final       n = 3, along the channels
        stack     f0 f0 f0  f0 f0 f1  f0 f1 f2  f1 f2 f

    It takes n times the room; `CatFrames` on a buffer does the same as batches are drawn.

    Args:
        n: Frames of a stack, at least 1.
        keys: The states; by default all pictures. [H, W] becomes [n, H, W], and C channels become n * C.
    """

    n: int = 4
    keys: tuple[str, ...] = ()

    summary = "each frame with those before it, along the channels"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidArgumentError(f"n is {self.n}; expected at least 1")

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with stacks."""
        states, final_states = dict(block.states), dict(block.final_states)
        table = block.table
        require_memory(self.n * block.count * 8, f"stack_frames with n = {self.n:,}", hint="give a smaller n, as in 4")
        firsts = np.repeat(table.starts, block.lengths)
        rows = [np.maximum(np.arange(block.count) - back, firsts) for back in reversed(range(self.n))]
        ends = [np.maximum(table.stops - back, table.starts) for back in reversed(range(1, self.n))]
        for key in need(block, self.keys) or images(block):
            if key not in states:
                raise InvalidArgumentError(f"{dotted(key)} is no state")
            frames, last = np.asarray(states[key]), np.asarray(final_states[key])
            require_memory(self.n * frames.nbytes, f"stack_frames of {dotted(key)} with n = {self.n:,}")
            bare = frames.ndim - 1 == _BARE
            stop = not bare and _channels_last(frames)
            join: Any = np.stack if bare else np.concatenate
            axis = -1 if stop else 1
            states[key] = join([frames[one] for one in rows], axis=axis)
            final_states[key] = known_only(join([*(frames[one] for one in ends), last], axis=axis), block.final_known)
        return replace(block, states=states, final_states=final_states)
