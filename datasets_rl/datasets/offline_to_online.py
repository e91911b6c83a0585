"""A stored dataset together with new experience: training that starts offline and continues online."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import size_problems
from datasets_rl.buffers.mixture import Mixture
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets.loading import load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.mixture import MixtureSampler
from datasets_rl.storages.base import Storage
from datasets_rl.storages.lazy import LazyTensorStorage

if TYPE_CHECKING:
    from datasets_rl.buffers.keys import Missing


class _OfflineShare(MixtureSampler):
    """Sampler of two buffers that takes the same number of steps from the first buffer in every batch."""

    _offline_fraction: float = 0.5

    @property
    def offline_fraction(self) -> float:
        """Share of the first buffer, from 0 to 1."""
        return self._offline_fraction

    @offline_fraction.setter
    def offline_fraction(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise InvalidArgumentError(f"offline_fraction is {share!r}, expected a number >= 0 and <= 1")
        self._offline_fraction = float(share)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Sample a batch, see `MixtureSampler.sample`.

        While the second buffer is empty, sample from the first buffer alone.
        """
        self._only_offline = not len(self._members(storage)[1])
        return super().sample(storage, batch_size)

    @override
    def _slots_by_buffer(self, slots: int) -> NDArray[np.int64]:
        offline = slots if self._only_offline else round(self.offline_fraction * slots)
        return np.array([offline, slots - offline])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the mixture, and the share."""
        return {**super().state_dict(), "offline_fraction": self.offline_fraction}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        share = state_dict.get("offline_fraction")
        is_share = isinstance(share, float) and 0 <= share <= 1
        problem = f"offline_fraction is {share!r}, expected a number >= 0 and <= 1"
        return super().state_problems(state_dict) + ([] if is_share else [problem])

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.offline_fraction = state_dict["offline_fraction"]

    def __repr__(self) -> str:
        return f"{super().__repr__().removesuffix(')')}, offline_fraction={self.offline_fraction:g})"


class OfflineToOnlineReplayBuffer(Mixture):
    """A dataset and a buffer for new experience, mixed in every batch.

        >>> rb = OfflineToOnlineReplayBuffer("minari/mujoco/hopper/expert-v0", online_capacity=100_000, batch_size=256)
        >>> rb.sample()                              # [256] of the dataset, before the first experience
        >>> rb.extend(experience)                    # into rb.online_buffer
        >>> rb.sample()                              # 128 steps of the dataset, then 128 of the experience
        >>> rb.anneal(step, total_steps)             # fewer of the dataset later in training

    A batch of B steps has exactly ``round(offline_fraction * B)`` steps of the dataset, which never changes. The rest is
    a `Mixture`: ``batch["index", "buffer_ids"]`` is 0 for the dataset and 1 for the experience. Experience seldom has all
    keys of a dataset, such as ``"episode"``. With ``missing="drop"``, batches have the keys that both have.

    Args:
        offline_dataset: A dataset or any other replay buffer, or what `load` opens: an id, ``"minari/..."`` or ``"minari:..."``.
        online_storage: The storage of the experience. Either `online_storage` or `online_capacity` is given.
        online_capacity: Number of steps of a `LazyTensorStorage` for the experience.
        offline_fraction: Share of the dataset in every batch, above 0 and below 1.
        batch_size: Default number of steps in a batch, B.
        transform: Applied to every batch.
        missing: How to treat keys that only one side has: "refuse", "drop" or "zero", see `ReplayBufferEnsemble`.
        interleave: Whether steps of the dataset and of the experience alternate in a batch, see `Mixture`.
        **dataset_kwargs: Arguments of the dataset, if `offline_dataset` is an id.

    Raises:
        InvalidArgumentError: If arguments are out of range or mutually exclusive. With experience that differs in
            keys or shapes from the dataset, the next batch raises this error, with a table.
    """

    def __init__(
        self,
        offline_dataset: str | ReplayBuffer,
        *,
        online_storage: Storage | None = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Any = None,
        missing: Missing = "refuse",
        interleave: bool = False,
        **dataset_kwargs: Any,
    ) -> None:
        problems = size_problems(online_capacity=online_capacity, optional=True)
        if (online_storage is None) == (online_capacity is None):
            amount = "neither" if online_storage is None else "both"
            problems.append(f"online_storage or online_capacity: {amount} given, expected exactly one")
        if not 0 < offline_fraction < 1:
            problems.append(f"offline_fraction is {offline_fraction!r}, expected a number above 0 and below 1")
        if dataset_kwargs and not isinstance(offline_dataset, str):
            problems.append(f"{', '.join(dataset_kwargs)} are only forwarded when offline_dataset is an id")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        offline = _opened(offline_dataset, **dataset_kwargs)
        if online_storage is None:
            online_storage = LazyTensorStorage(online_capacity or 1)
        online = TensorDictReplayBuffer(storage=online_storage)
        names = ("the dataset", "the experience")
        super().__init__(
            offline,
            online,
            batch_size=batch_size,
            transform=transform,
            missing=missing,
            interleave=interleave,
            names=names,
        )
        self._share = _OfflineShare(offline.sampler, online.sampler)
        self._share.attach(self.storage)
        self._components.sampler = self._share
        self._first_fraction = self.offline_fraction = float(offline_fraction)

    @property
    def offline_fraction(self) -> float:
        """Current share of the dataset in every batch, from 0 to 1."""
        return self._share.offline_fraction

    @offline_fraction.setter
    def offline_fraction(self, share: float) -> None:
        self._share.offline_fraction = share

    @property
    def offline_buffer(self) -> Any:
        """The dataset."""
        return self._members[0]

    @property
    def online_buffer(self) -> ReplayBuffer:
        """The buffer of the experience."""
        return self._members[1]

    def add(self, data: Any) -> Any:
        """Write a step of experience, see `ReplayBuffer.add`."""
        return self.online_buffer.add(data)

    def extend(self, data: Any, *, update_priority: bool = True) -> Tensor:
        """Write several steps of experience, see `ReplayBuffer.extend`."""
        return self.online_buffer.extend(data, update_priority=update_priority)

    def anneal(self, step: int, total_steps: int) -> None:
        """Set the share of the dataset to ``offline_fraction * (1 - step / total_steps)``, at least 0.

        Args:
            step: Number of training steps so far, from 0.
            total_steps: Number of training steps after which batches have experience only.
        """
        self.offline_fraction = self._first_fraction * max(0.0, 1 - step / total_steps)

    def __len__(self) -> int:
        """Return the number of steps of the dataset and the experience."""
        return sum(map(len, self._members))


def prefill_replay_buffer(
    rb: ReplayBuffer, dataset: str | ReplayBuffer, n_samples: int | None = None, chunk_size: int = 1000
) -> ReplayBuffer:
    """Copy steps of a dataset into a buffer, and return the buffer.

    The steps are in the order of the dataset, each at most once, so that whole datasets keep their episodes.

    Args:
        rb: The buffer to write to.
        dataset: A dataset or any other replay buffer, or the id of a dataset for `load`.
        n_samples: Number of steps, chosen at random from torch's global generator. By default all.
        chunk_size: Number of steps that are copied at once.

    Raises:
        InvalidArgumentError: If a number is not an integer >= 1.
    """
    problems = size_problems(n_samples=n_samples, optional=True) + size_problems(chunk_size=chunk_size)
    if problems:
        raise InvalidArgumentError("; ".join(problems))
    source = _opened(dataset)
    rows = torch.arange(len(source))
    if n_samples is not None and n_samples < len(rows):
        rows = torch.randperm(len(rows))[:n_samples].sort().values
    for chunk in torch.split(rows, chunk_size):
        rb.extend(source[chunk])
    return rb


def _opened(dataset: str | ReplayBuffer, **options: Any) -> ReplayBuffer:
    """Return a dataset, which is opened if given by its id."""
    return load(dataset, **options) if isinstance(dataset, str) else dataset
