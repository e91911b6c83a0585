"""What a sampler is: it says which steps come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from datasets_rl.storages._base import Storage

__all__ = ["Sampler"]


class Sampler(ABC):
    """Which steps of a storage come next.

    A sampler that draws from a state of its own (a permutation, a priority tree) is told of every write and saves that
    state; one without state needs only `sample`.
    """

    ran_out: bool = False
    """Whether an epoch has ended with the last batch; a sampler that never ends one leaves it."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Choose a batch.

        Args:
            storage: Holds the steps.
            batch_size: Steps wanted, B.

        Returns:
            The index of the batch, int64 [B], and what else is known of the choice, by the key that it gets in the
            batch.

        Raises:
            BadArgument: If the storage holds nothing to choose from.
        """

    def add(self, index: int) -> None:
        """Be told that one step was written."""

    def extend(self, index: Tensor) -> None:
        """Be told that several steps were written, int64 [n]."""

    def empty(self) -> None:
        """Be told that the storage was emptied."""

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
