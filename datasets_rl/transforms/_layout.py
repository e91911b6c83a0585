"""Check of the layout of images, channels first or last, before a transform takes rows of pixels for channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets_rl.errors import InvalidArgumentError

IMAGE_AXES = 3
_CHANNELS = frozenset({1, 3, 4})
"""Numbers of channels of images: gray, RGB, and RGB with alpha or depth."""


def check_layout(transform: Any, shape: Sequence[int], hint: str, *, channels_last: bool = False) -> None:
    """Check that images do not have the other layout: a number of channels at its place, and larger axes elsewhere.

        expected [C, H, W]      [3, 84, 84]   [12, 84, 84]   [64, 4, 4]   [3, 3, 3]      are accepted
                                [84, 84, 3]   [210, 160, 1]                              are refused

    Args:
        transform: Transform of the images, which the error names.
        shape: Shape of the images, [..., C, H, W]. A shape of fewer axes is accepted.
        hint: How to convert images of the other layout.
        channels_last: Whether the expected layout is [..., H, W, C].

    Raises:
        InvalidArgumentError: If the images have the other layout.
    """
    if len(shape) < IMAGE_AXES:
        return
    place, others = (-3, shape[-2:]) if channels_last else (-1, shape[-3:-1])
    if shape[place] in _CHANNELS and min(others) > max(_CHANNELS):
        expected, other = ("H, W, C", "C, H, W") if channels_last else ("C, H, W", "H, W, C")
        raise InvalidArgumentError(
            f"{transform!r} expects images [..., {expected}], but {list(shape[-3:])} is the shape of an image [{other}]",
            hint=f"{hint}, or pass check_layout=False if the axes are right",
        )


def channel_axis(shape: Sequence[int]) -> int:
    """Return the axis along which frames of a shape are stacked, negative, or 0 for a new first axis.

        [H, W], []     0          [C, H, W]    -3          [H, W, C]    -1          [D]    -1

    The last axis is that of the channels if its size is 1, 3 or 4, and that of the first axis is not.
    """
    if len(shape) in {0, IMAGE_AXES - 1}:
        return 0
    return -1 if shape[-1] in _CHANNELS and shape[0] not in _CHANNELS else -len(shape)
