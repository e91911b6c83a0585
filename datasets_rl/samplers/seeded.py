"""Base class of samplers with an order that follows from a seed, the epoch and the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from datasets_rl.samplers.base import Sampler

if TYPE_CHECKING:
    from datasets_rl.samplers.epochs import Epochs
    from datasets_rl.storages.base import Storage


class SeededSampler(Sampler):
    """Base class of samplers with an order that follows from a seed, the epoch and the ranks.

    A state is valid for every rank, and for any number of ranks. The ranks that load the state draw the rest of the
    epoch.
    """

    draws_ahead = True
    epochs: Epochs

    def bind(self, storage: Storage, batch_size: int) -> int:
        """Set the items of the epochs from a storage, and return the number of units in a batch.

        Raises:
            InvalidArgumentError: If the sampler cannot sample from this storage, or a batch has no such size.
        """
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The number of the present epoch, or of the next epoch if all ranks ended the present epoch."""
        return self.epochs.position[0]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch by its number, as `torch.utils.data.DistributedSampler.set_epoch` does.

        Raises:
            InvalidArgumentError: If the epoch is not an integer >= 0.
        """
        self.epochs.set_epoch(epoch)
        self.ran_out = False

    @property
    @override
    def draws_from_global(self) -> bool:
        return self.generator is None and self.epochs.seed is None and not self.epochs.share

    @property
    @override
    def position(self) -> Any:
        return self.epochs.position

    @override
    def state_at(self, position: Any) -> dict[str, Any]:
        return {**super().state_dict(), "epochs": self.epochs.state_at(position)}

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the position, with what determines the order: a few numbers."""
        return self.state_at(self.position)

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        state = state_dict.get("epochs")
        own = (
            self.epochs.state_problems(state) if isinstance(state, dict) else [f"epochs is {state!r}, expected a dict"]
        )
        return super().state_problems(state_dict) + own

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.epochs.load_state(state_dict["epochs"])
        self.ran_out = False

    @override
    def begin_next_epoch(self) -> None:
        self.set_epoch(self.epochs.epoch + 1)

    @override
    def skip_epoch(self, storage: Storage, batch_size: int) -> bool:
        return self.epochs.skip_epoch(self.bind(storage, batch_size))

    @override
    def empty(self) -> None:
        super().empty()
        self.epochs.reset()
        self.ran_out = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.epochs})"
