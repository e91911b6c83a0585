"""Writers that go round: the oldest slot is the next."""

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

    The storage counts the slots written, and so says which is next: the writer has nothing to save or to share.

        slots 4, written 6   | 4 | 5 | 2 | 3 |    extend of 3   | 8 | 5 | 6 | 7 |    rows 2 3 0
                                       ^ next                         ^ next

    Args:
        compilable: Taken because the reference has it; without a state there is nothing to choose.
        spec: What every step must be, such as the `specs` of a dataset; what is not in it is refused.
    """

    def __init__(self, compilable: bool = False, *, spec: TensorSpec | None = None) -> None:
        del compilable
        self.spec = spec

    def add(self, data: Any) -> int | Tensor:
        """Write the data of one slot.

        Returns:
            The row it took; int64 [lanes] where a slot has several.
        """
        storage = self._target()
        slot = storage.written % storage.slots
        storage.set(slot, data)
        return slot if storage.ndim == 1 else self._rows(torch.tensor([slot]))

    def extend(self, data: Any) -> Tensor:
        """Write the data of several slots.

        Args:
            data: A tensor, TensorDict or pytree whose leaves share the leading axis; or a list, range or iterator of
                what fills one slot each. Nothing at all is nothing to do.

        Returns:
            The row that each took, int64 [n * lanes]; -1 for those that did not stay: of data for more slots than
            there are, the last stay.
        """
        storage = self._target()
        if isinstance(data, (range, Iterator)):
            data = list(data)
        count = storage.size_of(data)
        if not count:
            return torch.zeros(0, dtype=torch.int64)
        slots = storage.slots
        start = storage.written % slots
        taken = torch.arange(start, start + count) % slots
        storage.set(taken if start + count > slots else range(start, start + count), data)
        rows = self._rows(taken)
        rows[: max(count - slots, 0) * storage.envs] = -1
        return rows

    def _rows(self, taken: Tensor) -> Tensor:
        envs = self._target().envs
        return taken if envs == 1 else (taken[:, None] * envs + torch.arange(envs)).flatten()


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The same, for buffers of TensorDicts.

    TorchRL's stores the number of its slot with every step. Here the buffer sets it in the batch, where it is known
    anyway: nothing is stored, and the caller's data is left alone.
    """
