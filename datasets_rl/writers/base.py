"""Base class of writers, which choose the slots for new steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch import Tensor

from datasets_rl.checkpoint import Stateful
from datasets_rl.errors import InvalidArgumentError

if TYPE_CHECKING:
    from datasets_rl.specs import TensorSpec
    from datasets_rl.storages.base import Storage

__all__ = ["Writer"]


class Writer(Stateful, ABC):
    """Base class of writers. A writer chooses the slots of a storage for new steps.

    The buffer calls a writer while it holds its lock, from one thread and one process at a time.
    """

    _spec: TensorSpec | None = None
    _storage: Storage | None = None

    @property
    def spec(self) -> TensorSpec | None:
        """Spec that every step must match; None for no check. A spec of TorchRL is converted when it is set."""
        return self._spec

    @spec.setter
    def spec(self, spec: Any) -> None:
        from datasets_rl.specs import as_spec

        self._spec = None if spec is None else as_spec(spec)

    def check(self, data: Any) -> None:
        """Check data against the spec, before anything is written.

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
        """Return the storage.

        Raises:
            InvalidArgumentError: If no storage is set.
        """
        if self._storage is None:
            raise InvalidArgumentError(f"{type(self).__name__} has no storage", hint="pass it to a ReplayBuffer")
        return self._storage

    @abstractmethod
    def add(self, data: Any) -> int | Tensor | None:
        """Write the data of one slot.

        Returns:
            The row that was written; int64 [envs] if a slot has several rows; None if the data was not stored.
        """

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write the data of several slots.

        Returns:
            The row of each step, int64 [n * envs]; -1 for steps that were not stored.
        """

    def empty(self) -> None:
        """Reset the writer, after the storage was emptied."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
