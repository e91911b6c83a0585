"""A dataset whose fields have further names; nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor

from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.subset import SubsetStorage
from datasets_rl.ted.keys import Key
from datasets_rl.ted.table import EpisodeTable

__all__ = ["AliasedStorage"]


class AliasedStorage(EpisodicStorage):
    """The steps of a dataset, some of whose fields are there under a second name too, as the same tensors.

    Args:
        steps: The dataset.
        names: For each second name the field that it stands for; those whose field is not there are not there either.
    """

    def __init__(self, steps: DatasetStorage | SubsetStorage | AliasedStorage, names: Mapping[Key, Key]) -> None:
        super().__init__(len(steps))
        self.steps = steps
        self.masked = steps.masked
        known = set(steps.keys())
        self.names = {name: key for name, key in names.items() if key in known}

    @property
    def episodes(self) -> EpisodeTable:
        """Where each episode lies."""
        return self.steps.episodes

    @property
    def held(self) -> int:
        """Elements of this storage: all are there from the start."""
        return len(self.steps)

    def get(self, index: Any) -> TensorDict:
        """Return the transitions at an index."""
        data = self.steps.get(index)
        for name, key in self.names.items():
            data[name] = data[key]
        return data

    def column(self, key: Key) -> Tensor:
        """Return one field of all rows, [N, ...]."""
        return self.steps.column(self.names.get(key, key))

    def pick(self, key: Key, rows: Tensor) -> Tensor:
        """Return one field of some rows, [B, ...]."""
        return self.steps.pick(self.names.get(key, key), rows)

    def keys(self) -> list[Key]:
        """Return every key of a batch."""
        return [*self.steps.keys(), *self.names]

    def set(self, cursor: Any, data: Any) -> None:
        """Refuse: a stored dataset is not written to."""
        self.steps.set(cursor, data)

    def __repr__(self) -> str:
        return f"Renamed({self.steps!r}, {self.names})"
