"""Any callable on chosen entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_non_tensor
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import Keys, NestedKey, Transform, any_like, expect_callable, taken

__all__ = ["UnaryTransform"]


class UnaryTransform(Transform):
    """Apply a callable to entries: any transform of torchvision, for instance.

        >>> UnaryTransform(["pixels"], fn=torchvision.transforms.v2.RandomCrop(64))
        >>> UnaryTransform(["instruction"], ["length"], fn=lambda text: torch.tensor(len(text)))

    A tensor goes into the callable as it is, with the batch. Of what is no tensor each item goes in for itself, and
    the results are stacked.

    Args:
        in_keys: Entries that go in.
        out_keys: Where the results are written; `in_keys` by default.
        in_keys_inv: Entries that `inv` writes.
        out_keys_inv: Entries that go into its callable.
        fn: The callable.
        inv_fn: That of `inv`.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        fn: Callable[[Any], Any],
        inv_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        expect_callable(fn)
        if self.in_keys_inv and inv_fn is None:
            raise InvalidArgumentError(f"in_keys_inv are {self.in_keys_inv}, and there is no inv_fn")
        self.fn, self.inv_fn = fn, inv_fn

    def apply(self, batch: Any) -> Any:
        """Apply the callable."""
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            set_any(batch, out_key, self.each(items_of(taken(batch, in_key))))
        return batch

    def apply_inv(self, batch: Any) -> Any:
        """Apply that of `inv`."""
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            set_any(batch, in_key, self.each_inv(items_of(taken(batch, out_key))))
        return batch

    def each(self, value: Any) -> Any:
        """Apply the callable to one entry."""
        return each_item(self.fn, value)

    def each_inv(self, value: Any) -> Any:
        """Apply that of `inv` to one entry."""
        return each_item(self.inv_fn or super().each_inv, value)

    def respec(self, spec: CompositeSpec) -> None:
        """Say what the callable makes of zeros: any values in that shape and dtype."""
        batch = self.apply(spec.zero())
        for key in self.out_keys:
            spec.set(key, any_like(batch.get(key)))

    def _facts(self) -> dict[str, Any]:
        return {"fn": self.fn}


def items_of(value: Any) -> Any:
    """Return what is no tensor as plain Python: an object, or nested lists of them."""
    return value.tolist() if is_non_tensor(value) else value


def each_item(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a tensor, or to each object of nested lists; tensors that it returns are stacked."""
    if not isinstance(value, list):
        return function(value)
    made = [each_item(function, one) for one in value]
    return torch.stack(made) if made and all(isinstance(one, Tensor) for one in made) else made


def set_any(batch: Any, key: NestedKey, value: Any) -> None:
    """Set an entry of a TensorDict, whether it is a tensor or not."""
    if isinstance(value, Tensor):
        batch.set(key, value)
    else:
        batch[key] = value
