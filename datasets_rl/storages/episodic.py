"""Base class of read-only storages over a dataset, whose episode table gives the bounds of each episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.storages.base import Storage
from datasets_rl.storages.index import EndKey
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.trajectories import Trajectories

__all__ = ["EpisodicStorage"]


class EpisodicStorage(Storage, ABC):
    """Steps of episodes that are stored back to back and never change."""

    @property
    @abstractmethod
    def episodes(self) -> EpisodeTable:
        """Start, length and metadata of each episode."""

    @property
    @override
    def read_only(self) -> bool:
        return True

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return which rows follow each other in time; for the keys of TED, from the episode table without a scan."""
        if {end_key, traj_key, step_key} <= {None, NEXT_DONE, EPISODE}:
            return self._episode_trajectories
        return super().trajectories(end_key=end_key, traj_key=traj_key, step_key=step_key)

    @override
    def windows_around(
        self, rows: Tensor, before: int, after: int, *, end_key: EndKey | None = None
    ) -> tuple[Tensor, Tensor]:
        if end_key not in {None, NEXT_DONE}:
            return super().windows_around(rows, before, after, end_key=end_key)
        firsts, lasts = self._bounds
        episodes = self.pick(EPISODE, rows)
        unclamped = rows.unsqueeze(1) + torch.arange(-before, after + 1)
        window = unclamped
        if before:
            window = torch.maximum(window, firsts.index_select(0, episodes).unsqueeze(1))
        if after:
            window = torch.minimum(window, lasts.index_select(0, episodes).unsqueeze(1))
        return window, window != unclamped

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """The first and the last row of each episode, int64 [E] each."""
        table = self.episodes
        return torch.from_numpy(table.starts.copy()), torch.from_numpy(table.stops - 1)

    @cached_property
    def _episode_trajectories(self) -> Trajectories:
        return Trajectories.from_table(self.episodes)
