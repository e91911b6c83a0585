"""The storages of several buffers, read as a single storage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import ensemble_problems, raise_reasons
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN, Key


class StorageEnsemble(Storage):
    """The storages of the buffers of an ensemble, read by storage number and index.

    If any storage carries the mask ``("next", "final_known")``, all returned data carry it, so that the keys of a batch
    do not depend on which storages are drawn. The mask of a storage without unknown states is True everywhere.

        >>> import torch
        >>> from datasets_rl import LazyTensorStorage, StorageEnsemble
        >>> left, right = LazyTensorStorage(10), LazyTensorStorage(10)
        >>> left.set(range(3), torch.zeros(3))
        >>> right.set(range(2), torch.ones(2))
        >>> len(StorageEnsemble(left, right))
        2

    Args:
        storages: At least one storage.
        transforms: A callable per storage, applied to the storage's data. None for no transform.

    Raises:
        InvalidArgumentError: If no storage is given, or the number of transforms differs.
    """

    def __init__(self, *storages: Storage, transforms: Sequence[Callable[[Any], Any] | None] | None = None) -> None:
        if transforms is not None and len(transforms) != len(storages):
            raise InvalidArgumentError(
                f"{len(transforms)} transforms were given for {len(storages)} storages, expected one per storage"
            )
        if not storages:
            raise InvalidArgumentError("no storages were given, expected at least one")
        arguments: tuple[Any, ...] = storages
        invalid = [repr(argument) for argument in arguments if not isinstance(argument, Storage)]
        if invalid:
            raise InvalidArgumentError(f"{', '.join(invalid)}: expected instances of Storage")
        super().__init__(sum(storage.max_size for storage in storages))
        self.storages = storages
        self.masked = any(storage.masked for storage in storages)
        self.transforms = tuple(transforms) if transforms is not None else (None,) * len(storages)

    @property
    def filled_count(self) -> int:
        """Number of steps in all storages."""
        return sum(len(storage) for storage in self.storages)

    @property
    def write_count(self) -> int:
        """Number of slots written in all storages."""
        return sum(storage.write_count for storage in self.storages)

    @property
    @override
    def torn(self) -> int:
        return sum(storage.torn for storage in self.storages)

    @property
    @override
    def read_only(self) -> bool:
        return all(storage.read_only for storage in self.storages)

    @property
    @override
    def shared(self) -> bool:
        return all(storage.shared for storage in self.storages)

    @override
    def share(self) -> None:
        for storage in self.storages:
            storage.share()

    def get(self, index: Any, without: Sequence[Collection[Key]] = ()) -> list[tuple[int, Any]]:
        """Return data of several storages.

        Args:
            index: The storage numbers [K] and an index per storage, as a tuple of the two or as a mapping (TensorDict)
                with "buffer_ids" and "index".
            without: For each storage of the ensemble, the keys that need not be read.

        Returns:
            K pairs of a storage number and the data of that storage.

        Raises:
            IndexError: If there is no such storage, or an index is out of range.
        """
        numbers, rows = index if isinstance(index, tuple) else (index.get("buffer_ids"), index.get("index"))
        pairs = [(int(number), row) for number, row in zip(numbers, rows, strict=True)]
        return [(number, self._read(number, row, without[number] if without else ())) for number, row in pairs]

    def _read(self, number: int, index: Any, without: Collection[Key]) -> Any:
        storage: Any = self.storages[number]  # storages with keys to leave out have `take_without`
        transform = self.transforms[number]
        if not (isinstance(index, Tensor) and index.ndim == 1):
            data = storage.get(index)
        elif without and transform is None:
            data = storage.take_without(index, tuple(without))
        else:
            data = storage.take(index)
        if self.masked and not storage.masked:
            data = with_mask(data)
        return data if transform is None else transform(data)

    @override
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        del set_cursor
        raise _ambiguous_error(data, f"at {cursor!r} of")

    def add(self, value: Any) -> None:
        """Raise: the storage to write to is ambiguous."""
        raise _ambiguous_error(value, "to")

    extend = add

    @override
    def empty(self) -> None:
        for storage in self.storages:
            storage.empty()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"storages": [storage.state_dict() for storage in self.storages]}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        return ensemble_problems("storage", self.storages, state_dict.get("storages"))

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise_reasons(self.state_problems(state_dict))
        for storage, state in zip(self.storages, state_dict["storages"], strict=True):
            storage.load_state_dict(state)

    def __getitem__(self, index: Any) -> Any:
        """Return a storage for an integer, an ensemble of several for a slice, or else the result of `get`."""
        if isinstance(index, slice):
            return StorageEnsemble(*self.storages[index], transforms=self.transforms[index])
        return self.storages[index] if isinstance(index, int) else self.get(index)

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self.storages)

    def __repr__(self) -> str:
        return f"StorageEnsemble({', '.join(map(repr, self.storages))})"


def _ambiguous_error(data: Any, where: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot write {type(data).__name__} {where} an ensemble: the storage to write to is ambiguous",
        hint="write to one of the storages: ensemble[i]",
    )


def with_mask(data: Any) -> Any:
    """Return data whose next states are all known, with the mask added as True.

    Data with the mask is returned unchanged.
    """
    if is_tensor_collection(data) and data.get(NEXT_FINAL_KNOWN, None) is None:
        data = data.copy()
        data.set(NEXT_FINAL_KNOWN, torch.ones((*data.batch_size, 1), dtype=torch.bool, device=data.device))
    return data
