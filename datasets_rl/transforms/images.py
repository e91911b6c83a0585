"""Transforms of images [..., C, H, W], channels first. Only `ToTensorImage` reads images [..., H, W, C]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import TensorSpec
from datasets_rl.transforms._bounds import bounds_of, dtype_of, map_bounds, spec_between
from datasets_rl.transforms._layout import IMAGE_AXES, check_layout
from datasets_rl.transforms.base import Keys, Transform, any_like
from datasets_rl.transforms.functional import rgb_to_grayscale

_MODES = {
    "nearest": "nearest",
    "nearest-exact": "nearest-exact",
    "nearest_exact": "nearest-exact",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}
_SMOOTH = frozenset({"bilinear", "bicubic"})


_CHANNELS_FIRST = "convert the images with ToTensorImage or PermuteTransform((-1, -3, -2)) first"


class _ImageTransform(Transform):
    """Base class of transforms of images, the entries ``["pixels"]`` by default.

    Args:
        in_keys: Keys of the images.
        check_layout: Whether to refuse images whose shape is that of the other layout, such as [84, 84, 3].
    """

    per_step = True
    of_images = True
    axes = IMAGE_AXES - 1

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None, *, check_layout: bool = True) -> None:
        super().__init__("pixels" if in_keys is None else in_keys, out_keys)
        self.check_layout = check_layout

    @override
    def transform_batch(self, batch: Any) -> Any:
        try:
            return super().transform_batch(batch)
        except UnknownKeyError as error:
            leaves = batch.items(include_nested=True, leaves_only=True)
            if keys := [
                key for key, leaf in leaves if leaf.dtype == torch.uint8 and leaf.ndim - batch.ndim >= self.axes
            ]:
                error.hint = f"name the images: in_keys={keys}"
            raise

    def _check_channels_first(self, image: Tensor) -> None:
        if self.check_layout:
            check_layout(self, image.shape, _CHANNELS_FIRST)

    @override
    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self.transform_value)


class ToTensorImage(_ImageTransform):
    """Convert images [..., H, W, C] of integers in 0 to 255 to images [..., C, H, W] of floats in 0 to 1.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import ToTensorImage
        >>> batch = TensorDict({"pixels": torch.full((4, 84, 64, 3), 255, dtype=torch.uint8)}, [4])
        >>> image = ToTensorImage(in_keys=["pixels"])(batch)["pixels"]
        >>> image.shape, image.max()
        (torch.Size([4, 3, 84, 64]), tensor(1.))

    Args:
        from_int: Whether to divide by 255, by default if the dtype is an integer.
        unsqueeze: Whether to insert a leading axis in an image without leading axes.
        dtype: Dtype of the result, torch's default dtype by default.
        in_keys: Keys of the images, ``["pixels"]`` by default.
        shape_tolerant: Whether to keep the axes of images whose channels (C of 1 or 3) are already first.
        check_layout: Whether to refuse images whose shape is that of images with their channels first.

    Raises:
        InvalidArgumentError: If an image has fewer than three axes, or the other layout.
    """

    axes = IMAGE_AXES
    in_recipes = True

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        shape_tolerant: bool = False,
        check_layout: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, check_layout=check_layout)
        self.from_int, self.unsqueeze, self.shape_tolerant = from_int, unsqueeze, shape_tolerant
        self.dtype = torch.get_default_dtype() if dtype is None else dtype

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        if value.ndim < 3:
            raise InvalidArgumentError(f"an image has shape {list(value.shape)}, expected [..., H, W, C]")
        channels_first = self.shape_tolerant and value.shape[-3] in {1, 3} and value.shape[-1] not in {1, 3}
        if self.check_layout and not channels_first:
            hint = "the channels of these images are first: leave ToTensorImage out, or pass shape_tolerant=True"
            check_layout(self, value.shape, hint, channels_last=True)
        divide = not value.is_floating_point() if self.from_int is None else self.from_int
        image = value if channels_first else value.movedim(-1, -3)
        # A view: the memory layout stays channels-last, which convolutions support.
        if not divide:
            image = image.to(self.dtype)
        elif image.is_floating_point() or not self.dtype.is_floating_point:
            image = (image / 255).to(self.dtype)
        else:
            # In place, as the cast has allocated new memory: faster than a division that also casts.
            image = image.to(self.dtype).div_(255)
        return image.unsqueeze(0) if self.unsqueeze and image.ndim == 3 else image


class Resize(_ImageTransform):
    """Resize images.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import Resize
        >>> batch = TensorDict({"pixels": torch.zeros(4, 3, 84, 64)}, [4])
        >>> Resize(32, 32, in_keys=["pixels"])(batch)["pixels"].shape
        torch.Size([4, 3, 32, 32])

    Args:
        w: New size of the axis H, which is what `w` means in TorchRL, or a pair of the sizes of H and W.
        h: New size of the axis W, `w` by default.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic". The last two use antialiasing.
        in_keys: Keys of the images [..., C, H, W], ``["pixels"]`` by default.

    Raises:
        InvalidArgumentError: If a size is not a positive integer, or the interpolation is unknown.
    """

    shown = ("w", "h", "interpolation")
    in_recipes = True

    def __init__(
        self,
        w: int | tuple[int, int],
        h: int | None = None,
        interpolation: str = "bilinear",
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        check_layout: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, check_layout=check_layout)
        self.w, self.h = _size_pair(w, h)
        # torchvision's InterpolationMode is an enumeration with these values.
        self.interpolation = str(getattr(interpolation, "value", interpolation))
        if self.interpolation not in _MODES:
            raise InvalidArgumentError(f"interpolation is {self.interpolation!r}, expected one of {', '.join(_MODES)}")

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        self._check_channels_first(value)
        size = (self.w, self.h)
        if value.shape[-2:] == size:
            return value
        mode = _MODES[self.interpolation]
        smooth = mode in _SMOOTH
        images = value.reshape(-1, *value.shape[-3:])
        # torch interpolates uint8 on the CPU, with vector instructions. Other integers must be converted to floats.
        as_float = not (value.is_floating_point() or (value.dtype == torch.uint8 and value.is_cpu))
        scaled = functional.interpolate(
            images.float() if as_float else images,
            size,
            mode=mode,
            align_corners=False if smooth else None,
            antialias=smooth,
        )
        if as_float:
            scaled = scaled.clamp_(0, 255) if value.dtype == torch.uint8 else scaled
            scaled = scaled.round_().to(value.dtype)
        return scaled.reshape(*value.shape[:-2], *size)

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the new size.

        With "nearest", or "bilinear" of integers, the spec keeps the overall bounds.
        """
        scaled, bounds = any_like(self.transform_value(spec.zero())), bounds_of(spec)
        # Interpolated floats may exceed a bound by rounding, and bicubic interpolation, with negative weights, by more.
        nearest = self.interpolation.startswith("nearest")
        if bounds is None or not (
            nearest or (self.interpolation == "bilinear" and not dtype_of(spec).is_floating_point)
        ):
            return scaled
        return spec_between(bounds[0].min().expand(scaled.shape), bounds[1].max().expand(scaled.shape))


