"""Pictures: [..., C, H, W], channels first; only `ToTensorImage` reads [..., H, W, C]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import TensorSpec
from datasets_rl.transforms._bounds import between, bounds_of, dtype_of, mapped
from datasets_rl.transforms.base import Keys, Transform, any_like

__all__ = ["CenterCrop", "Crop", "GrayScale", "Resize", "ToTensorImage"]

_MODES = {
    "nearest": "nearest",
    "nearest-exact": "nearest-exact",
    "nearest_exact": "nearest-exact",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}
_SMOOTH = frozenset({"bilinear", "bicubic"})
_LUMA = (0.2989, 0.587, 0.114)
"""Of red, green and blue: ITU-R 601-2, as in Pillow and torchvision."""


class _Picture(Transform):
    """A transform of the last three axes of entries, ``["pixels"]`` by default."""

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__("pixels" if in_keys is None else in_keys, out_keys)

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Cut or weigh the bounds as the pictures."""
        return mapped(spec, self.each)


class ToTensorImage(_Picture):
    """Make of pictures [..., H, W, C] of whole numbers 0 to 255 pictures [..., C, H, W] of fractions 0 to 1.

    Args:
        from_int: Whether to divide by 255; by default where the numbers are whole.
        unsqueeze: Whether a picture without any leading axis gets one.
        dtype: Of the result; torch's default dtype by default.
        in_keys: Entries with pictures; ``["pixels"]`` by default.
        out_keys: Where they are written.
        shape_tolerant: Whether pictures whose channels (1 or 3, as C) stand first already keep their axes.
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        shape_tolerant: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.from_int, self.unsqueeze, self.shape_tolerant = from_int, unsqueeze, shape_tolerant
        self.dtype = torch.get_default_dtype() if dtype is None else dtype

    def each(self, value: Tensor) -> Tensor:
        """Return the picture with its channels first, as fractions."""
        if value.ndim < 3:
            raise InvalidArgumentError(f"a picture has shape {list(value.shape)}; expected [..., H, W, C]")
        first = self.shape_tolerant and value.shape[-3] in {1, 3} and value.shape[-1] not in {1, 3}
        whole = not value.is_floating_point() if self.from_int is None else self.from_int
        image = value if first else value.movedim(-1, -3)
        # The numbers stay in their order in memory: convolutions take channels that lie last as well.
        if not whole:
            image = image.to(self.dtype)
        elif image.is_floating_point() or not self.dtype.is_floating_point:
            image = (image / 255).to(self.dtype)
        else:
            # Faster than a division that casts as it goes; the memory is new.
            image = image.to(self.dtype).div_(255)
        return image.unsqueeze(0) if self.unsqueeze and image.ndim == 3 else image


class Resize(_Picture):
    """Scale pictures.

    Args:
        w: Their new size: the length of their first axis, as in TorchRL, that is of H; or a pair of both.
        h: That of their second axis, W; as `w` by default.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic"; the last two without aliasing.
        in_keys: Entries with pictures [..., C, H, W]; ``["pixels"]`` by default.
        out_keys: Where they are written.
    """

    def __init__(
        self,
        w: int | tuple[int, int],
        h: int | None = None,
        interpolation: str = "bilinear",
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w, self.h = _pair(w, h)
        # torchvision's own names are members of an enumeration with these values.
        self.interpolation = str(getattr(interpolation, "value", interpolation))
        if self.interpolation not in _MODES:
            raise InvalidArgumentError(f"interpolation is {self.interpolation!r}; expected one of {', '.join(_MODES)}")

    def each(self, value: Tensor) -> Tensor:
        """Scale a batch of pictures in one go."""
        size = (self.w, self.h)
        if value.shape[-2:] == size:
            return value
        mode = _MODES[self.interpolation]
        smooth = mode in _SMOOTH
        images = value.reshape(-1, *value.shape[-3:])
        # Bytes in memory are scaled with vector instructions; nothing else whole is.
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

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the size: numbers that are picked or whole stay between the bounds of all."""
        scaled, bounds = any_like(self.each(spec.zero())), bounds_of(spec)
        # A mixture of fractions may pass a bound by its last digit, and one with negative weights by more.
        picked = self.interpolation.startswith("nearest")
        if bounds is None or not (
            picked or (self.interpolation == "bilinear" and not dtype_of(spec).is_floating_point)
        ):
            return scaled
        return between(bounds[0].min().expand(scaled.shape), bounds[1].max().expand(scaled.shape))

    def _facts(self) -> dict[str, Any]:
        return {"w": self.w, "h": self.h, "interpolation": self.interpolation}


