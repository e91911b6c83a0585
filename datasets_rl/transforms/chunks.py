"""Action chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import axis_problems, check, size_problems
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import Key, as_key
from datasets_rl.ted.passes import Field, Pass
from datasets_rl.transforms._time import TimeAxis
from datasets_rl.transforms.base import NestedKey, under_next
from datasets_rl.transforms.windows import WindowTransform


class ActionChunkTransform(WindowTransform):
    """Add the chunk of the next H actions to each step, for training policies that predict action chunks.

        action          a0 a1 a2 | b0        H = 3
        chunk of a1     a1 a2 a2             padded with the last action of the episode
        action_is_pad   .  .  x              mask of the padding

    In a buffer of single steps, the actions are read from the storage, so that every sampler works, and chunks have
    shape [B, H, A]. If the elements of a buffer or batch are trajectories [..., T, A], chunks have shape [..., T, H,
    A].

        >>> from datasets_rl import load
        >>> from datasets_rl.transforms import ActionChunkTransform
        >>> rb = load("demo/pendulum", transform=ActionChunkTransform(16), batch_size=32)
        >>> batch = rb.sample()
        >>> batch["vla_action", "chunk"].shape, batch["action_is_pad"].shape
        (torch.Size([32, 16, 1]), torch.Size([32, 16]))

    Args:
        chunk_size: Number of actions per chunk, H, at least 1.
        action_key: Key of the action.
        chunk_key: Key of the chunks.
        pad_key: Key of the padding mask, bool [..., H].
        time_dim: Time axis of the action, counted from the last axis (negative).
        done_key: Key under "next" of the flag that ends a trajectory, if the batch has it, or `None` for no flag.

    Raises:
        InvalidArgumentError: If `chunk_size` is below 1, or `time_dim` is not negative.
    """

    shown = ("chunk_size",)
    in_recipes = True

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
        check(size_problems(chunk_size=chunk_size), axis_problems(time_dim=time_dim))
        windows = {action_key: (0, chunk_size - 1)}
        masks = {action_key: pad_key}
        super().__init__(windows, mask="is_pad", mask_keys=masks, out_keys=[chunk_key], done_key=done_key)
        self.chunk_size, self.pad_key, self.time_dim = chunk_size, pad_key, time_dim

    @override
    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        if self._reads_rows(data):
            action = self.tensor(self.example(storage, rows, data), self.in_keys[0])
            if action.ndim + self.time_dim > 0:  # the rows are trajectories
                return data
        return super().gather(storage, rows, data)

    @override
    def pass_arguments(self) -> tuple[Any, ...]:
        return (*super().pass_arguments(), self.time_dim)

    @override
    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        field = fields.get(as_key(self.in_keys[0]))
        is_step = field is not None and len(field.shape) + 1 + self.time_dim <= 0  # and not a trajectory
        return super().pass_over(fields) if is_step else None

    @override
    def time_axis(self, batch: Any) -> TimeAxis:
        """Return the time axis of the action, which may be after the axes of the batch.

        Raises:
            InvalidArgumentError: If the action has no such axis.
        """
        action = self.tensor(batch, self.in_keys[0])
        if action.ndim == batch.ndim and batch.ndim:  # actions that are single numbers
            return TimeAxis.of_batch(batch)
        index = action.ndim + self.time_dim
        if index < 0:
            raise InvalidArgumentError(
                f"the action has shape {list(action.shape)}, expected a time axis at {self.time_dim}"
            )
        return TimeAxis(tuple(action.shape[: index + 1]), index)

    @override
    def ends(self, batch: Any, axis: TimeAxis) -> Tensor:
        if axis.shape == batch.shape:
            return super().ends(batch, axis)
        done = None if self.done_key is None else batch.get(under_next(self.done_key), None)
        if done is not None and tuple(done.shape[: len(axis.shape)]) != axis.shape:
            raise InvalidArgumentError(
                f"the axes of the action up to time_dim = {self.time_dim} are {list(axis.shape)}, and {self.done_key} under"
                f" next has shape {list(done.shape)}, expected the same axes",
                hint="pass the time axis of the action as time_dim=..., which is -2 for actions [..., T, A]",
            )
        return axis.ends(done)