class Crop(_ImageTransform):
    """Crop a rectangle of images. The area outside of an image is filled with zeros.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import Crop
        >>> batch = TensorDict({"pixels": torch.zeros(4, 3, 84, 64)}, [4])
        >>> Crop(w=32, h=40, in_keys=["pixels"])(batch)["pixels"].shape
        torch.Size([4, 3, 32, 40])

    Args:
        w: Size along the axis H, which is what `w` means in TorchRL. Or a pair of the sizes along H and W.
        h: Size along the axis W, `w` by default.
        top: First pixel of the rectangle along H.
        left: First pixel of the rectangle along W.
        in_keys: Keys of the images [..., C, H, W], ``["pixels"]`` by default.
        check_layout: Whether to refuse images whose shape is that of images [..., H, W, C].

    Raises:
        InvalidArgumentError: If a size is not a positive integer, or an image has the other layout.
    """

    shown = ("w", "h", "top", "left")
    in_recipes = True

    def __init__(
        self,
        w: int | tuple[int, int],
        h: int | None = None,
        top: int = 0,
        left: int = 0,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        check_layout: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, check_layout=check_layout)
        self.w, self.h = _size_pair(w, h)
        self.top, self.left = top, left

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        self._check_channels_first(value)
        return _crop(value, self.top, self.left, self.w, self.h)


