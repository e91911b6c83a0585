"""Base class of read-only storages over a dataset. The episode table gives the bounds of each episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.format.schema import Schema
from datasets_rl.storages.base import ReadOnlyStorage
from datasets_rl.storages.packed import Column, as_array
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, EndKey, Key, dotted_name, keys_named
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.trajectories import Trajectories, windows_within
from datasets_rl.ted.unchecked import Groups, groups_of


class EpisodicStorage(ReadOnlyStorage, ABC):
    """Steps of episodes that are stored back to back and never change."""

    @property
    @abstractmethod
    def episodes(self) -> EpisodeTable:
        """Start, length and metadata of each episode."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The fields of the stored dataset."""

    @abstractmethod
    def get(self, index: Any) -> TensorDict:
        """Return the transitions at an index, see `Storage.get`."""

    @abstractmethod
    def take_columns(self, rows: Tensor, keys: Sequence[Key] | None = None) -> dict[Key, Column]:
        """Return the leaves of a batch of these rows by key, [B, ...], in memory that the caller may modify.

        Args:
            rows: The rows, int64 [B].
            keys: Keys of the fields, or None for all.

        Raises:
            KeyError: If there is no such key.
        """

    def take_named(
        self, rows: Tensor, keys: tuple[Key, ...] | None, rows_name: str = "", *, arrays: bool = False
    ) -> dict[str, Column]:
        """Return the leaves of a batch of these rows by dotted name, see `take_columns`.

        Args:
            rows: The rows, int64 [B].
            keys: Keys of the fields, or None for all.
            rows_name: The name of the rows in the result. Empty to leave them out.
            arrays: Whether all leaves are arrays.
        """
        columns = {dotted_name(key): column for key, column in self.take_columns(rows, keys).items()}
        if rows_name:
            columns[rows_name] = rows
        return {name: as_array(column) for name, column in columns.items()} if arrays else columns

    @override
    def take(self, rows: Tensor) -> TensorDict:
        return self._batch_of(rows, None)

    @override
    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> TensorDict:
        """Return some fields of these rows, int64 [...], as a batch, see `Storage.take_fields`."""
        return self._batch_of(rows, tuple(keys))

    def take_with(self, rows: Tensor, keys: tuple[Key, ...] | None, more: Mapping[str, Tensor]) -> TensorDict:
        """Return fields of these rows, int64 [B], as a batch, with further entries [B], which replace fields.

        Args:
            rows: The rows.
            keys: Keys of the fields, or None for all.
            more: The further entries by key.
        """
        return self._batch_of(rows, keys, more)

    def _batch_of(
        self, rows: Tensor, keys: tuple[Key, ...] | None, more: Mapping[str, Tensor] | None = None
    ) -> TensorDict:
        if rows.ndim != 1:
            return self._batch_of(rows.reshape(-1), keys).reshape(rows.shape)
        columns = self.take_columns(rows, keys)
        if (groups := self._groups.get(keys)) is None:
            groups = self._groups[keys] = groups_of(tuple(columns))
        batch = groups.build(columns, rows.shape, self.rows_device)
        return batch.update(more) if more else batch

    @cached_property
    def _groups(self) -> dict[tuple[Key, ...] | None, Groups]:
        return {}

    @cached_property
    def wide_states(self) -> frozenset[Key]:  # type: ignore[override]  # computed once
        """Keys of the fields in separate files with values at t and t + 1 that are stored once."""
        return frozenset(key for key in self.wide_keys if (NEXT, *key) in self.wide_keys)

    @cached_property
    def wide_keys(self) -> frozenset[Key]:  # type: ignore[override]  # computed once
        """Keys of the fields of a batch that are in separate files."""
        wide = {key for field in self.schema.wide for key in (field.key, (NEXT, *field.key))}
        return frozenset(wide.intersection(self.keys()))

    @abstractmethod
    def pick_states(self, key: Key, rows: Tensor, following: Tensor) -> Tensor:
        """Return a shared field of some rows, or the values under "next", in a single read.

        Args:
            key: Key of the field, not under "next".
            rows: The rows, int64 [...].
            following: Whether to return the value under "next" of each row, bool [...].

        Returns:
            The values, [..., *shape].
        """

    def take_without(self, rows: Tensor, keys: tuple[Key, ...]) -> TensorDict:
        """Return the steps of these rows, int64 [...], as a batch without some fields."""
        if keys not in self._others:
            self._others[keys] = tuple(key for key in self.keys() if key not in keys)
        return self.take_fields(rows, self._others[keys])

    @cached_property
    def _others(self) -> dict[tuple[Key, ...], tuple[Key, ...]]:
        return {}

    @abstractmethod
    def keys(self) -> list[Key]:
        """Return the keys of a batch."""

    @override
    def has_field(self, key: Key) -> bool:
        return key in self.keys()  # the column of a dataset may be a copy

    def keys_named(self, names: tuple[str | Key, ...]) -> tuple[Key, ...]:
        """Return the keys of fields by name, see `datasets_rl.ted.keys.keys_named`."""
        keys = self._named.get(names)
        if keys is None:
            keys = self._named[names] = tuple(keys_named(names, self.keys()))
        return keys

    @cached_property
    def _named(self) -> dict[tuple[str | Key, ...], tuple[Key, ...]]:
        return {}

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return which rows follow each other in time. For the keys of TED, from the episode table without a scan."""
        if {end_key, traj_key, step_key} <= {None, NEXT_DONE, EPISODE}:
            return self._episode_trajectories
        return super().trajectories(end_key=end_key, traj_key=traj_key, step_key=step_key)

    @override
    def windows_around(
        self, rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> tuple[Tensor, Tensor]:
        if end_key not in {None, NEXT_DONE}:
            return super().windows_around(rows, offsets, end_key=end_key)
        # The data has the episode of each row, so that no search is needed.
        firsts, lasts = self._bounds
        episodes = self.pick(EPISODE, rows).numpy()
        window, outside = windows_within(rows.numpy(), firsts[episodes], lasts[episodes], offsets)
        return torch.from_numpy(window), torch.from_numpy(outside)

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last row of each episode, [E] each."""
        table = self.episodes
        return table.starts.copy(), table.stops - 1

    @cached_property
    def _episode_trajectories(self) -> Trajectories:
        return Trajectories.from_table(self.episodes)
