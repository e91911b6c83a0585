"""Spec of binary vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import Entry
from datasets_rl.specs.base import parse_shape
from datasets_rl.specs.discrete import DiscreteTensorSpec

__all__ = ["BinaryDiscreteTensorSpec"]


class BinaryDiscreteTensorSpec(DiscreteTensorSpec):
    """Spec of binary vectors: each element is 0 or 1, and unlike in a one-hot vector, any number of elements may be 1.

    An outcome is a vector along the last axis.

    Args:
        n: Size of the last axis; optional if `shape` is given.
        shape: Shape of every tensor of the set; [n] by default.
        device: Device of the tensors that the spec creates; torch's default device by default.
        dtype: Dtype of every tensor of the set.

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
            raise InvalidArgumentError("n and shape are missing; expected at least one of them")
        shape = (n or 0,) if shape is None else parse_shape(shape)
        if n is not None and n != (shape[-1] if shape else 0):
            raise InvalidArgumentError(f"n is {n} and shape is {list(shape)}; expected a last axis of size n")
        super().__init__(2, shape, device, dtype)

    def _groups(self) -> list[int]:
        return [2] * (self.shape[-1] if self.shape else 1)

    @override
    def to_json(self) -> dict[str, Any]:
        document = super().to_json()
        del document["n"]
        return document

    @classmethod
    @override
    def read(cls, entry: Entry) -> BinaryDiscreteTensorSpec | None:
        shape, dtype, mask = entry.shape(), entry.dtype(), cls._read_mask(entry)
        if not entry.valid:
            return None
        spec = cls(shape=shape, dtype=dtype)
        spec.update_mask(mask)
        return spec

    def _repr_arguments(self) -> list[str]:
        return [] if self.mask is None else ["masked"]