class CenterCrop(_ImageTransform):
    """Crop the center of images. The area outside of an image is filled with zeros.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import CenterCrop
        >>> batch = TensorDict({"pixels": torch.zeros(4, 3, 84, 64)}, [4])
        >>> CenterCrop(32, in_keys=["pixels"])(batch)["pixels"].shape
        torch.Size([4, 3, 32, 32])

    Args:
        w: Size along the axis H, which is what `w` means in TorchRL. Or a pair of the sizes along H and W.
        h: Size along the axis W, `w` by default.
        in_keys: Keys of the images [..., C, H, W], ``["pixels"]`` by default.
        check_layout: Whether to refuse images whose shape is that of images [..., H, W, C].

    Raises:
        InvalidArgumentError: If a size is not a positive integer, or an image has the other layout.
    """

    shown = ("w", "h")
    in_recipes = True

    def __init__(
        self,
        w: int | tuple[int, int],
        h: int | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        *,
        check_layout: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, check_layout=check_layout)
        self.w, self.h = _size_pair(w, h)

    def transform_value(self, value: Tensor) -> Tensor:
        """Return the center of one entry. An offset of half a pixel is rounded to the even pixel, as in torchvision."""
        self._check_channels_first(value)
        height, width = value.shape[-2:]
        return _crop(value, _center_offset(height, self.w), _center_offset(width, self.h), self.w, self.h)


class GrayScale(_ImageTransform):
    """Convert RGB images to grayscale with the luma transform of ITU-R 601-2: 0.2989 red + 0.587 green + 0.114 blue.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from datasets_rl.transforms import GrayScale
    >>> batch = TensorDict({"pixels": torch.zeros(4, 3, 84, 64)}, [4])
    >>> GrayScale(in_keys=["pixels"])(batch)["pixels"].shape
    torch.Size([4, 1, 84, 64])
    """

    axes = IMAGE_AXES
    in_recipes = True

    @override
    def transform_value(self, value: Tensor) -> Tensor:
        if value.ndim < 3 or value.shape[-3] not in {1, 3}:
            raise InvalidArgumentError(
                f"an image has shape {list(value.shape)}, expected [..., 3, H, W] or [..., 1, H, W]",
                hint=_CHANNELS_FIRST,
            )
        if value.shape[-3] == 1:
            return value
        return rgb_to_grayscale(value)


def _size_pair(w: Any, h: int | None) -> tuple[int, int]:
    pair = tuple(w) if isinstance(w, (tuple, list)) else (w, w if h is None else h)
    if len(pair) != 2 or any(not isinstance(size, int) or size < 1 for size in pair):
        raise InvalidArgumentError(f"the size is {pair}, expected two integers >= 1")
    return pair[0], pair[1]


def _center_offset(length: int, size: int) -> int:
    # If the image is smaller than the crop, the larger half of the padding is at the end.
    return round((length - size) / 2) if length >= size else -((size - length) // 2)


def _crop(value: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    bottom, right = top + height, left + width
    inside = value[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if inside.shape[-2:] == (height, width):
        return inside
    padding = (max(-left, 0), max(right - value.shape[-1], 0), max(-top, 0), max(bottom - value.shape[-2], 0))
    return functional.pad(value, padding)[..., max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]
