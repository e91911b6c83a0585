"""What a writer is: it says which slot a new step takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from datasets_rl.storages._base import Storage

__all__ = ["Writer"]


class Writer(ABC):
    """Which slot of a storage a new step takes."""

    _storage: Storage | None = None

    def register_storage(self, storage: Storage) -> None:
        """Be told where to write."""
        self._storage = storage

    @abstractmethod
    def add(self, data: Any) -> int:
        """Write one step and return its slot."""

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write several steps and return their slots, int64 [n]."""

    def empty(self) -> None:
        """Start again at the first slot."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` returned."""

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder, without pickle."""

    def loads(self, path: Path | str) -> None:
        """Take over a state that `dumps` wrote."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
