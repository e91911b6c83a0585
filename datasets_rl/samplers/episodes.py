"""Samplers of the episodes of a stored dataset, which ranks share, each once per epoch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack, override

from datasets_rl.arguments import check, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.epochs import Epochs, Items, Uneven, seeded
from datasets_rl.samplers.seeded import SeededSampler
from datasets_rl.samplers.slices import SliceOptions, SliceSampler
from datasets_rl.storages.episodic import EpisodicStorage

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.trajectories import Slices

Index = NDArray[np.int64]


def _dataset_of(sampler: SeededSampler, storage: Storage) -> str:
    """Return a digest of the episode table of a storage."""
    if not isinstance(storage, EpisodicStorage):
        raise InvalidArgumentError(
            f"a {type(sampler).__name__} samples the episodes of a stored dataset, and the storage is a {type(storage).__name__}",
            hint="use a SamplerWithoutReplacement or a SliceSamplerWithoutReplacement",
        )
    return hashlib.sha256(np.ascontiguousarray(storage.episodes.records).data).hexdigest()[:16]


class EpisodeSampler(SeededSampler):
    """Draw every step of a dataset once per epoch: the episodes are divided among ranks, and mixed in pools.

        >>> from datasets_rl import EpisodeSampler, load
        >>> shares = [EpisodeSampler(rank=rank, world_size=2) for rank in range(2)]
        >>> datasets = [load("demo/pendulum", batch_size=4000, sampler=sampler) for sampler in shares]
        >>> [[len(batch) for batch in dataset] for dataset in datasets]     # an epoch of 75 episodes of 200 steps
        [[4000, 3600], [4000, 3400]]

    Each epoch has another permutation of the episodes, which follows from the seed and the number of the epoch. With W
    ranks, rank r draws the episodes r, r + W, ... of the permutation: whole episodes, each of a single rank. A rank
    takes as many of its episodes as have `pool_steps` steps, draws the steps of these episodes in random order, and then
    takes the next episodes.

    `state_dict` returns a few numbers, the same in every rank. If as many ranks load this state, the ranks continue
    exactly: the next batches are the same as without the interruption. If another number of ranks load the state, the steps that
    were not drawn are divided among the new ranks: in that epoch too, each step is drawn once. The remaining steps of a
    partly drawn episode go to a single rank.

    Args:
        seed: The seed, the same for all ranks. By default a single process draws a seed from the generator, and several
            ranks use 0.
        pool_steps: Number of steps that are mixed: larger mixes better, smaller reads fewer episodes at a time.
        shuffle: Whether the order is random. If False, episodes and their steps keep their order.
        uneven: What to do about ranks with different numbers of steps. "keep": each step once, so that some ranks may
            have more batches than others. "drop": all ranks have as many full batches as the rank with the fewest.
            "pad": all have as many full batches as the rank with the most, and draw some steps again.
        rank: Number of this process. By default the rank in `torch.distributed`, if initialized, or in the environment
            variables ``RANK`` and ``WORLD_SIZE`` that torchrun sets, else 0 of 1.
        world_size: Number of processes.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    needs_episodes = True

    def __init__(
        self,
        *,
        seed: int | None = None,
        pool_steps: int = 100_000,
        shuffle: bool = True,
        uneven: Uneven = "keep",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check(size_problems(pool_steps=pool_steps))
        self.epochs = Epochs(
            seed=seed, shuffle=shuffle, pool=pool_steps, rank=rank, world_size=world_size, uneven=uneven
        )
        self._storage: Storage | None = None
        self._firsts: Index = np.empty(0, np.int64)

    @override
    def attach(self, storage: Storage) -> None:
        dataset = _dataset_of(self, storage)
        trajectories = storage.trajectories()
        self.epochs.bind(Items(dataset, trajectories.lengths))
        self._storage, self._firsts = storage, trajectories.firsts

    @override
    def bind(self, storage: Storage, batch_size: int) -> int:
        if storage is not self._storage:
            self.attach(storage)
        return batch_size

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw the next steps of this rank, at most `batch_size`, and fewer at the end of an epoch.

        Raises:
            InvalidArgumentError: If this rank has no batch in an epoch.
        """
        episodes, steps = self.epochs.next(self.bind(storage, batch_size), self.generator)
        self.ran_out = self.epochs.ran_out
        return torch.from_numpy(self._firsts[episodes] + steps), {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_storage": None}


class EpisodeSliceSampler(SeededSampler, SliceSampler):
    """Draw a slice of every episode of a dataset per epoch, with the episodes divided among ranks.

        >>> from datasets_rl import EpisodeSliceSampler, load
        >>> sampler = EpisodeSliceSampler(slice_len=50, rank=0, world_size=2)
        >>> [len(batch) for batch in load("demo/pendulum", batch_size=1000, sampler=sampler)]    # 38 of 75 episodes
        [1000, 900]

    The permutation, the ranks and the state are the same as of an `EpisodeSampler`. The start of the slice of an
    episode follows from the seed and the epoch, too, and all starts are equally likely. An episode that has no slice of
    this length is not drawn.

    Args:
        seed: As for `EpisodeSampler`.
        shuffle: Whether the episodes are drawn in random order.
        uneven: As for `EpisodeSampler`, in slices.
        **options: Arguments of `SliceSampler`: either `num_slices` or `slice_len`, and others. `rank` and
            `world_size` are as for `EpisodeSampler`.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or out of range.
    """

    needs_episodes = True

    def __init__(
        self, *, seed: int | None = None, shuffle: bool = True, uneven: Uneven = "keep", **options: Unpack[SliceOptions]
    ) -> None:
        ranks = options.pop("rank", None), options.pop("world_size", None)
        SliceSampler.__init__(self, **options)
        self.epochs = Epochs(seed=seed, shuffle=shuffle, rank=ranks[0], world_size=ranks[1], uneven=uneven)
        self._bound: Slices | None = None
        self._starts: tuple[tuple[int, int | None], Index] | None = None

    @override
    def attach(self, storage: Storage) -> None:
        _dataset_of(self, storage)
        SliceSampler.attach(self, storage)

    @override
    def bind(self, storage: Storage, batch_size: int) -> int:
        count, length = self._slice_count_and_length(batch_size)
        slices = self._slices(storage, length)
        if slices is not self._bound:
            dataset = f"{_dataset_of(self, storage)}, slices of {length}"
            self.epochs.bind(Items(dataset, (slices.counts > 0).astype(np.int64)))
            self._bound = slices
        return count

    @override
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        self.bind(storage, batch_size)
        return SliceSampler.sample(self, storage, batch_size)

    @override
    def _choose_slices(self, slices: Slices, count: int) -> tuple[Index, Index | None]:
        episodes, _ = self.epochs.next(count, self.generator)
        self.ran_out = self.epochs.ran_out
        key = self.epochs.epoch, self.epochs.seed
        if self._starts is None or self._starts[0] != key:
            parts = torch.rand(len(slices.counts), dtype=torch.float64, generator=seeded("starts", *key)).numpy()
            self._starts = key, (parts * slices.counts).astype(np.int64)
        return slices.of(episodes, self._starts[1][episodes])

    def __getstate__(self) -> dict[str, Any]:
        return {**SliceSampler.__getstate__(self), "_bound": None}

    def __repr__(self) -> str:
        return f"{SliceSampler.__repr__(self)[:-1]}, {self.epochs})"
