"""A view of selected rows and fields of a dataset; no data is copied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.schema import Schema
from datasets_rl.storages.dataset import DatasetStorage, as_rows, wrap_negative_rows
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT_DONE,
    NEXT_FINAL_KNOWN,
    NEXT_REWARD,
    NEXT_TRUNCATED,
    EndKey,
    Key,
    dotted_name,
)
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.windows import Windows


class View(EpisodicStorage):
    """Selected rows of a dataset, in their order, and selected fields, of which some may have a second name.

    If the next row of an episode is not selected, the episode ends there, truncated, with the true next observation;
    the selected rows after it are another episode. ``episode`` is the index in `episodes`. In the shapes, M is the
    number of selected rows.

        dataset    0  1  2  3 |  4  5  6  7     rows 3 and 7 end episodes
        selected   0  1  2       4     6  7     rows 2 and 4 also end episodes here
        episode    0  0  0       1     2  2

    Batches and columns have the selected fields only. Samplers and transforms that read single fields of other rows may
    read the others, too.

    Args:
        dataset: The dataset.
        rows: Rows of the dataset, int64 [M], strictly ascending, at least one; all rows by default.
        fields: Keys of the visible fields, each with the dtype to convert it to (None to keep its own); all keys by
            default. ``("next", "final_known")`` is left out if the next state of every selected row is known.
        names: Maps second names to keys of fields, which are then the same tensors under both.

    Raises:
        InvalidArgumentError: If the rows are empty or not strictly ascending.
    """

    def __init__(
        self,
        dataset: DatasetStorage,
        rows: NDArray[np.int64] | None = None,
        fields: Mapping[Key, torch.dtype | None] | None = None,
        names: Mapping[Key, Key] | None = None,
    ) -> None:
        if rows is not None and (not len(rows) or (np.diff(rows) <= 0).any()):
            raise InvalidArgumentError(
                f"the {len(rows)} rows are empty or not strictly ascending; expected at least one, each above the previous"
            )
        super().__init__(len(dataset) if rows is None else len(rows))
        self.dataset = dataset
        self.fields = dict.fromkeys(dataset.keys()) if fields is None else dict(fields)
        self.names = dict(names or {})
        self.rows = rows
        """The selected rows of the dataset, int64 [M], ascending; None for all."""
        self._rows: Tensor | None = None
        self._episodes = dataset.episodes
        self._changed = {key for key, dtype in self.fields.items() if dtype is not None}
        """Keys of the fields whose values are not those of the dataset."""
        if rows is not None:
            self._rows = torch.from_numpy(np.ascontiguousarray(rows, np.int64))
            self._episodes, cut = _table_of_rows(dataset, rows)
            self._cut = torch.from_numpy(cut)
            self._numbers = torch.from_numpy(np.repeat(np.arange(len(self._episodes)), self._episodes.lengths))
            self._cut_keys = {NEXT_TRUNCATED, NEXT_DONE} if dataset.truncated_as_done else {NEXT_TRUNCATED}
            self._changed |= {EPISODE, *self._cut_keys}
            if self._episodes["final_known"].all():
                self.fields.pop(NEXT_FINAL_KNOWN, None)
        self.masked = NEXT_FINAL_KNOWN in self.fields
        self._keys = (*self.fields, *self.names)

    @classmethod
    def of(cls, steps: DatasetStorage | View) -> View:
        """Return a view of all rows and fields of a dataset, or a view unchanged."""
        return steps if isinstance(steps, View) else cls(steps)

    def with_rows(self, numbers: NDArray[np.int64]) -> View:
        """Return a view of some of these M rows, by their numbers, strictly ascending."""
        return View(self.dataset, self.rows_of(numbers), self.fields, self.names)

    def with_keys(self, keys: Collection[Key]) -> View:
        """Return a view of some of these fields and second names."""
        fields = {key: dtype for key, dtype in self.fields.items() if key in keys}
        names = {name: key for name, key in self.names.items() if name in keys}
        return View(self.dataset, self.rows, fields, names)

    def with_names(self, names: Mapping[Key, Key]) -> View:
        """Return a view in which some fields have second names; names of fields that the view lacks are ignored."""
        return View(
            self.dataset, self.rows, self.fields, {name: key for name, key in names.items() if key in self.fields}
        )

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the dataset that some of these M rows are, by their numbers."""
        return numbers if self.rows is None else self.rows[numbers]

    @property
    @override
    def episodes(self) -> EpisodeTable:
        return self._episodes

    @property
    @override
    def schema(self) -> Schema:
        return self.dataset.schema

    @override
    def get(self, index: Any) -> TensorDict:
        return self.take(wrap_negative_rows(as_rows(index, len(self)), len(self)))

    @override
    def take(self, rows: Tensor) -> TensorDict:
        return self.take_fields(rows, self._keys)

    @override
    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> TensorDict:
        stored = tuple(dict.fromkeys(self.names.get(key, key) for key in keys)) if self.names else tuple(keys)
        data = self.dataset.take_fields(rows if self._rows is None else self._rows[rows], stored)
        for key in self._changed.intersection(stored):
            data[key] = self._change(key, data[key], rows)
        if self.names:
            for name in self.names.keys() & set(keys):
                data[name] = data[self.names[name]]
            data = data.select(*keys)
        return data

    def _change(self, key: Key, values: Tensor, rows: Tensor) -> Tensor:
        """Return the values of a field at some of the M rows, from those in the dataset, which may be overwritten."""
        if self._rows is not None and key == EPISODE:
            values = self._numbers.take(rows)
        elif self._rows is not None and key in self._cut_keys:
            values.logical_or_(self._cut[rows].unsqueeze(-1))
        dtype = self.fields.get(key)
        return values if dtype is None else values.to(dtype)

    @override
    def column(self, key: Key) -> Tensor:
        """Return one field of all M rows, [M, ...], a copy unless the view has all rows."""
        if key not in self._keys:
            raise UnknownKeyError(dotted_name(key), [dotted_name(field) for field in self._keys])
        if self._rows is not None:
            return self.pick(key, torch.arange(len(self)))
        key = self.names.get(key, key)
        values, dtype = self.dataset.column(key), self.fields.get(key)
        return values if dtype is None else values.to(dtype)

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        key = self.names.get(key, key)
        values = self.dataset.pick(key, rows if self._rows is None else self._rows[rows])
        return self._change(key, values, rows) if key in self._changed else values

    @override
    def pick_states(self, key: Key, rows: Tensor, following: Tensor) -> Tensor:
        key, selected = self.names.get(key, key), rows if self._rows is None else self._rows[rows]
        values, dtype = self.dataset.pick_states(key, selected, following), self.fields.get(key)
        return values if dtype is None else values.to(dtype)

    @override
    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> Windows:
        stored = [self.names.get(key, key) for key in keys]
        if self._rows is not None or self._changed.intersection(stored) or end_key not in {None, NEXT_DONE}:
            return super().take_windows(keys, rows, offsets, end_key=end_key)
        return self.dataset.take_windows(stored, rows, offsets)

    @override
    def keys(self) -> list[Key]:
        return list(self._keys)

    def __repr__(self) -> str:
        return f"View({len(self):,} rows, {', '.join(map(dotted_name, self._keys))} of {self.dataset!r})"


def _table_of_rows(dataset: DatasetStorage, rows: NDArray[np.int64]) -> tuple[EpisodeTable, NDArray[np.bool_]]:
    whole = dataset.episodes
    numbers = whole.episode_of(rows)
    last = np.append((np.diff(numbers) > 0) | (np.diff(rows) > 1), [True])
    cut = last & (whole.stops[numbers] - 1 != rows)
    lengths = np.diff(np.flatnonzero(last), prepend=-1)
    records = whole.records[numbers[last]]
    records["length"] = lengths
    records["start"] = np.cumsum(lengths) - lengths
    records["final_known"] |= cut[last]
    rewards = dataset.column(NEXT_REWARD)[torch.from_numpy(rows)].numpy()[:, 0].astype(np.float64)
    records["return"] = np.add.reduceat(rewards, records["start"])
    return EpisodeTable(records), cut
