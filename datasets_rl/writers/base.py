"""What a writer is: it says which slot a new step takes."""

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
    """Which slot of a storage a new step takes.

    The buffer calls a writer inside its lock, one thread and one process at a time.
    """

    spec: TensorSpec | None = None
    """What every step must be; without one, nothing is checked."""

    _storage: Storage | None = None

    def check(self, data: Any) -> None:
        """Be shown data before anything is done with it.

        Args:
            data: A step, or several with further leading axes, or a list of steps.

        Raises:
            InvalidArgumentError: If it is not in the spec, with the path, the value and the bound; all problems at once.
        """
        if self.spec is None:
            return
        if not isinstance(data, list):
            self.spec.assert_is_in(data)
            return
        reasons = [reason for number, step in enumerate(data) for reason in self.spec.misfits(step, f"step {number}")]
        if reasons:
            raise InvalidArgumentError(f"not in the spec: {'; '.join(reasons)}")

    def register_storage(self, storage: Storage) -> None:
        """Be told where to write."""
        self._storage = storage

    def _target(self) -> Storage:
        """Return the storage.

        Raises:
            InvalidArgumentError: If there is none yet.
        """
        if self._storage is None:
            raise InvalidArgumentError(f"{type(self).__name__} has no storage", hint="give it to a ReplayBuffer")
        return self._storage

    @abstractmethod
    def add(self, data: Any) -> int | Tensor | None:
        """Write the data of one slot.

        Returns:
            The row it took; int64 [lanes] where a slot has several; None if it was not kept.
        """

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write the data of several slots.

        Returns:
            The row that each step took, int64 [n * lanes]; -1 where it was not kept.
        """

    def empty(self) -> None:
        """Be told that the storage was emptied."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
