"""Base class of writers, which choose the slots for new steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import Stateful

if TYPE_CHECKING:
    from datasets_rl.specs import TensorSpec
    from datasets_rl.storages.base import Storage


class Writer(Stateful, ABC):
    """Base class of writers. A writer chooses the slots of a storage for new steps.

    The buffer holds the buffer's lock during a call, so that only a single thread of a single process calls a writer.
    """

    tracks_generations: bool = False
    """Whether batches have the generations of steps, as returned by `generations_of`."""

    _spec: TensorSpec | None = None
    _storage: Storage | None = None
    _other_writes: int = 0
    """Slots written that the write count of the storage does not include: in place, or before the storage was emptied."""

    @property
    def write_count(self) -> int:
        """Number of slots written, including slots that have been overwritten."""
        return self._require_storage().write_count + self._other_writes

    @property
    def _cursor(self) -> int:
        # TorchRL's name for the write index, which users of TorchRL read.
        storage = self._require_storage()
        return storage.write_count % storage.slot_count

    @property
    def spec(self) -> TensorSpec | None:
        """Spec that every step must match, or None for no check. The setter converts a spec of TorchRL."""
        return self._spec

    @spec.setter
    def spec(self, spec: Any) -> None:
        from datasets_rl.specs import as_spec

        self._spec = None if spec is None else as_spec(spec)

    def check(self, data: Any) -> None:
        """Check data against the spec, before the data is written.

        Args:
            data: A step, several steps with more leading axes, or a list of steps.

        Raises:
            InvalidArgumentError: If the data does not match the spec. The message lists all problems, each with the
                path, the value and the bound.
        """
        if self.spec is None:
            return
        if not isinstance(data, list):
            self.spec.assert_is_in(data)
            return
        reasons = [reason for number, step in enumerate(data) for reason in self.spec.problems(step, f"step {number}")]
        if reasons:
            raise InvalidArgumentError(f"the data does not match the spec: {'; '.join(reasons)}")

    def register_storage(self, storage: Storage) -> None:
        """Set the storage to write to."""
        self._storage = storage

    def _require_storage(self) -> Storage:
        """Return the storage."""
        if self._storage is None:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no storage", hint="pass the writer to a ReplayBuffer"
            )
        return self._storage

    @abstractmethod
    def add(self, data: Any) -> int | Tensor | None:
        """Write the data of a slot.

        Returns:
            The written row, or int64 [envs] if a slot has several rows, or None if the data was not stored.
        """

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write the data of several slots.

        Returns:
            The row of each step, int64 [n * envs], or -1 for steps that were not stored.
        """

    def write_at(self, index: int | Tensor, data: Any) -> int | Tensor:
        """Write into given slots, without moving the write index.

        Args:
            index: The slot, for the data of a single slot, or int64 [n], for the data of n slots.
            data: The data to write.

        Returns:
            The row of each step, as `add` and `extend` do.

        Raises:
            InvalidArgumentError: If this writer chooses the slots itself.
        """
        raise InvalidArgumentError(
            f"{type(self).__name__} does not write {type(data).__name__} at {index!r}: the writer chooses the slots",
            hint="use a RoundRobinWriter",
        )

    def generations_of(self, index: Any) -> Tensor:
        """Return how often each slot was written before the current content, or -1 if unknown.

        A slot has another generation after the slot is overwritten, or the storage is emptied. An index with a
        generation therefore always names the same step, as `ReplayBuffer.update_if_present` needs.

        Args:
            index: Slots, int64 [...]. For a storage with several leading axes also an index of `extend`, int64 [n,
                ndim], or a tuple with an index for each axis. The environments of a slot have the same generation.

        Returns:
            int64, of the shape of the slots, or -1 everywhere if `tracks_generations` is False.
        """
        return torch.full_like(self._slots_of(index), -1)

    def _slots_of(self, index: Any) -> Tensor:
        """Return the slots that an index of steps names, int64 [...]."""
        if isinstance(index, tuple):
            index = index[0]
        slots = torch.as_tensor(index, dtype=torch.int64)
        ndim = 1 if self._storage is None else self._storage.ndim
        return slots[..., 0] if ndim > 1 and slots.ndim > 1 and slots.shape[-1] == ndim else slots

    def empty(self, empty_write_count: bool = True) -> None:
        """Reset the writer, before the storage is emptied.

        Args:
            empty_write_count: Whether `write_count` restarts at 0.
        """
        if self._storage is not None:
            self._storage.retire_generations()
        self._other_writes = 0 if empty_write_count or self._storage is None else self.write_count

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
