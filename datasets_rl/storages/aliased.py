"""A view of a dataset in which some fields have a second name; no data are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.storages.episodic import EpisodicStorage, EpisodicView
from datasets_rl.storages.index import EndKey
from datasets_rl.ted.keys import NEXT_DONE, Key
from datasets_rl.ted.windows import Windows

__all__ = ["AliasedStorage"]


class AliasedStorage(EpisodicView):
    """The steps of a dataset, with some fields also available under a second name, as the same tensors.

    Args:
        steps: The dataset.
        names: Maps each second name to the key of the field; an alias of a missing field is ignored.
    """

    def __init__(self, steps: EpisodicStorage, names: Mapping[Key, Key]) -> None:
        super().__init__(steps)
        keys = set(steps.keys())
        self.names = {name: key for name, key in names.items() if key in keys}

    @override
    def get(self, index: Any) -> TensorDict:
        data = self.steps.get(index)
        for name, key in self.names.items():
            data[name] = data[key]
        return data

    @override
    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> TensorDict:
        data = self.steps.take_fields(rows, list(dict.fromkeys(self.names.get(key, key) for key in keys)))
        for name in self.names.keys() & set(keys):
            data[name] = data[self.names[name]]
        return data if set(self.names.values()) <= set(keys) else data.select(*keys)

    @override
    def column(self, key: Key) -> Tensor:
        return self.steps.column(self.names.get(key, key))

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        return self.steps.pick(self.names.get(key, key), rows)

    @override
    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, before: int, after: int, *, end_key: EndKey | None = None
    ) -> Windows:
        if end_key not in {None, NEXT_DONE}:
            return super().take_windows(keys, rows, before, after, end_key=end_key)
        return self.steps.take_windows([self.names.get(key, key) for key in keys], rows, before, after)

    def keys(self) -> list[Key]:
        """Return every key of a batch."""
        return [*self.steps.keys(), *self.names]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refuse: a stored dataset is not written to."""
        self.steps.set(cursor, data, set_cursor=set_cursor)

    def __repr__(self) -> str:
        return f"Renamed({self.steps!r}, {self.names})"
