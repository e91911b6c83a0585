"""The next actions side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms._bounds import between, bounds_of
from datasets_rl.transforms._time import OverTime, TimeAxis, windows
from datasets_rl.transforms.base import NestedKey, any_like, need, reader, taken, under_next

__all__ = ["ActionChunkTransform"]


class ActionChunkTransform(OverTime):
    """Give each step the next H actions, as policies that predict chunks are trained on.

        action          a0 a1 a2 | b0        H = 3
        chunk of a1     a1 a2 a2             the last action of the episode stands in
        action_is_pad   .  .  x              where it does

    In a buffer of single steps the actions are read from the storage, for any sampler, and chunks come as [B, H, A].
    Where the elements of a buffer, or of a batch, are trajectories [..., T, A], they come as [..., T, H, A].

    Args:
        chunk_size: Actions of a chunk, H, at least 1.
        action_key: The action.
        chunk_key: Where the chunks are written.
        pad_key: Where is written which actions stand in, bool [..., H].
        time_dim: The axis of time of the action, counted from the last one.
        done_key: The flag under "next" that ends a trajectory, if there is one; None: none does.
    """

    def __init__(
        self,
        chunk_size: int,
        *,
        action_key: NestedKey = "action",
        chunk_key: NestedKey = ("vla_action", "chunk"),
        pad_key: NestedKey = "action_is_pad",
        time_dim: int = -2,
        done_key: NestedKey | None = "done",
    ) -> None:
        super().__init__([action_key], [chunk_key], done_key)
        if chunk_size < 1:
            raise InvalidArgumentError(f"chunk_size is {chunk_size}; expected at least 1")
        self.chunk_size, self.pad_key, self.time_dim = chunk_size, pad_key, time_dim

    def _reads_rows(self, data: Any) -> bool:
        return super()._reads_rows(data) and taken(data, self.in_keys[0]).ndim + self.time_dim <= 0

    def found_in_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the actions [B, H, A] and which stand in [B, H]."""
        there, outside = self.around(storage, rows, 0, self.chunk_size - 1)
        key = self.in_keys[0]
        actions = need(reader(storage, there.reshape(-1))(key), key, data)
        return {"chunk": actions.reshape(*there.shape, *actions.shape[1:]), "outside": outside}

    def found_in_batch(self, batch: Any) -> dict[str, Any]:
        """Return the same along the axis of time, which need not be part of the batch size."""
        action = taken(batch, self.in_keys[0])
        place = action.ndim + self.time_dim
        if place < 0:
            raise InvalidArgumentError(
                f"the action has shape {list(action.shape)}; expected an axis of time at {self.time_dim}"
            )
        axis = TimeAxis(tuple(action.shape[: place + 1]), place)
        done = None if self.done_key is None else batch.get(under_next(self.done_key), None)
        there, outside = windows(axis.ends(done), 0, self.chunk_size - 1)
        return {"chunk": axis.at(action, there), "outside": axis.back(outside)}

    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Write the chunks."""
        batch.set(self.out_keys[0], found["chunk"])
        return batch.set(self.pad_key, found["outside"])

    def respec(self, spec: CompositeSpec) -> None:
        """Add the specs of the chunks of single steps, [H, A]."""
        action, place = spec[self.in_keys[0]], spec.ndim
        bounds = bounds_of(action) or (action.zero(), action.zero())
        low, high = (torch.stack([bound] * self.chunk_size, place) for bound in bounds)
        spec.set(self.out_keys[0], any_like(low) if bounds_of(action) is None else between(low, high))
        spec.set(self.pad_key, any_like(torch.zeros(*spec.shape, self.chunk_size, dtype=torch.bool)))

    def _facts(self) -> dict[str, Any]:
        return {"chunk_size": self.chunk_size}
