"""Values that are stored unchanged: numbers, and images as pixels."""

from __future__ import annotations

from typing import ClassVar

from datasets_rl.format.images.base import Form, ImageForm


class RawForm(ImageForm):
    """Values in an array, [N, ...], or in the records of all narrow fields. See `ImageForm`."""

    name: ClassVar[Form] = "raw"
    noun: ClassVar[str] = "pixels"
    is_array: ClassVar[bool] = True
    takes_pixels: ClassVar[bool] = True
