"""Spec of values that are not tensors, such as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, is_non_tensor, lazy_stack
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs._document import SpecDocument
from datasets_rl.specs.base import Rearrange, TensorSpec, as_device, created_shape


class NonTensorSpec(TensorSpec):
    """Spec of values that are not tensors, such as text. Every such value of the right batch size is in the set.

    `encode` wraps a Python value in `NonTensorData` that applies to the whole batch. `to_json` raises an
    `InvalidArgumentError` for an example that JSON cannot represent.

        >>> from datasets_rl import NonTensor
        >>> NonTensor(()).is_in("pick up the cup")
        True

    Args:
        shape: Batch size of the values.
        device: Value of the attribute `device`.
        dtype: Ignored: non-tensor values have no dtype.
        example_data: Value that `rand`, `zero` and `one` return.
        batched: Whether each element of the batch has a separate value, as with `feature_dims=0`, or a single value
            applies to the whole batch.
        feature_dims: Number of trailing axes with a single value, as an alternative to `batched`.

    Raises:
        InvalidArgumentError: If both `batched` and `feature_dims` are given, or `feature_dims` exceeds the number of
            axes.
    """

    kind = "non_tensor"
    dtype = None
    space = None

    def __init__(
        self,
        shape: Sequence[int] | int = (1,),
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        example_data: Any = None,
        batched: bool | None = None,
        feature_dims: int | None = None,
    ) -> None:
        del dtype
        super().__init__(shape, device)
        if batched is not None and feature_dims is not None:
            raise InvalidArgumentError(
                f"batched is {batched} and feature_dims is {feature_dims}, expected batched or feature_dims, not both"
            )
        self.example_data = example_data
        self._feature_dims = 0 if batched else feature_dims
        if not 0 <= self.feature_dims <= self.ndim:
            raise InvalidArgumentError(f"feature_dims is {feature_dims}, expected 0 to {self.ndim}, the number of axes")

    @property
    def feature_dims(self) -> int:
        """Number of trailing axes with a single value."""
        return self.ndim if self._feature_dims is None else self._feature_dims

    @property
    def batched(self) -> bool:
        """Whether each element of the batch has a separate value."""
        return self._feature_dims == 0

    def _filled(self, fill: Callable[[Any], Any], lead: torch.Size) -> Any:
        del fill
        return self._wrapped(self.example_data, lead)

    def _wrapped(self, data: Any, lead: torch.Size) -> Any:
        shape = (*lead, *created_shape(self.shape))
        batch_dims = len(shape) - self.feature_dims
        value: Any = NonTensorData(data, batch_size=shape[batch_dims:], device=self.device)
        for size in reversed(shape[:batch_dims]):
            value = lazy_stack([value.copy() for _ in range(size)])
        return value

    @override
    def problems(self, value: Any, place: str = "value") -> list[str]:
        if isinstance(value, torch.Tensor) or (hasattr(value, "batch_size") and not is_non_tensor(value)):
            return [f"{place} is a {type(value).__name__}, expected a non-tensor value"]
        shape = tuple(getattr(value, "batch_size", self.shape))
        if len(shape) >= self.ndim and shape[len(shape) - self.ndim :] == self.shape:
            return []
        return [f"{place} has batch size {list(shape)}, expected [..., {', '.join(map(str, self.shape))}]"]

    def _projected(self, value: Any) -> Any:
        self.assert_is_in(value)

    def type_check(self, value: Any, key: Any = None) -> None:
        """Do nothing: non-tensor values have no dtype."""

    @override
    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        del ignore_device
        return val if is_non_tensor(val) else self._wrapped(val, torch.Size())

    def _to_numpy(self, val: Any) -> Any:
        if not is_non_tensor(val):
            return val
        return val.data if isinstance(val, NonTensorData) else val.tolist()

    @override
    def rearranged(self, rearrange: Rearrange) -> NonTensorSpec:
        return self._resized(self._rearranged_shape(rearrange))

    @override
    def _resized(self, shape: torch.Size) -> NonTensorSpec:
        return self._changed(_shape=shape, _feature_dims=self._feature_dims and min(self._feature_dims, len(shape)))

    @override
    def to(self, dest: Any) -> NonTensorSpec:
        return self if dest is None or isinstance(dest, torch.dtype) else self._changed(device=as_device(dest))

    @override
    def to_json(self) -> dict[str, Any]:
        try:
            exact = json.loads(json.dumps(self.example_data, allow_nan=False)) == self.example_data
        except (TypeError, ValueError, RecursionError):
            exact = False
        if not exact:
            raise InvalidArgumentError(
                f"example_data is a {type(self.example_data).__name__}, which JSON cannot represent, expected None, text, numbers, lists or dicts"
            )
        optional = {"feature_dims": self._feature_dims, "example": self.example_data}
        fields = {name: value for name, value in optional.items() if value is not None}
        return {"kind": self.kind, "shape": list(self.shape), **fields}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> NonTensorSpec | None:
        shape = document.shape()
        feature_dims = document.integer("feature_dims", 0) if document.has("feature_dims") else None
        example = document.field("example", lambda _: True, "anything")
        return cls(shape, example_data=example, feature_dims=feature_dims) if document.valid else None

    def __repr__(self) -> str:
        return f"NonTensorSpec(shape={list(self.shape)}, example_data={self.example_data!r})"
