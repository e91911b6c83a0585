"""The storages of several buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.checkpoint import part_misfits, refuse
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.base import Storage
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN

__all__ = ["StorageEnsemble", "with_mask"]


class StorageEnsemble(Storage):
    """The storages of the buffers of an ensemble, read by the number of the storage and the index in it.

    If one of them carries the mask ``("next", "final_known")``, the data of all carry it, whichever are drawn: it is
    True throughout where a storage does not know the key.

    Args:
        storages: At least one.
        transforms: For each storage what is applied to its data; None for nothing.

    Raises:
        InvalidArgumentError: If there is no storage, or another number of transforms.
    """

    def __init__(self, *storages: Storage, transforms: Sequence[Callable[[Any], Any] | None] | None = None) -> None:
        if transforms is not None and len(transforms) != len(storages):
            raise InvalidArgumentError(f"{len(transforms)} transforms were given for {len(storages)} storages")
        if not storages:
            raise InvalidArgumentError("there is no storage; expected at least one")
        given: tuple[Any, ...] = storages
        strange = [repr(one) for one in given if not isinstance(one, Storage)]
        if strange:
            raise InvalidArgumentError(f"{', '.join(strange)}: no storage; expected instances of Storage")
        super().__init__(sum(storage.max_size for storage in storages))
        self.storages = storages
        self.masked = any(storage.masked for storage in storages)
        self.transforms = tuple(transforms) if transforms is not None else (None,) * len(storages)

    @property
    def held(self) -> int:
        """Steps that all storages hold."""
        return sum(len(storage) for storage in self.storages)

    @property
    def written(self) -> int:
        """Slots that were written in all storages."""
        return sum(storage.written for storage in self.storages)

    @property
    def torn(self) -> int:
        """Steps of all storages whose writer died in the middle of writing them."""
        return sum(storage.torn for storage in self.storages)

    @property
    def read_only(self) -> bool:
        """Whether nothing can change the data of any storage."""
        return all(storage.read_only for storage in self.storages)

    @property
    def shared(self) -> bool:
        """Whether other processes may read and write the same memory of every storage."""
        return all(storage.shared for storage in self.storages)

    def share(self) -> None:
        """Share every storage."""
        for storage in self.storages:
            storage.share()

    def get(self, index: Any) -> list[tuple[int, Any]]:
        """Return data of several storages.

        Args:
            index: The numbers of the storages [K], and for each an index into it, as a tuple of the two or as a
                mapping (TensorDict) with "buffer_ids" and "index".

        Returns:
            For each of the K the number of the storage, and its data.

        Raises:
            IndexError: If there is no such storage, or an index reaches outside its data.
        """
        numbers, rows = index if isinstance(index, tuple) else (index.get("buffer_ids"), index.get("index"))
        return [(int(number), self._read(int(number), row)) for number, row in zip(numbers, rows, strict=True)]

    def _read(self, number: int, index: Any) -> Any:
        storage, transform = self.storages[number], self.transforms[number]
        one_axis = isinstance(index, Tensor) and index.ndim == 1
        data = storage.take(index) if one_axis else storage.get(index)
        if self.masked and not storage.masked:
            data = with_mask(data)
        return data if transform is None else transform(data)

    def set(self, cursor: Any, data: Any) -> None:
        """Refuse: it is not said to which storage the data belongs."""
        raise InvalidArgumentError(
            f"{type(data).__name__} was to be written at {cursor!r} of an ensemble; it does not know where it belongs",
            hint="write to one of its storages: ensemble[i]",
        )

    def empty(self) -> None:
        """Empty every storage."""
        for storage in self.storages:
            storage.empty()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the storages."""
        return {"storages": [storage.state_dict() for storage in self.storages]}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over: any of the storages' reasons, or another number of them."""
        return part_misfits("storage", self.storages, state_dict.get("storages"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the states of the storages."""
        refuse(self.misfits(state_dict))
        for storage, state in zip(self.storages, state_dict["storages"], strict=True):
            storage.load_state_dict(state)

    def __getitem__(self, index: Any) -> Any:
        """Return one storage by its number, an ensemble of some by a slice, else what `get` returns."""
        if isinstance(index, slice):
            return StorageEnsemble(*self.storages[index], transforms=self.transforms[index])
        return self.storages[index] if isinstance(index, int) else self.get(index)

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self.storages)

    def __repr__(self) -> str:
        return f"StorageEnsemble({', '.join(map(repr, self.storages))})"


def with_mask(data: Any) -> Any:
    """Return data whose next states are all known, with the mask that says so; unchanged if it has one already."""
    if is_tensor_collection(data) and data.get(NEXT_FINAL_KNOWN, None) is None:
        data = data.copy()
        data.set(NEXT_FINAL_KNOWN, torch.ones((*data.batch_size, 1), dtype=torch.bool, device=data.device))
    return data
