"""What storages over a dataset have in common: they are read-only, and a table says where episodes lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from datasets_rl.storages.base import Storage
from datasets_rl.storages.index import EndKey
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.trajectories import Trajectories

__all__ = ["EpisodicStorage"]


class EpisodicStorage(Storage, ABC):
    """Steps of episodes that lie back to back and never change."""

    @property
    @abstractmethod
    def episodes(self) -> EpisodeTable:
        """Where each episode lies."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can change the data: always."""
        return True

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return which rows follow each other in time: for the keys of TED what the table says, at once."""
        if {end_key, traj_key, step_key} <= {None, NEXT_DONE, EPISODE}:
            return self._episodes_in_time
        return super().trajectories(end_key=end_key, traj_key=traj_key, step_key=step_key)

    @cached_property
    def _episodes_in_time(self) -> Trajectories:
        return Trajectories.of(self.episodes)
