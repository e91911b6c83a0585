"""The replay buffer of TensorDicts."""

from __future__ import annotations

from typing import Any

from tensordict.utils import expand_as_right

from datasets_rl.buffers.replay import ReplayBuffer

__all__ = ["TensorDictReplayBuffer"]


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer whose batches are TensorDicts.

    What the sampler says of its choice, and the index of every step, stand in the batch: ``batch["index"]`` is int64
    [B].

    Args:
        priority_key: Where a prioritised sampler finds the priorities of a batch.
        **kwargs: Those of `ReplayBuffer`.
    """

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Draw a batch.

        Args:
            batch_size: Steps wanted, B; by default that of the constructor.
            return_info: Return what the sampler says of its choice as well.
            include_info: False leaves the index, and what else the sampler says, out of the batch.

        Returns:
            The batch, or the batch and a dict of info.

        Raises:
            BadArgument: If no batch size is given anywhere, or the buffer is empty.
        """
        batch, info = super().sample(batch_size, return_info=True)
        if include_info is False:
            batch = batch.exclude(*info)
        return (batch, info) if return_info else batch

    def _finish(self, data: Any, info: dict[str, Any]) -> Any:
        for key, value in info.items():
            # What is known of an element holds for each of its steps, where elements are whole trajectories.
            data.set(key, expand_as_right(value, data).contiguous() if data.ndim > value.ndim else value)
        return super()._finish(data, info)
