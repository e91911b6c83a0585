"""Base class of samplers, which choose the steps of a batch."""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import Stateful

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage


class _SamplerClass(ABCMeta):
    """The class of sampler classes: ``RandomSampler(replacement=False)`` is a `SamplerWithoutReplacement`."""

    def __call__(cls, *args: Any, replacement: bool = True, **options: Any) -> Any:
        without: type[Sampler] | None = vars(cls).get("without_replacement")
        if replacement or without is cls:
            return super().__call__(*args, **options)
        if without is None:
            raise InvalidArgumentError(
                f"replacement is False, but {cls.__name__} always draws with replacement",
                hint="use a SamplerWithoutReplacement or a SliceSamplerWithoutReplacement",
            )
        return without(*args, **options)


class Sampler(Stateful, ABC, metaclass=_SamplerClass):
    """Base class of samplers. A sampler chooses the steps of a batch from a storage.

    A sampler with state (a permutation, a priority tree) is notified of every write and saves that state. A stateless
    sampler implements only `sample`. The buffer calls the sampler under the lock of the buffer, from a single thread at
    a time.
    """

    generator: Generator | None = None
    """Random generator. None for torch's global generator."""

    ran_out: bool = False
    """Whether the last batch ended an epoch. Always False for a sampler without epochs."""

    consumes: ClassVar[bool] = False
    """Whether steps leave the buffer after the draw, as with a `ConsumingSampler`."""

    without_replacement: ClassVar[type[Sampler] | None] = None
    """The class that ``replacement=False`` selects. A sampler that draws without replacement names itself."""

    needs_episodes: ClassVar[bool] = False
    """Whether `sample` needs the episodes of a stored dataset, an `EpisodicStorage`."""

    needs_several: ClassVar[bool] = False
    """Whether `sample` needs several storages, a `StorageEnsemble`."""

    unit: int = 1
    """Number of steps sampled together: the batch size is a multiple of this number."""

    has_epochs: ClassVar[bool] = False
    """Whether an epoch draws each item once, so that a batch that was drawn ahead must not be lost."""

    draws_at_random: ClassVar[bool] = False
    """Whether batches are drawn by the generator."""

    draws_ahead: bool = False
    """Whether batches may be drawn ahead: they do not depend on what is done with earlier batches."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Sample a batch.

        Args:
            storage: The storage to sample from.
            batch_size: Number of steps, B.

        Returns:
            The rows of the batch, int64 [B] (see `Storage` for the numbering of rows with several environments), and
            additional info about the sample, by its key in the batch.

        Raises:
            InvalidArgumentError: If the storage has no steps to sample.
        """

    def sample_batches(self, storage: Storage, batch_size: int, count: int) -> tuple[Tensor, dict[Any, Any]] | None:
        """Sample several batches at once, with the results of as many calls of `sample`, if that is faster.

        Args:
            storage: The storage to sample from.
            batch_size: Number of steps of a batch, B.
            count: Number of batches, n.

        Returns:
            The rows of all batches, int64 [n B], and their info, [n B, ...]. None if each batch is sampled separately.
        """
        del storage, batch_size, count
        return None

    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        """Return the info that `sample` would return for some rows, without sampling and without a change of state.

        Buffers that are sampled as one call this method before the first batch: the result determines the keys of the
        batches. Any other info that `sample` returns is left out of their batches.

        Args:
            storage: The storage that contains the rows.
            rows: Rows of a trajectory, int64 [B].
        """
        del storage, rows
        return {}

    def attach(self, storage: Storage) -> None:
        """Prepare to sample from a storage.

        Raises:
            InvalidArgumentError: If the sampler cannot sample from this storage.
        """

    def add(self, index: Tensor) -> None:
        """Process a write to the rows of a slot, int64 [envs]."""
        self.extend(index)

    def extend(self, index: Tensor) -> None:
        """Process a write to these rows, int64 [n]."""

    def update_priority(self, index: Tensor, priority: Tensor | float, *, storage: Storage | None = None) -> None:
        """Update the priorities of rows. Samplers without priorities ignore the call.

        Args:
            index: Rows, int64 [n].
            priority: A priority per row, [n], or a single priority for all rows.
            storage: The storage that contains the rows.

        Raises:
            InvalidArgumentError: If a priority is negative or not finite, or the shapes differ. Nothing has changed
                then.
        """

    @property
    def default_priority(self) -> float:
        """Priority of new steps: 1 for a sampler without priorities."""
        return 1.0

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Process a write to these rows that was not reported by `add` or `extend`.

        Args:
            index: Rows, int64 [n], or a single row.
            storage: The storage that contains the rows.
        """
        del storage
        self.extend(torch.as_tensor(index, dtype=torch.int64).reshape(-1))

    def expect_priority(self, priority: Tensor) -> None:
        """Check priorities [n, ...] before the rows are written.

        Raises:
            InvalidArgumentError: If the sampler cannot accept these priorities.
        """

    @property
    def draws_from_global(self) -> bool:
        """Whether batches depend on torch's global generator, which is not a part of the state of the sampler."""
        return self.draws_at_random and self.generator is None

    @property
    def position(self) -> Any:
        """The position in an epoch, if the batches follow from a seed and this position, else None."""
        return None

    def state_at(self, position: Any) -> dict[str, Any]:
        """Return the state that this sampler had at a position, in the same epoch or the previous epoch."""
        del position
        return self.state_dict()

    def begin_next_epoch(self) -> None:
        """Drop the rest of the present epoch, if the order of the batches follows from the number of the epoch."""

    def skip_epoch(self, storage: Storage, batch_size: int) -> bool:
        """Return whether nothing is left to sample of an epoch that was restored, and go on to the next epoch if so."""
        del storage, batch_size
        return False

    def empty(self) -> None:
        """Forget all rows, after the storage was emptied."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler's own generator, if any. Subclasses add their state."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        state = state_dict.get("generator")
        expected = (self.generator or Generator()).get_state()
        if "generator" not in state_dict:
            return []
        if isinstance(state, Tensor) and state.dtype == expected.dtype and state.shape == expected.shape:
            return []
        return [f"generator is not the state of a torch.Generator, expected {expected.dtype} {list(expected.shape)}"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the generator.

        Subclasses call this method first, because an invalid state is rejected here.
        """
        super().load_state_dict(state_dict)
        if "generator" in state_dict:
            self.generator = self.generator or Generator()
            self.generator.set_state(state_dict["generator"])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
