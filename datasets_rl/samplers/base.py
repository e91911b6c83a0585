"""What a sampler is: it says which steps come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch import Generator, Tensor

from datasets_rl.checkpoint import Stateful

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

__all__ = ["Sampler"]


class Sampler(Stateful, ABC):
    """Which steps of a storage come next.

    A sampler that draws from a state of its own (a permutation, a priority tree) is told of every write and saves that
    state; one without state needs only `sample`. The buffer calls it inside its lock, one thread at a time.
    """

    generator: Generator | None = None
    """Where the randomness comes from; torch's global generator if there is none."""

    ran_out: bool = False
    """Whether an epoch has ended with the last batch; a sampler that never ends one leaves it."""

    unit: int = 1
    """Steps that come together: the size of a batch is a multiple of it."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Choose a batch.

        Args:
            storage: Holds the steps.
            batch_size: Steps wanted, B.

        Returns:
            The rows of the batch, int64 [B] (see `Storage`: with several lanes they are numbered through), and what
            else is known of the choice, by the key that it gets in the batch.

        Raises:
            InvalidArgumentError: If the storage holds nothing to choose from.
        """

    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        """Return the info that `sample` would return for some rows, without choosing any and without a change of state.

        Several buffers that are sampled as one ask for it before the first batch, because it decides which keys batches
        have. Whatever else a sampler returns does not get into their batches.

        Args:
            storage: Holds the steps.
            rows: Rows of one trajectory, int64 [B].
        """
        del storage, rows
        return {}

    def attach(self, storage: Storage) -> None:
        """Be told from which storage it will sample.

        Raises:
            InvalidArgumentError: If it cannot.
        """

    def add(self, index: Tensor) -> None:
        """Be told that the rows of one slot were written, int64 [lanes]."""
        self.extend(index)

    def extend(self, index: Tensor) -> None:
        """Be told that rows were written, int64 [n]."""

    def update_priority(self, index: Tensor, priority: Tensor | float, *, storage: Storage | None = None) -> None:
        """Be told how much rows matter; samplers that do not care leave it.

        Args:
            index: Rows, int64 [n].
            priority: One for each row, [n], or one for all.
            storage: Holds the rows.

        Raises:
            InvalidArgumentError: If a priority is no finite number from 0, or the shapes differ; nothing has changed then.
        """

    def expect_priority(self, priority: Tensor) -> None:
        """Be asked, before rows are written, whether their priorities [n, ...] could be taken over.

        Raises:
            InvalidArgumentError: If not.
        """

    def empty(self) -> None:
        """Be told that the storage was emptied."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler's own generator, if it has one; a sampler with more adds to it."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say whether a generator can take over the state."""
        state = state_dict.get("generator")
        wanted = Generator().get_state()
        if "generator" not in state_dict:
            return []
        if isinstance(state, Tensor) and state.dtype == wanted.dtype and state.shape == wanted.shape:
            return []
        return [f"generator is not the state of a generator, {wanted.dtype} {list(wanted.shape)}"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of the generator; a sampler with more calls this first, which refuses what does not fit.

        Raises:
            InvalidArgumentError: If it does not fit; nothing has changed then.
        """
        super().load_state_dict(state_dict)
        if "generator" in state_dict:
            self.generator = self.generator or Generator()
            self.generator.set_state(state_dict["generator"])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
