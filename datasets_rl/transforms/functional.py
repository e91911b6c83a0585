"""Transforms as functions of tensors, with the names of ``torchrl.envs.transforms.functional``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from datasets_rl.arguments import axis_problems, check, choice_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms.base import expand_right

_LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue of the luma transform of ITU-R 601-2, as in Pillow and torchvision."""


def cat_frames(
    tensor: Tensor,
    N: int,  # noqa: N803  # the name in the reference
    dim: int,
    *,
    padding: Literal["same", "constant"] = "same",
    padding_value: float = 0.0,
    time_dim: int = -1,
    done_mask: Tensor | None = None,
) -> Tensor:
    """Return the last N frames of each step, concatenated along an axis.

        frames     0        1        2            N = 3, "same"
        result     0 0 0    0 0 1    0 1 2

    Args:
        tensor: Frames of a trajectory, [..., T, ...].
        N: Number of frames of a stack.
        dim: Axis along which the frames are concatenated, negative.
        padding: What replaces frames before the first frame of a trajectory: "same" (the first frame) or "constant".
        padding_value: Value of the padding "constant".
        time_dim: Time axis, negative.
        done_mask: Which frames of a stack belong to an earlier trajectory, bool [..., T, N]: the first frames of
            the stack. By default the steps are a single trajectory.

    Raises:
        InvalidArgumentError: If an axis is not negative, or the padding is unknown.
    """
    check(axis_problems(dim=dim, time_dim=time_dim), choice_problems("same", "constant", padding=padding))
    time = tensor.ndim + time_dim
    places = torch.arange(N, device=tensor.device)
    steps = torch.arange(tensor.shape[time], device=tensor.device).unsqueeze(1) + places - (N - 1)
    outside = steps < 0
    shape = (*tensor.shape[:time], *outside.shape, *tensor.shape[time + 1 :])
    stacks = tensor.index_select(time, steps.clamp(min=0).reshape(-1)).reshape(shape)
    if done_mask is not None:
        outside = outside | done_mask.to(tensor.device).reshape(*done_mask.shape[: time + 1], N)
    mask = expand_right(outside.expand(*tensor.shape[: time + 1], N), stacks.shape)
    if padding == "constant":
        stacks = stacks.masked_fill(mask, padding_value)
    else:
        first = mask.sum(time + 1, keepdim=True).clamp(max=N - 1)
        stacks = stacks.gather(time + 1, torch.maximum(expand_right(places, stacks.shape[time + 1 :]), first))
    return stacks.movedim(time + 1, dim - 1).flatten(dim - 1, dim)


def rgb_to_grayscale(img: Tensor, num_output_channels: int = 1) -> Tensor:
    """Return images in grayscale, by the luma transform of ITU-R 601-2: 0.2989 red + 0.587 green + 0.114 blue.

    Args:
        img: Images in RGB, [..., 3, H, W].
        num_output_channels: Number of equal channels of the result, 1 or 3.

    Raises:
        InvalidArgumentError: If the images have other channels, or the number is neither 1 nor 3.
    """
    if img.ndim < 3 or img.shape[-3] != 3:
        raise InvalidArgumentError(f"an image has shape {list(img.shape)}, expected [..., 3, H, W]")
    if num_output_channels not in {1, 3}:
        raise InvalidArgumentError(f"num_output_channels is {num_output_channels}, expected 1 or 3")
    red, green, blue = img.unbind(-3)
    luma = (_LUMA[0] * red).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])
    gray = luma.to(img.dtype).unsqueeze(-3)
    return gray.expand(img.shape) if num_output_channels == 3 else gray
