"""Transform that applies any function to selected entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_non_tensor
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms.base import Keys, NestedKey, Transform, check_callable, get_entry


class UnaryTransform(Transform):
    """Apply a function to entries, such as a transform of torchvision.

        >>> UnaryTransform(["pixels"], fn=torchvision.transforms.v2.RandomCrop(64))
        >>> UnaryTransform(["instruction"], ["length"], fn=lambda text: torch.tensor(len(text)))

    The function receives a tensor with all its batch axes. It receives the items of a non-tensor entry one by one, and
    the results are stacked.

    Args:
        fn: Function to apply when a batch is sampled.
        inv_fn: Function to apply when data is written to the buffer.
        use_raw_nontensor: Whether the functions receive the non-tensor entry of the TensorDict itself instead of its
            items.

    Raises:
        InvalidArgumentError: If `fn` is not callable, or `in_keys_inv` is given without `inv_fn`.
    """

    shown = ("fn",)

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        fn: Callable[..., Any],
        inv_fn: Callable[[Any], Any] | None = None,
        use_raw_nontensor: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        check_callable(fn)
        if self.in_keys_inv and inv_fn is None:
            raise InvalidArgumentError(
                f"in_keys_inv are {self.in_keys_inv}, but inv_fn is missing, expected a function"
            )
        self.fn, self.inv_fn, self.use_raw_nontensor = fn, inv_fn, use_raw_nontensor

    @override
    def transform_batch(self, batch: Any) -> Any:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            set_entry(batch, out_key, self.transform_value(self._items(get_entry(batch, in_key))))
        return batch

    @override
    def invert_batch(self, batch: Any) -> Any:
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            set_entry(batch, in_key, self.invert_value(self._items(get_entry(batch, out_key))))
        return batch

    def _items(self, value: Any) -> Any:
        return value if self.use_raw_nontensor else items_of(value)

    @override
    def transform_value(self, value: Any) -> Any:
        return map_items(self.fn, value)

    @override
    def invert_value(self, value: Any) -> Any:
        return map_items(self.inv_fn or super().invert_value, value)


def items_of(value: Any) -> Any:
    """Return a non-tensor value as plain Python, an object or nested lists of objects. Return a tensor unchanged."""
    return value.tolist() if is_non_tensor(value) else value


def map_items(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a tensor, or to each object of nested lists. Stack the results if they are tensors."""
    if not isinstance(value, list):
        return function(value)
    results = [map_items(function, item) for item in value]
    return torch.stack(results) if results and all(isinstance(result, Tensor) for result in results) else results


def set_entry(batch: Any, key: NestedKey, value: Any) -> None:
    """Set an entry of a TensorDict to a tensor or to a non-tensor value."""
    if isinstance(value, Tensor):
        batch.set(key, value)
    else:
        batch[key] = value
