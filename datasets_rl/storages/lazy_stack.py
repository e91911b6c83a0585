"""A storage of TensorDicts that may differ in shape."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection, lazy_stack
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.list import ListStorage
from datasets_rl.storages.positions import is_single_slot


class LazyStackStorage(ListStorage):
    """TensorDicts of any shapes and keys, such as whole trajectories or texts.

    Several elements are read as a lazy stack.

        >>> rb = ReplayBuffer(storage=LazyStackStorage(1000))
        >>> rb.extend([TensorDict(a=torch.randn(10)), TensorDict(a=torch.randn(11))])
        >>> batch = rb.sample(4)                    # a LazyStackedTensorDict [4] with "a" of the shape [4, -1]
        >>> batch[0]["a"], batch.get("a", as_nested_tensor=True)

    A lazy stack copies no tensor before an entry is read: the elements share their tensors with the storage, as single
    elements do.

    Args:
        max_size: Maximum number of elements, unlimited if None.
        compilable: Accepted for compatibility with TorchRL. Has no effect.
        stack_dim: Axis of a batch along which elements are stacked. Negative numbers count from the end.
        device: Device that written elements are moved to. None leaves elements on their device.
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool = False,
        stack_dim: int = 0,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(max_size, compilable=compilable, device=device)
        self.stack_dim = stack_dim

    @override
    def get(self, index: Any) -> Any:
        return self._stacked(super().get(index))

    @override
    def take(self, rows: Tensor) -> Any:
        """Return the elements of these rows, int64 [B], as a lazy stack."""
        return self._stacked(super().take(rows))

    def _stacked(self, elements: Any) -> Any:
        if not isinstance(elements, list):
            return elements
        if not elements:
            return TensorDict(batch_size=[0])
        # A buffer adds entries to a batch, which must not become entries of the stored elements.
        parts = [self._stacked(part) if isinstance(part, list) else part.copy() for part in elements]
        axis = self.stack_dim if self.stack_dim >= 0 else parts[0].ndim + 1 + self.stack_dim
        return lazy_stack(parts, axis)

    @override
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        elements = [data] if is_single_slot(cursor) else self._as_elements(data)
        others = sorted({type(element).__name__ for element in elements if not is_tensor_collection(element)})
        if others:
            raise InvalidArgumentError(
                f"the elements are of type {', '.join(others)}, expected TensorDicts",
                hint="use a ListStorage for other elements",
            )
        super().set(cursor, data if is_single_slot(cursor) else elements, set_cursor=set_cursor)

    def __repr__(self) -> str:
        return f"LazyStackStorage({len(self):,} elements)"
