"""Ring-buffer writers: they write to the next free slot, then over the oldest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets_rl.writers.base import Writer

if TYPE_CHECKING:
    from datasets_rl.specs import TensorSpec

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter"]


class RoundRobinWriter(Writer):
    """Write to the next free slot, and then over the oldest.

    The storage counts the slots written, which determines the write index: the writer has no state to save or share.

        slots 4, written 6   | 4 | 5 | 2 | 3 |    extend of 3   | 8 | 5 | 6 | 7 |    rows 2 3 0
                                       ^ next                         ^ next

    Args:
        compilable: Accepted for compatibility with TorchRL; has no effect.
        spec: Spec that every step must match, such as the `specs` of a dataset; other data raises an error.
    """

    def __init__(self, compilable: bool = False, *, spec: TensorSpec | None = None) -> None:
        del compilable
        self.spec = spec

    def add(self, data: Any) -> int | Tensor:
        """Write the data of one slot.

        Returns:
            The row that was written; int64 [envs] if a slot has several rows.
        """
        storage = self._require_storage()
        slot = storage.write_count % storage.slot_count
        storage.set(slot, data)
        return slot if storage.ndim == 1 else self._rows(torch.tensor([slot]))

    def extend(self, data: Any) -> Tensor:
        """Write the data of several slots.

        Args:
            data: A tensor, TensorDict or pytree whose leaves share the leading axis; or a list, range or iterator with
                one item per slot. Empty data writes nothing.

        Returns:
            The row of each step, int64 [n * envs]; -1 for steps that were not stored: if the data fills more slots than
            the capacity, only the last ones are stored.
        """
        storage = self._require_storage()
        if isinstance(data, (range, Iterator)):
            data = list(data)
        count = storage.size_of(data)
        if not count:
            return torch.zeros(0, dtype=torch.int64)
        slots = storage.slot_count
        start = storage.write_count % slots
        targets = torch.arange(start, start + count) % slots
        storage.set(targets if start + count > slots else range(start, start + count), data)
        rows = self._rows(targets)
        rows[: max(count - slots, 0) * storage.envs] = -1
        return rows

    def _rows(self, targets: Tensor) -> Tensor:
        envs = self._require_storage().envs
        return targets if envs == 1 else (targets[:, None] * envs + torch.arange(envs)).flatten()


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Ring-buffer writer for buffers of TensorDicts.

    TorchRL's writer stores the slot number with every step. Here the buffer adds it to each batch, where it is known:
    nothing is stored, and the caller's data is not modified.
    """
