"""Action chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms._bounds import bounds_of, spec_between
from datasets_rl.transforms._time import OverTime, TimeAxis, step_windows
from datasets_rl.transforms.base import (
    NestedKey,
    any_like,
    get_entry,
    set_entry,
    under_next,
)

__all__ = ["ActionChunkTransform"]


class ActionChunkTransform(OverTime):
    """Add the chunk of the next H actions to each step, for training policies that predict action chunks.

        action          a0 a1 a2 | b0        H = 3
        chunk of a1     a1 a2 a2             padded with the last action of the episode
        action_is_pad   .  .  x              mask of the padding

    In a buffer of single steps, the actions are read from the storage, so that every sampler works, and chunks have
    shape [B, H, A]. If the elements of a buffer or batch are trajectories [..., T, A], chunks have shape [..., T, H,
    A].

    Args:
        chunk_size: Number of actions per chunk, H, at least 1.
        action_key: Key of the action.
        chunk_key: Key of the chunks.
        pad_key: Key of the padding mask, bool [..., H].
        time_dim: Time axis of the action, counted from the last axis (negative).
        done_key: Key under "next" of the flag that ends a trajectory, if the batch has it; `None` for no flag.

    Raises:
        InvalidArgumentError: If `chunk_size` is below 1.
    """

    per_step = True

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
        return super()._reads_rows(data) and get_entry(data, self.in_keys[0]).ndim + self.time_dim <= 0

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        windows = self.take_windows(storage, self.in_keys, rows, 0, self.chunk_size - 1, data)
        return {"chunk": windows.entries[0], "outside": windows.outside}

    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        """Return the chunks [..., T, H, A] and the padding mask [..., T, H]; T need not be in the batch size.

        Raises:
            InvalidArgumentError: If the action has no such time axis.
        """
        action = get_entry(batch, self.in_keys[0])
        axis_index = action.ndim + self.time_dim
        if axis_index < 0:
            raise InvalidArgumentError(
                f"the action has shape {list(action.shape)}; expected a time axis at {self.time_dim}"
            )
        axis = TimeAxis(tuple(action.shape[: axis_index + 1]), axis_index)
        done = None if self.done_key is None else batch.get(under_next(self.done_key), None)
        window, outside = step_windows(axis.ends(done), 0, self.chunk_size - 1)
        return {"chunk": axis.select_steps(action, window), "outside": axis.unflatten(outside)}

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        set_entry(batch, self.out_keys[0], values["chunk"])
        set_entry(batch, self.pad_key, values["outside"])
        return batch

    def update_specs(self, spec: CompositeSpec) -> None:
        """Add the specs of the chunks of single steps, [H, A], and of the padding mask, [H]."""
        action, axis_index = spec[self.in_keys[0]], spec.ndim
        bounds = bounds_of(action) or (action.zero(), action.zero())
        low, high = (torch.stack([bound] * self.chunk_size, axis_index) for bound in bounds)
        spec.set(self.out_keys[0], any_like(low) if bounds_of(action) is None else spec_between(low, high))
        spec.set(self.pad_key, any_like(torch.zeros(*spec.shape, self.chunk_size, dtype=torch.bool)))

    def _repr_arguments(self) -> dict[str, Any]:
        return {"chunk_size": self.chunk_size}
