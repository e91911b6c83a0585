"""What a storage is: a container of steps that is read and written by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets_rl.errors import BadArgument

__all__ = ["Storage"]


class Storage(ABC):
    """Where the steps of a replay buffer are held.

    A storage is indexed by whole numbers, slices, masks and index tensors along its first `ndim` axes; `len` counts
    the steps that it holds now, `max_size` those that it can hold.

    Args:
        max_size: Steps that fit, at least 1.
    """

    ndim: int = 1
    """Leading axes that count as positions; the last of them is time."""

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise BadArgument(f"max_size is {max_size}; expected at least 1")
        self.max_size = int(max_size)

    @abstractmethod
    def get(self, index: Any) -> Any:
        """Return the data at an index.

        Raises:
            IndexError: If the index reaches outside the data.
        """

    @abstractmethod
    def set(self, cursor: Any, data: Any) -> None:
        """Write data at an index.

        Raises:
            BadArgument: If the data does not fit what is stored.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps held."""

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def __setitem__(self, index: Any, data: Any) -> None:
        self.set(index, data)

    def __iter__(self) -> Iterator[Any]:
        return (self.get(index) for index in range(len(self)))

    def attach(self, buffer: Any) -> None:
        """Be told which buffer reads from this storage; several may."""

    def empty(self) -> None:
        """Forget all steps."""
        raise BadArgument(f"{type(self).__name__} cannot be emptied")

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `state_dict` returned."""

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder, without pickle."""

    def loads(self, path: Path | str) -> None:
        """Take over a state that `dumps` wrote."""
