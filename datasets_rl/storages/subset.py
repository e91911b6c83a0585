"""Some rows and fields of a dataset, as a dataset of their own; nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages.dataset import DatasetStorage, as_rows, wrapped
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.packed import nest
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, NEXT_REWARD, NEXT_TRUNCATED, Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["SubsetStorage"]


class SubsetStorage(EpisodicStorage):
    """The rows of a dataset that are named, in their order.

    Where the next row is left out and belongs to the same episode, the episode ends there, truncated, with the true
    observation after it; the rows that follow are another episode. ``episode`` is the number of each in `episodes`. In
    the shapes, M is the number of rows named.

        dataset    0  1  2  3 |  4  5  6  7     row 3 and row 7 end episodes
        named      0  1  2       4     6  7     rows 2 and 4 end them here too
        episode    0  0  0       1     2  2

    Args:
        dataset: All rows.
        rows: Rows of the dataset, int64 [M], ascending, at least one.
        fields: The keys that are shown, and the dtype that each is read as (None for its own); all keys by default.
            ``("next", "final_known")`` is always among them if one of the selected rows has an unknown next state, and
            never otherwise.
    """

    def __init__(
        self,
        dataset: DatasetStorage,
        rows: NDArray[np.int64],
        fields: Mapping[Key, torch.dtype | None] | None = None,
    ) -> None:
        if not len(rows) or (np.diff(rows) <= 0).any():
            raise InvalidArgumentError(f"{len(rows)} rows were named; expected at least one, ascending, none twice")
        super().__init__(len(rows))
        self.dataset = dataset
        self._rows = torch.from_numpy(np.ascontiguousarray(rows, np.int64))
        self._episodes, cut = _cut_table(dataset, rows)
        self._cut = torch.from_numpy(cut)
        self._numbers = torch.from_numpy(np.repeat(np.arange(len(self._episodes)), self._episodes.lengths))
        self._cut_keys = (NEXT_TRUNCATED, NEXT_DONE) if dataset.truncated_as_done else (NEXT_TRUNCATED,)
        self.fields = dict.fromkeys(dataset.keys()) if fields is None else dict(fields)
        self.fields.pop(NEXT_FINAL_KNOWN, None)
        self.masked = not self._episodes["final_known"].all()
        if self.masked:
            self.fields[NEXT_FINAL_KNOWN] = None
        shown = {*self.fields, *([NEXT_FINAL_KNOWN] if dataset.masked else [])}
        self._unchanged = shown == set(dataset.keys()) and not any(self.fields.values())

    @property
    def episodes(self) -> EpisodeTable:
        """Where each episode lies among the rows named."""
        return self._episodes

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the dataset, int64 [M], ascending."""
        rows: NDArray[np.int64] = self._rows.numpy()
        return rows

    @property
    def held(self) -> int:
        """Elements of this storage: all are there from the start."""
        return self._rows.shape[0]

    def get(self, index: Any) -> TensorDict:
        """Return the transitions at an index of [0, M), as strict TED."""
        at = wrapped(as_rows(index, len(self)), len(self))
        data = self.dataset.get(self._rows[at])
        cut = self._cut[at].unsqueeze(-1)
        for key in self._cut_keys:
            data[key].logical_or_(cut)
        data[EPISODE] = self._numbers.take(at)
        if self._unchanged:
            if self.dataset.masked and not self.masked:
                data[NEXT].del_("final_known")
            return data
        leaves = {key: _read_as(data[key], dtype) for key, dtype in self.fields.items()}
        return nest(leaves, data.batch_size)

    def column(self, key: Key) -> Tensor:
        """Return one field of all M rows, [M, ...], a copy."""
        if key not in self.fields:
            raise UnknownKeyError(dotted(key), [dotted(one) for one in self.fields])
        if key == EPISODE:
            return self._numbers.clone()
        values = _read_as(self.dataset.column(key)[self._rows], self.fields[key])
        return values | self._cut.unsqueeze(-1) if key in self._cut_keys else values

    def pick(self, key: Key, rows: Tensor) -> Tensor:
        """Return one field of some rows, [B, ...]."""
        if key not in self.fields:
            raise UnknownKeyError(dotted(key), [dotted(one) for one in self.fields])
        if key == EPISODE:
            return self._numbers[rows]
        values = _read_as(self.dataset.pick(key, self._rows[rows]), self.fields[key])
        return values | self._cut[rows].unsqueeze(-1) if key in self._cut_keys else values

    def keys(self) -> list[Key]:
        """Return every key of a batch."""
        return list(self.fields)

    def set(self, cursor: Any, data: Any) -> None:
        """Refuse: a stored dataset is not written to."""
        self.dataset.set(cursor, data)

    def __repr__(self) -> str:
        return f"SelectedRows({len(self):,} of {self.dataset!r})"


def _read_as(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    return values if dtype is None else values.to(dtype)


def _cut_table(dataset: DatasetStorage, rows: NDArray[np.int64]) -> tuple[EpisodeTable, NDArray[np.bool_]]:
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
