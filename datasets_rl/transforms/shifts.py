"""Random shifts of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, is_number, size_problems, unless
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import TensorSpec
from datasets_rl.transforms._bounds import bounds_of, spec_between
from datasets_rl.transforms._layout import IMAGE_AXES, check_layout
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, key_list


class RandomShift(Transform):
    """Shift images by a random number of pixels along each axis. Pixels at the border are repeated.

    This is the augmentation of DrQ-v2 (Yarats et al., 2021, `RandomShiftsAug`) as a copy of pixels: exact for uint8
    images, on any device, and with the same random numbers.

        row of an image    a b c d        pad 1, shift 0, 1, 2        a a b c   a b c d   b c d d

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import RandomShift
        >>> batch = TensorDict({"pixels": torch.zeros(4, 3, 84, 84)}, [4])
        >>> RandomShift(4, in_keys=["pixels"])(batch)["pixels"].shape
        torch.Size([4, 3, 84, 84])

    Args:
        pad: Largest shift to each side. Each shift is uniform over the 2 * pad + 1 possible shifts.
        in_keys: Keys of the images, ``["pixels"]`` by default, or the keys of `same_for`.
        same_for: Keys that get a common shift per row, such as the observation and the next observation. The images
            of each other key are shifted independently.
        p: Probability with which a batch is shifted, with all of its images.
        channels_last: Whether images are [..., height, width, channels] instead of [..., channels, height, width].
        check_layout: Whether to refuse images whose shape is that of the other layout.

    Raises:
        InvalidArgumentError: If `pad` is negative, `p` is outside of [0, 1], a key of `same_for` is not in `in_keys`,
            or an image has the other layout.
    """

    axes = IMAGE_AXES

    def __init__(
        self,
        pad: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        same_for: Sequence[NestedKey] = (),
        p: float = 1.0,
        channels_last: bool = False,
        check_layout: bool = True,
    ) -> None:
        together = key_list(same_for)
        super().__init__((together or ["pixels"]) if in_keys is None else in_keys, out_keys)
        self.same_for = together
        missing = [key for key in self.same_for if key not in self.in_keys]
        check(
            size_problems(0, pad=pad),
            unless(is_number(p) and 0 <= p <= 1, f"p is {p!r}, expected 0 to 1"),
            unless(not missing, f"same_for has {missing}, which are not in in_keys"),
        )
        self.pad, self.p, self.channels_last = pad, p, channels_last
        self.check_layout = check_layout

    @override
    def transform_batch(self, batch: Any) -> Any:
        shifted = self.p >= 1 or bool(torch.rand(()) < self.p)
        common: Tensor | None = None
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            images = self.tensor(batch, in_key)
            self._check_axes(in_key, images, batch.ndim)
            if not shifted:
                batch.set(out_key, images)
                continue
            shifts = common if in_key in self.same_for and common is not None else self._draw(images)
            if in_key in self.same_for:
                common = shifts
            batch.set(out_key, self.shift(images, shifts))
        return batch

    def _draw(self, images: Tensor) -> Tensor:
        """Return a random shift of each image, int64 [images, 2]."""
        count = images.shape[:-3].numel()
        return torch.randint(0, 2 * self.pad + 1, (count, 2), device=images.device)

    def shift(self, images: Tensor, shifts: Tensor) -> Tensor:
        """Return shifted images.

        Args:
            images: Images, [*batch, C, H, W], or [*batch, H, W, C] with `channels_last`.
            shifts: Shifts along x and y, int64 [images, 2], from 0 to 2 * pad. `pad` leaves an image unchanged.

        Raises:
            InvalidArgumentError: If the images have fewer than three axes, or the number of shifts differs from that of
                the images.
        """
        if images.ndim < 3:
            raise InvalidArgumentError(f"an image has shape {list(images.shape)}, expected at least three axes")
        self._check_images(images.shape)
        if len(shifts) != images.shape[:-3].numel():
            raise InvalidArgumentError(
                f"there are {len(shifts)} shifts for {images.shape[:-3].numel()} images of shape"
                f" {list(images.shape[-3:])}",
                hint="leave the keys of images with other leading axes out of same_for",
            )
        pad, tall = self.pad, -3 if self.channels_last else -2
        flat = images.reshape(-1, *images.shape[-3:])
        padded = _repeat_border(flat, pad, tall)
        size, row, column = padded.stride(0), padded.stride(tall), padded.stride(tall + 1)
        # A view of all crops by the index of their first element, of which one per image is copied.
        strides = (1, row, column, 1) if self.channels_last else (1, padded.stride(1), row, 1)
        extent = sum((count - 1) * stride for count, stride in zip(flat.shape[1:], strides[1:], strict=True))
        crops = padded.as_strided((padded.numel() - extent, *flat.shape[1:]), strides)
        firsts = torch.arange(len(flat), device=flat.device) * size + shifts[:, 1] * row + shifts[:, 0] * column
        return crops.index_select(0, firsts).reshape(images.shape)

    def _check_images(self, shape: Sequence[int]) -> None:
        if self.check_layout:
            hint = f"pass channels_last={not self.channels_last}"
            check_layout(self, shape, hint, channels_last=self.channels_last)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_images(spec.shape)
        bounds = bounds_of(spec)
        if bounds is None:
            return any_like(spec.zero())
        axes = (-3, -2) if self.channels_last else (-2, -1)
        low, high = bounds
        return spec_between(low.amin(axes, keepdim=True).expand_as(low), high.amax(axes, keepdim=True).expand_as(high))

    def _repr_arguments(self) -> dict[str, Any]:
        return {"pad": self.pad, **({"p": self.p} if self.p < 1 else {})}


def _repeat_border(images: Tensor, pad: int, tall: int) -> Tensor:
    """Return images with their border repeated on each side, a contiguous tensor.

    Args:
        images: Images, [B, C, H, W] or [B, H, W, C].
        pad: Number of pixels to add on each side.
        tall: Axis of the height, negative. The next axis is the width.
    """
    wide = tall + 1
    height, width = images.shape[tall], images.shape[wide]
    shape = list(images.shape)
    shape[tall] += 2 * pad
    shape[wide] += 2 * pad
    padded = images.new_empty(shape)
    middle = padded.narrow(tall, pad, height)
    middle.narrow(wide, pad, width).copy_(images)
    if pad:
        middle.narrow(wide, 0, pad).copy_(images.narrow(wide, 0, 1).expand_as(middle.narrow(wide, 0, pad)))
        right = middle.narrow(wide, pad + width, pad)
        right.copy_(images.narrow(wide, width - 1, 1).expand_as(right))
        for start, edge in ((0, pad), (pad + height, pad + height - 1)):
            border = padded.narrow(tall, start, pad)
            border.copy_(padded.narrow(tall, edge, 1).expand_as(border))
    return padded
