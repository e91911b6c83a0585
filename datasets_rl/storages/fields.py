"""A view of some fields of a dataset; the other fields are not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import UnknownKeyError
from datasets_rl.storages.dataset import as_rows
from datasets_rl.storages.episodic import EpisodicStorage, EpisodicView
from datasets_rl.storages.index import EndKey
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN, Key, dotted_name
from datasets_rl.ted.windows import Windows

__all__ = ["FieldsStorage"]


class FieldsStorage(EpisodicView):
    """Some fields of all steps of a dataset.

    Batches and columns have these fields only. Samplers and transforms that read single fields of other rows may read
    the others, too.

    Args:
        steps: The steps of the dataset.
        keys: Keys of the fields.
    """

    def __init__(self, steps: EpisodicStorage, keys: Iterable[Key]) -> None:
        super().__init__(steps)
        self.fields = dict.fromkeys(keys)
        """Keys of the fields; the values are None, as every field keeps its dtype."""
        self.masked = NEXT_FINAL_KNOWN in self.fields

    @override
    def get(self, index: Any) -> TensorDict:
        return self.take(as_rows(index, len(self)))

    @override
    def take(self, rows: Tensor) -> TensorDict:
        return self.steps.take_fields(rows, tuple(self.fields))

    @override
    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> TensorDict:
        return self.steps.take_fields(rows, keys)

    @override
    def column(self, key: Key) -> Tensor:
        if key not in self.fields:
            raise UnknownKeyError(dotted_name(key), [dotted_name(field) for field in self.fields])
        return self.steps.column(key)

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        return self.steps.pick(key, rows)

    @override
    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, before: int, after: int, *, end_key: EndKey | None = None
    ) -> Windows:
        return self.steps.take_windows(keys, rows, before, after, end_key=end_key)

    @override
    def keys(self) -> list[Key]:
        return list(self.fields)

    @override
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        self.steps.set(cursor, data, set_cursor=set_cursor)

    def __repr__(self) -> str:
        return f"FieldsStorage({', '.join(map(dotted_name, self.fields))} of {self.steps!r})"