class Crop(_Picture):
    """Cut a rectangle out of pictures; where it reaches outside, there are zeros.

    Args:
        w: Its length along H, the first axis, as in TorchRL; or a pair of both.
        h: That along W, the second one; as `w` by default.
        top: Where it begins along H.
        left: Where it begins along W.
        in_keys: Entries with pictures [..., C, H, W]; ``["pixels"]`` by default.
        out_keys: Where they are written.
    """

    def __init__(
        self,
        w: int | tuple[int, int],
        h: int | None = None,
        top: int = 0,
        left: int = 0,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w, self.h = _pair(w, h)
        self.top, self.left = top, left

    def each(self, value: Tensor) -> Tensor:
        """Cut the rectangle out."""
        return _cut(value, self.top, self.left, self.w, self.h)

    def _facts(self) -> dict[str, Any]:
        return {"w": self.w, "h": self.h, "top": self.top, "left": self.left}


class CenterCrop(_Picture):
    """Cut the middle out of pictures; where it reaches outside, there are zeros.

    Args:
        w: Its length along H, the first axis, as in TorchRL; or a pair of both.
        h: That along W, the second one; as `w` by default.
        in_keys: Entries with pictures [..., C, H, W]; ``["pixels"]`` by default.
        out_keys: Where they are written.
    """

    def __init__(
        self,
        w: int | tuple[int, int],
        h: int | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.w, self.h = _pair(w, h)

    def each(self, value: Tensor) -> Tensor:
        """Cut the middle out; half a pixel is rounded to the even one, as torchvision does."""
        height, width = value.shape[-2:]
        return _cut(value, _middle(height, self.w), _middle(width, self.h), self.w, self.h)

    def _facts(self) -> dict[str, Any]:
        return {"w": self.w, "h": self.h}


class GrayScale(_Picture):
    """Make one channel of three, by how bright the eye sees them: 0.2989 red + 0.587 green + 0.114 blue."""

    def each(self, value: Tensor) -> Tensor:
        """Weigh the channels."""
        if value.ndim < 3 or value.shape[-3] not in {1, 3}:
            raise InvalidArgumentError(
                f"a picture has shape {list(value.shape)}; expected [..., 3, H, W] or [..., 1, H, W]"
            )
        if value.shape[-3] == 1:
            return value
        red, green, blue = value.unbind(-3)
        light = (_LUMA[0] * red).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])
        return light.to(value.dtype).unsqueeze(-3)


def _pair(w: Any, h: int | None) -> tuple[int, int]:
    pair = tuple(w) if isinstance(w, (tuple, list)) else (w, w if h is None else h)
    if len(pair) != 2 or any(not isinstance(size, int) or size < 1 for size in pair):
        raise InvalidArgumentError(f"the size is {pair}; expected two whole numbers from 1")
    return pair[0], pair[1]


def _middle(length: int, size: int) -> int:
    # Of what is too small, the greater half of the padding comes at the end.
    return round((length - size) / 2) if length >= size else -((size - length) // 2)


def _cut(value: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    bottom, right = top + height, left + width
    inside = value[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if inside.shape[-2:] == (height, width):
        return inside
    over = (max(-left, 0), max(right - value.shape[-1], 0), max(-top, 0), max(bottom - value.shape[-2], 0))
    return functional.pad(value, over)[..., max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]
