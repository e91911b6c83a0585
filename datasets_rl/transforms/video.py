"""Decoding of references to frames of videos."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms.base import Keys, Transform


class DecodeVideoTransform(Transform):
    """Replace references to frames of videos by the frames.

    Args:
        in_keys: Keys of the references: entries with a method ``decode(device=..., dtype=...)``, such as
            `VideoClipRef`.
        out_keys: Keys of the frames, `in_keys` by default.
        device: Device of the frames. By default that of the reference.
        dtype: Dtype of the frames. By default that of the reference.
    """

    def __init__(self, *, in_keys: Keys, out_keys: Keys | None = None, device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_keys, out_keys)
        self.device, self.dtype = device, dtype

    @override
    def transform_value(self, value: Any) -> Tensor:
        decode = getattr(value, "decode", None)
        if decode is None:
            raise InvalidArgumentError(
                f"an entry of {self.in_keys} is a {type(value).__name__}, expected references with a method decode"
            )
        frames: Tensor = decode(device=self.device, dtype=self.dtype)
        return frames
