"""A view of selected rows and fields of a dataset; no data is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Key,
    dotted_name,
)
from datasets_rl.ted.table import EpisodeTable

__all__ = ["SubsetStorage"]


class SubsetStorage(EpisodicStorage):
    """Selected rows of a dataset, in their order.

    If the next row of an episode is not selected, the episode ends there, truncated, with the true next observation;
    the selected rows after it are another episode. ``episode`` is the index in `episodes`. In the shapes, M is the
    number of selected rows.

        dataset    0  1  2  3 |  4  5  6  7     rows 3 and 7 end episodes
        selected   0  1  2       4     6  7     rows 2 and 4 also end episodes here
        episode    0  0  0       1     2  2

    Args:
        dataset: The dataset.
        rows: Rows of the dataset, int64 [M], strictly ascending, at least one.
        fields: Keys of the visible fields, each with the dtype to convert it to (None to keep its own); all keys by
            default. ``("next", "final_known")`` is included exactly if a selected row has an unknown next state.

    Raises:
        InvalidArgumentError: If the rows are empty or not strictly ascending.
    """

    def __init__(
        self,
        dataset: DatasetStorage,
        rows: NDArray[np.int64],
        fields: Mapping[Key, torch.dtype | None] | None = None,
    ) -> None:
        if not len(rows) or (np.diff(rows) <= 0).any():
            raise InvalidArgumentError(
                f"the {len(rows)} rows are empty or not strictly ascending; expected at least one, each above the previous"
            )
        super().__init__(len(rows))
        self.dataset = dataset
        self._rows = torch.from_numpy(np.ascontiguousarray(rows, np.int64))
        self._episodes, cut = _table_of_rows(dataset, rows)
        self._cut = torch.from_numpy(cut)
        self._numbers = torch.from_numpy(np.repeat(np.arange(len(self._episodes)), self._episodes.lengths))
        self._cut_keys = (NEXT_TRUNCATED, NEXT_DONE) if dataset.truncated_as_done else (NEXT_TRUNCATED,)
        self.fields = dict.fromkeys(dataset.keys()) if fields is None else dict(fields)
        self.fields.pop(NEXT_FINAL_KNOWN, None)
        self.masked = not self._episodes["final_known"].all()
        if self.masked:
            self.fields[NEXT_FINAL_KNOWN] = None

    @property
    @override
    def episodes(self) -> EpisodeTable:
        return self._episodes

    @property
    def rows(self) -> NDArray[np.int64]:
        """The selected rows of the dataset, int64 [M], ascending."""
        rows: NDArray[np.int64] = self._rows.numpy()
        return rows

    @property
    @override
    def schema(self) -> Schema:
        return self.dataset.schema

    @property
    @override
    def filled_count(self) -> int:
        return self._rows.shape[0]

    def get(self, index: Any) -> TensorDict:
        """Return the transitions at an index into [0, M), as strict TED."""
        return self.take_fields(wrap_negative_rows(as_rows(index, len(self)), len(self)), tuple(self.fields))

    @override
    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> TensorDict:
        data = self.dataset.take_fields(self._rows[rows], keys)
        cut_keys = [key for key in self._cut_keys if key in keys]
        if cut_keys:
            cut = self._cut[rows].unsqueeze(-1)
            for key in cut_keys:
                data[key].logical_or_(cut)
        if EPISODE in keys:
            data[EPISODE] = self._numbers.take(rows)
        for key in keys:
            if (dtype := self.fields[key]) is not None:
                data[key] = data[key].to(dtype)
        return data

    def column(self, key: Key) -> Tensor:
        """Return one field of all M rows, [M, ...], a copy."""
        if key not in self.fields:
            raise UnknownKeyError(dotted_name(key), [dotted_name(field) for field in self.fields])
        if key == EPISODE:
            return self._numbers.clone()
        values = _convert_dtype(self.dataset.column(key)[self._rows], self.fields[key])
        return values | self._cut.unsqueeze(-1) if key in self._cut_keys else values

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        if key not in self.fields:
            raise UnknownKeyError(dotted_name(key), [dotted_name(field) for field in self.fields])
        if key == EPISODE:
            return self._numbers[rows]
        values = _convert_dtype(self.dataset.pick(key, self._rows[rows]), self.fields[key])
        return values | self._cut[rows].unsqueeze(-1) if key in self._cut_keys else values

    def keys(self) -> list[Key]:
        """Return the keys of a batch."""
        return list(self.fields)

    @override
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        self.dataset.set(cursor, data, set_cursor=set_cursor)

    def __repr__(self) -> str:
        return f"SubsetStorage({len(self):,} of {self.dataset!r})"


def _convert_dtype(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    return values if dtype is None else values.to(dtype)


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
