"""A view of selected rows and fields of a dataset, without a copy of the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import UnknownKeyError
from datasets_rl.format.schema import Schema
from datasets_rl.storages.dataset import DatasetStorage, as_rows, wrap_negative_rows
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.packed import Column, RowSlot, as_tensor
from datasets_rl.storages.record_access import RecordAccess
from datasets_rl.storages.record_pass import PassEpisodes
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
from datasets_rl.ted.passes import ReadsInPass
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable, concatenated_ranges
from datasets_rl.ted.unchecked import nest_leaves
from datasets_rl.ted.windows import Windows

_AT_ONCE = 1 << 20
"""Maximum number of rewards that are read at once. A longer episode is read at once, too."""
_ROWS_BEFORE_LOADING = 1 << 16
"""The compiled loop takes half a second to load: only for a program that reads more rows."""


class _Located(NamedTuple):
    """Where some rows of a view are in its dataset."""

    rows: Tensor
    """Rows of the dataset, int64 [...]."""
    episodes: Tensor
    """The episodes of the rows in the view, int64 [...]."""
    cut: Tensor
    """Whether an episode lost the row after each of these rows, bool [...]."""


class _Reads(NamedTuple):
    """How some fields of a view are read from its dataset."""

    stored: tuple[Key, ...]
    """Keys of the fields in the dataset."""
    changed: tuple[Key, ...]
    """Those of them with values that differ in the view."""
    cast: tuple[Key, ...]
    """Those of them with another dtype in the view."""
    names: tuple[tuple[Key, Key], ...]
    """The key in the view, and in the dataset, of each field, or none without second names."""


class View(EpisodicStorage):
    """Selected rows of a dataset, in their order, and selected fields, some with a second name.

    If the next row of an episode is not selected, the episode ends there, truncated, with the true next observation.
    The selected rows after the gap are another episode. ``episode`` is the index in `episodes`. In the shapes, M is the
    number of selected rows.

        dataset    0  1  2  3 |  4  5  6  7     rows 3 and 7 end episodes
        selected   0  1  2       4     6  7     rows 2 and 4 also end episodes here
        episode    0  0  0       1     2  2

    The memory that a view takes, and the time to open it, grow with the number of episodes and not with the number of
    rows. The returns of episodes that lost rows are computed when read.

    Batches and columns have the selected fields only. Samplers and transforms that read single fields of other rows may
    read the others, too.

    Args:
        dataset: The dataset.
        rows: Rows of the dataset, as ranges, or int64 [M], strictly ascending, at least one. All rows by default.
        fields: Keys of the visible fields, each with the dtype to convert to (None for the field's dtype). All keys by
            default. ``("next", "final_known")`` is left out if the next state of every selected row is known.
        names: Maps second names to keys of fields, which are then the same tensors under both.

    Raises:
        InvalidArgumentError: If the rows are empty or not strictly ascending.
    """

    def __init__(
        self,
        dataset: DatasetStorage,
        rows: RowRanges | NDArray[np.int64] | None = None,
        fields: Mapping[Key, torch.dtype | None] | None = None,
        names: Mapping[Key, Key] | None = None,
    ) -> None:
        if isinstance(rows, np.ndarray):
            rows = RowRanges.from_rows(rows)
        if rows is not None:
            rows = rows.split_at(dataset.episodes.starts)
        super().__init__(len(dataset) if rows is None else len(rows))
        self.dataset = dataset
        self.fields = dict.fromkeys(dataset.keys()) if fields is None else dict(fields)
        self.names = dict(names or {})
        self.rows = rows
        """The selected rows of the dataset, a range for each episode of the view, or None for all rows."""
        self._episodes = dataset.episodes
        self._located = 0
        self._changed = {key for key, dtype in self.fields.items() if dtype is not None}
        """Keys of the fields with values that differ from the values in the dataset."""
        if rows is not None:
            self._episodes, cut = _table_of_rows(dataset, rows)
            self._cut_rows = np.where(cut, rows.stops - 1, -1)
            """The last row, in the dataset, of each episode that lost the following row, [E], -1 for other episodes."""
            self._cut_keys = {NEXT_TRUNCATED, NEXT_DONE} if dataset.truncated_as_done else {NEXT_TRUNCATED}
            self._changed |= {EPISODE, *self._cut_keys}
            if self._episodes["final_known"].all():
                self.fields.pop(NEXT_FINAL_KNOWN, None)
        self.masked = NEXT_FINAL_KNOWN in self.fields
        self._keys = (*self.fields, *self.names)
        self._reads: dict[tuple[Key, ...] | None, _Reads] = {}

    @classmethod
    def of(cls, steps: DatasetStorage | View) -> View:
        """Return a view of all rows and fields of a dataset, or a view unchanged."""
        return steps if isinstance(steps, View) else cls(steps)

    def without_last_rows(self, episodes: NDArray[np.bool_]) -> View:
        """Return a view of these M rows without the last row of some episodes, a mask [E]."""
        starts = self._episodes.starts if self.rows is None else self.rows.starts
        return View(self.dataset, RowRanges(starts, self._episodes.lengths - episodes), self.fields, self.names)

    def with_keys(self, keys: Collection[Key]) -> View:
        """Return a view of some of these fields and second names."""
        fields = {key: dtype for key, dtype in self.fields.items() if key in keys}
        names = {name: key for name, key in self.names.items() if name in keys}
        return View(self.dataset, self.rows, fields, names)

    def with_names(self, names: Mapping[Key, Key]) -> View:
        """Return a view in which some fields have second names. Names of fields that the view lacks are ignored."""
        return View(
            self.dataset, self.rows, self.fields, {name: key for name, key in names.items() if key in self.fields}
        )

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the dataset for some of these M rows, by number."""
        return numbers if self.rows is None else self._locate(self.rows, torch.from_numpy(numbers)).rows.numpy()

    def _locate(self, ranges: RowRanges, rows: Tensor) -> _Located:
        """Return where some of the M rows are in the dataset."""
        numbers = np.ascontiguousarray(rows.numpy()).reshape(-1)
        if self._located < _ROWS_BEFORE_LOADING:
            self._located += len(numbers)
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
                return self._locate(ranges, wrap_negative_rows(rows, len(self)))
            episodes, _ = self._episode_trajectories.locate(numbers)
            found = numbers + ranges.shifts[episodes]
            cut = self._cut_rows[episodes] == found
        else:
            from datasets_rl.storages.range_loop import locate_rows  # deferred: imports numba

            found, episodes, cut = np.empty_like(numbers), np.empty_like(numbers), np.empty(len(numbers), np.bool_)
            if not locate_rows(
                *(numbers, *self._episode_trajectories.blocks, ranges.shifts, self._cut_rows, len(self)),
                *(found, episodes, cut),
            ):
                return self._locate(ranges, wrap_negative_rows(rows, len(self)))
        if rows.ndim == 1:
            return _Located(torch.from_numpy(found), torch.from_numpy(episodes), torch.from_numpy(cut))
        return _Located(*(torch.from_numpy(part).view(rows.shape) for part in (found, episodes, cut)))

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
    def take_columns(self, rows: Tensor, keys: Sequence[Key] | None = None) -> dict[Key, Column]:
        reads = self._reads.get(keys if keys is None or type(keys) is tuple else tuple(keys)) or self._new_reads(keys)
        found = None if self.rows is None else self._locate(self.rows, rows)
        columns = None
        if found is not None and self._located >= _ROWS_BEFORE_LOADING:
            # The loop knows which episodes were cut, and leaves the dtypes.
            columns = self._columns_in_pass(rows, found, None, reads.stored)
        changed = reads.cast
        if columns is None:
            columns, changed = (
                self.dataset.take_columns(rows if found is None else found.rows, reads.stored),
                reads.changed,
            )
        for key in changed:
            columns[key] = self._change(key, as_tensor(columns[key]), found)
        if reads.names:
            columns = {key: as_tensor(column) for key, column in columns.items()}
            columns = {key: columns[name] for key, name in reads.names}
        return columns

    @override
    def record_access(self, key: Key) -> tuple[RecordAccess, RowSlot] | None:
        key = self.names.get(key, key)
        return None if self.rows is not None or key in self._changed else self.dataset.record_access(key)

    @override
    def take_in_pass(self, rows: Tensor, transform: ReadsInPass) -> TensorDict | None:
        if self.names or any(dtype is not None for dtype in self.fields.values()) or rows.ndim != 1:
            return None
        columns = self._columns_in_pass(rows, None if self.rows is None else self._locate(self.rows, rows), transform)
        return None if columns is None else nest_leaves(columns, rows.shape)

    def _columns_in_pass(
        self, rows: Tensor, found: _Located | None, transform: ReadsInPass | None, keys: tuple[Key, ...] | None = None
    ) -> dict[Key, Column] | None:
        """Return the leaves of steps, read in one pass, see `DatasetStorage.columns_in_pass`."""
        keys = self._keys if keys is None else keys
        if found is None:
            return self.dataset.columns_in_pass(rows, transform, keys)
        owners = found.episodes.numpy()
        return self.dataset.columns_in_pass(found.rows, transform, keys, self._pass_episodes, owners)

    @cached_property
    def _pass_episodes(self) -> PassEpisodes:
        ranges = self.rows
        if ranges is None:
            return PassEpisodes(*self._bounds)
        return PassEpisodes(np.ascontiguousarray(ranges.starts), ranges.stops - 1, self._cut_rows >= 0)

    def _new_reads(self, keys: Sequence[Key] | None) -> _Reads:
        """Return how some fields are read, made once for the same fields."""
        chosen = self._keys if keys is None else tuple(keys)
        names = tuple((key, self.names.get(key, key)) for key in chosen)
        stored = tuple(dict.fromkeys(name for _, name in names))
        changed = tuple(self._changed.intersection(stored))
        cast = tuple(key for key in changed if self.fields.get(key) is not None)
        reads = _Reads(stored, changed, cast, names if self.names else ())
        self._reads[None if keys is None else chosen] = reads
        return reads

    def _change(self, key: Key, values: Tensor, found: _Located | None) -> Tensor:
        """Return the values of a field in the view, from the values in the dataset, which may be overwritten."""
        if found is not None and key == EPISODE:
            values = found.episodes
        elif found is not None and key in self._cut_keys:
            values.logical_or_(found.cut.unsqueeze(-1))
        dtype = self.fields.get(key)
        return values if dtype is None else values.to(dtype)

    @override
    def column(self, key: Key) -> Tensor:
        """Return a field of all M rows, [M, ...], a copy unless the view has all rows."""
        if key not in self._keys:
            raise UnknownKeyError(dotted_name(key), [dotted_name(field) for field in self._keys])
        if self.rows is not None:
            return self.pick(key, torch.arange(len(self)))
        key = self.names.get(key, key)
        values, dtype = self.dataset.column(key), self.fields.get(key)
        return values if dtype is None else values.to(dtype)

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        key = self.names.get(key, key)
        found = None if self.rows is None else self._locate(self.rows, rows)
        values = self.dataset.pick(key, rows if found is None else found.rows)
        return self._change(key, values, found) if key in self._changed else values

    @override
    def pick_states(self, key: Key, rows: Tensor, following: Tensor) -> Tensor:
        key, selected = self.names.get(key, key), rows if self.rows is None else self._locate(self.rows, rows).rows
        values, dtype = self.dataset.pick_states(key, selected, following), self.fields.get(key)
        return values if dtype is None else values.to(dtype)

    @override
    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> Windows:
        stored = [self.names.get(key, key) for key in keys]
        if self.rows is not None or self._changed.intersection(stored) or end_key not in {None, NEXT_DONE}:
            return super().take_windows(keys, rows, offsets, end_key=end_key)
        return self.dataset.take_windows(stored, rows, offsets)

    @override
    def keys(self) -> list[Key]:
        return list(self._keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self.dataset, self.rows, self.fields, self.names)

    def __repr__(self) -> str:
        return f"View({len(self):,} rows, {', '.join(map(dotted_name, self._keys))} of {self.dataset!r})"


def _table_of_rows(dataset: DatasetStorage, rows: RowRanges) -> tuple[EpisodeTable, NDArray[np.bool_]]:
    """Return the table of the episodes that ranges form, and which episodes lost the following row, [E]."""
    whole = dataset.episodes
    numbers = whole.episode_of(rows.starts)
    cut = whole.stops[numbers] != rows.stops
    records = np.zeros(len(numbers), whole.dtype)
    for name in whole.names:
        if name != "return":
            records[name] = whole[name][numbers]
    records["length"] = rows.lengths
    records["start"] = np.cumsum(rows.lengths) - rows.lengths
    records["final_known"] |= cut
    return EpisodeTable(records, partial(_returns, dataset, rows, numbers)), cut


def _returns(dataset: DatasetStorage, rows: RowRanges, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sum of rewards of each range within an episode, [E]. The sums of whole episodes are known."""
    whole = dataset.episodes
    returns: NDArray[np.float64] = whole["return"][numbers]
    changed = np.flatnonzero(whole.lengths[numbers] != rows.lengths)
    ends = np.cumsum(rows.lengths[changed])
    first = 0
    while first < len(changed):
        stop = int(ends.searchsorted((ends[first - 1] if first else 0) + _AT_ONCE, "right"))
        block = changed[first : max(stop, first + 1)]
        lengths = rows.lengths[block]
        found = torch.from_numpy(concatenated_ranges(rows.starts[block], lengths))
        rewards = dataset.pick(NEXT_REWARD, found)[:, 0].numpy().astype(np.float64)
        returns[block] = np.add.reduceat(rewards, np.cumsum(lengths) - lengths)
        first += len(block)
    return returns
