"""Ring-buffer writers, which write to the next free slot, then over the oldest slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.writers.base import Writer

if TYPE_CHECKING:
    from datasets_rl.specs import TensorSpec
    from datasets_rl.storages.base import Storage


class RoundRobinWriter(Writer):
    """Write to the next free slot, and then over the oldest slot.

    The storage counts the slots written, and the count determines the write index: the writer has no state to save or
    share.

        slots 4, written 6   | 4 | 5 | 2 | 3 |    extend of 3   | 8 | 5 | 6 | 7 |    rows 2 3 0
                                       ^ next                         ^ next

        >>> import torch
        >>> from datasets_rl import LazyTensorStorage, ReplayBuffer, RoundRobinWriter
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(3), writer=RoundRobinWriter(), batch_size=3)
        >>> rows = rb.extend(torch.arange(5))
        >>> rb[:]
        tensor([3, 4, 2])

    Args:
        compilable: Accepted for compatibility with TorchRL, without effect.
        spec: Spec that every step must match, such as the `specs` of a dataset. Other data raises an error.
        track_generations: Whether batches, and the info of `sample`, have ``"index_generation"``, int64 [B], from
            `generations_of`. All processes with the same storage count the same generations, except for `write_at` and
            for emptying, which only the calling process counts.
    """

    def __init__(
        self, compilable: bool = False, *, spec: TensorSpec | None = None, track_generations: bool = False
    ) -> None:
        del compilable
        self.spec = spec
        self.tracks_generations = track_generations

    @override
    def register_storage(self, storage: Storage) -> None:
        super().register_storage(storage)
        if self.tracks_generations:
            storage.track_generations()

    @override
    def add(self, data: Any) -> int | Tensor:
        storage = self._require_storage()
        slot = storage.write_count % storage.slot_count
        storage.set(slot, data)
        return slot if storage.ndim == 1 else self._rows(torch.tensor([slot]))

    def extend(self, data: Any) -> Tensor:
        """Write the data of several slots.

        Args:
            data: A tensor, TensorDict or pytree with the slots as the leading axis of all leaves, or a list, range or
                iterator with an item for each slot. Data may be empty.

        Returns:
            The row of each step, int64 [n * envs]. If the data fills more slots than the capacity, only the last slots
            are stored, and the rows of the other steps are -1.
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

    @override
    def write_at(self, index: int | Tensor, data: Any) -> int | Tensor:
        storage = self._require_storage()
        slots = torch.as_tensor(index, dtype=torch.int64)
        if not slots.numel():
            return torch.zeros(0, dtype=torch.int64)
        written = storage.write_count
        before = storage.generations(slots.reshape(-1))
        storage.set(index, data, set_cursor=int(slots.max()) >= storage.filled_count)
        self._other_writes += slots.numel() - (storage.write_count - written)
        uncounted = storage.generations(slots.reshape(-1)) == before
        storage.count_other_writes(slots.reshape(-1)[uncounted])
        return int(slots) if slots.ndim == 0 and storage.ndim == 1 else self._rows(slots.reshape(-1))

    @override
    def generations_of(self, index: Any) -> Tensor:
        if not self.tracks_generations:
            return super().generations_of(index)
        return self._require_storage().generations(self._slots_of(index))

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the number of writes that the storage does not count, in total and per slot."""
        if not self._other_writes and not self.tracks_generations:
            return {}
        return {"other_writes": self._other_writes, "slot_writes": self._require_storage().other_writes.clone()}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        if not state_dict:
            return []
        count, writes = state_dict.get("other_writes"), state_dict.get("slot_writes")
        reasons = []
        if type(count) is not int or count < 0:
            reasons.append(f"other_writes is {count!r}, expected an integer >= 0")
        if not isinstance(writes, Tensor) or writes.dtype != torch.int64 or writes.ndim != 1:
            reasons.append("slot_writes is not an int64 tensor [n]")
        return reasons

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._other_writes = state_dict.get("other_writes", 0)
        if state_dict and self.tracks_generations:
            self._require_storage().other_writes = state_dict["slot_writes"].clone()

    @override
    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        if self.state_problems(state_dict) or not state_dict:
            return state_dict
        writes = torch.zeros(slots, dtype=torch.int64)
        writes[: len(state_dict["slot_writes"])] = state_dict["slot_writes"][:slots]
        return {**state_dict, "slot_writes": writes.roll(-shift)}

    def _rows(self, targets: Tensor) -> Tensor:
        envs = self._require_storage().envs
        return targets if envs == 1 else (targets[:, None] * envs + torch.arange(envs)).flatten()


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """Ring-buffer writer for buffers of TensorDicts.

    TorchRL's writer stores the slot number with every step. Here the buffer, which knows the slots of a batch, adds the
    slot numbers to each batch: no slot number is stored, and the caller's data is not modified.
    """
