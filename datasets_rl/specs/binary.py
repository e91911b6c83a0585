"""Zeros and ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import Entry
from datasets_rl.specs.base import sizes
from datasets_rl.specs.discrete import DiscreteTensorSpec

__all__ = ["BinaryDiscreteTensorSpec"]


class BinaryDiscreteTensorSpec(DiscreteTensorSpec):
    """Zeros and ones in any number, unlike one-hot tensors; an outcome is a vector along the last axis.

    Args:
        n: Length of the last axis. It may be left out if there is a shape.
        shape: Of every tensor of the set; [n] by default.
        device: Of the tensors that are made.
        dtype: Of every tensor of the set.

    Raises:
        InvalidArgumentError: If n and shape contradict each other, or both are missing.
    """

    kind = "binary"
    _grouped = True

    def __init__(
        self,
        n: int | None = None,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise InvalidArgumentError("n and shape are missing; expected at least one")
        shape = (n or 0,) if shape is None else sizes(shape)
        if n is not None and n != (shape[-1] if shape else 0):
            raise InvalidArgumentError(f"n is {n} and shape is {list(shape)}; expected a last axis of size n")
        super().__init__(2, shape, device, dtype)

    def _groups(self) -> list[int]:
        return [2] * (self.shape[-1] if self.shape else 1)

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but the device is in it."""
        document = super().to_json()
        del document["n"]
        return document

    @classmethod
    def read(cls, entry: Entry) -> BinaryDiscreteTensorSpec | None:
        """Read a spec of this kind."""
        shape, dtype, mask = entry.shape(), entry.dtype(), cls._read_mask(entry)
        if not entry.sound:
            return None
        spec = cls(shape=shape, dtype=dtype)
        spec.update_mask(mask)
        return spec

    def _facts(self) -> list[str]:
        return [] if self.mask is None else ["masked"]
