"""Whole episodes, padded to the same length."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.base import ReadOnlyStorage
from datasets_rl.storages.dataset import as_rows, wrap_negative_rows
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.ted.keys import MASK, EndKey, Key
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.trajectories import Trajectories


class PaddedTrajectories(ReadOnlyStorage):
    """The E episodes of a dataset as elements, each padded with zeros to the length T of the longest.

    `mask` is True for steps and False for padding. The padding is not stored, but created for each batch.

        episode 0    s_0 s_1 s_2 s_3        mask  1 1 1 1
        episode 1    s_0 s_1  0   0               1 1 0 0

    Args:
        steps: The steps of all episodes.
    """

    def __init__(self, steps: EpisodicStorage) -> None:
        self.steps = steps
        super().__init__(len(steps.episodes))
        self.masked = steps.masked
        self._starts = torch.from_numpy(steps.episodes.starts.copy())
        self._lengths = torch.from_numpy(steps.episodes.lengths.copy())
        self.longest = int(self._lengths.max())

    @property
    def episodes(self) -> EpisodeTable:
        """Start, length and metadata of each episode, in steps."""
        return self.steps.episodes

    def get(self, index: Any) -> TensorDict:
        """Return episodes, batch size [..., T]."""
        numbers = wrap_negative_rows(as_rows(index, len(self)), len(self))
        offsets = torch.arange(self.longest)
        mask = offsets < self._lengths[numbers].unsqueeze(-1)
        # The padding first repeats the last row of the episode, and is then set to zero.
        rows = self._starts[numbers].unsqueeze(-1) + torch.minimum(offsets, self._lengths[numbers].unsqueeze(-1) - 1)
        data = self.steps.get(rows)
        if not mask.all():
            padding = ~mask
            for leaf in data.values(include_nested=True, leaves_only=True):
                leaf[padding] = 0
        data.set(MASK, mask)
        return data

    def column(self, key: Key) -> Tensor:
        """Return a field of all episodes, [E, T, ...], a copy."""
        if key == MASK:
            return torch.arange(self.longest) < self._lengths.unsqueeze(-1)
        values = self.steps.column(key)
        padded = values.new_zeros((len(self), self.longest, *values.shape[1:]))
        padded[self.column(MASK)] = values
        return padded

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Raise: the elements are whole trajectories already."""
        del end_key, traj_key, step_key
        raise InvalidArgumentError(
            "the elements of this storage are whole trajectories, which slices cannot be sampled from",
            hint="sample slices from the steps: open the dataset without split_trajs",
        )

    def keys(self) -> list[Key]:
        """Return the keys of a batch."""
        return [*self.steps.keys(), MASK]

    def __repr__(self) -> str:
        return f"PaddedTrajectories([{len(self)}, {self.longest}] of {self.steps!r})"
