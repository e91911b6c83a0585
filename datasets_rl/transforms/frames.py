"""Frame stacking."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import axis_problems, check, choice_problems, size_problems
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.settings import require_memory
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, as_key
from datasets_rl.ted.passes import Entry, Field, Outside, Pass, Values
from datasets_rl.ted.windows import Windows
from datasets_rl.transforms._bounds import include_value, join_bounds
from datasets_rl.transforms._layout import IMAGE_AXES, channel_axis, check_layout
from datasets_rl.transforms._time import OverTime, TimeAxis, step_windows
from datasets_rl.transforms.base import (
    STEPS_TO_NEXT,
    Keys,
    NestedKey,
    any_like,
    expand_right,
    is_group,
    require_entry,
    set_entry,
    under_next,
)
from datasets_rl.transforms.compose import Compose
from datasets_rl.transforms.keys import ExcludeTransform

if TYPE_CHECKING:
    from datasets_rl.samplers.slices import SliceSampler
    from datasets_rl.ted.keys import Key

Padding = Literal["same", "constant", "zeros"]


_RGB = 3
"""Number of channels of the images that are stacked by a separate loop."""
_MAX_UNCHECKED_FRAMES = 1_000
"""Number of frames per stack above which the required memory is compared with the memory of the machine."""
_BLOCK_BYTES = 1 << 20
"""Bytes of the stacks that are computed at once, so that the frames of each stack are still in the cache."""
_INTEGERS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Types by which numpy copies the channels of a pixel at once, by their number of bytes."""


def _step_bytes(batch: Any, key: NestedKey) -> int:
    """Return the number of bytes per step of an entry of a batch, or 0 if the key is missing."""
    value = batch.get(key, None)
    return 0 if value is None or is_group(value) else value.nbytes // max(batch.numel(), 1)


class CatFrames(OverTime):
    """Concatenate the last N frames of an entry.

    In a buffer, the frames are read from the storage, so that every sampler works, including samplers of single steps.
    An entry under "next" gets the stack of the following step, so that ``next.x`` of a step is ``x`` of the next step,
    as TED requires:

        step            0          1          2      | 3  (next episode)
        x, N = 3        0 0 0      0 0 1      0 1 2  | 3 3 3
        next x          0 0 1      0 1 2      1 2 f  |              f: the final observation

    TorchRL stacks the values under "next" among themselves: at step 0 the result is 1 1 1, which no environment
    returns.

    An unknown final observation consists of zeros. It is the last frame of only a single stack, the stack
    under "next" of the last step, which ``("next", "final_known")`` marks. With `future`, earlier
    stacks would have this observation too. There the observation is padding, which "same" replaces by the last
    known frame.

        >>> from datasets_rl import load
        >>> from datasets_rl.transforms import CatFrames
        >>> rb = load("demo/pendulum", transform=CatFrames(4, dim=-1, in_keys=["observation"]), batch_size=32)
        >>> rb.sample()["observation"].shape
        torch.Size([32, 12])

    Args:
        N: Number of frames per stack.
        dim: Axis of a frame along which the frames are concatenated, negative. -(number of axes of a frame + 1) stacks
            the frames along a new first axis. By default, this is the axis of the channels of an image, a new first
            axis for images [H, W] and for numbers, and the first axis of other entries.
        in_keys: Keys of the frames, ``["pixels"]`` by default.
        out_keys: Keys of the stacks, `in_keys` by default.
        padding: Padding before the first frame of an episode: "same" (the first frame), "constant" or "zeros".
        padding_value: Value of the padding "constant".
        as_inverse: Whether to stack frames when data is written to the buffer, instead of when it is sampled. The data
            must be in order along the time axis.
        future: Whether to stack the current frame and the next N - 1 frames instead.
        mask_key: Key of the padding mask, bool [*batch, N], no mask by default.
        check_layout: Whether to refuse images for which `dim` is not the axis of the channels: -3 for images of a
            shape [H, W, C], or -1 for images of a shape [C, H, W].

    Raises:
        InvalidArgumentError: If `N`, `dim` or `padding` is invalid. The message lists all problems. When called, if
            `dim` is not the axis of the channels of an image, or an earlier `MultiStepTransform` or `QChunkTransform` has
            replaced the next frames by later frames.
    """

    per_step = True
    reads_only_in_keys = True
    of_images = True
    in_recipes = True

    def __init__(
        self,
        N: int,  # noqa: N803  # the name in the reference
        dim: int | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        padding: Padding = "same",
        padding_value: float = 0,
        as_inverse: bool = False,
        done_key: NestedKey | None = None,
        future: bool = False,
        mask_key: NestedKey | None = None,
        *,
        check_layout: bool = True,
    ) -> None:
        super().__init__("pixels" if in_keys is None else in_keys, out_keys, done_key)
        axes = [] if dim is None else axis_problems(dim=dim)
        check(size_problems(N=N), axes, choice_problems("same", "constant", "zeros", padding=padding))
        self.N, self.dim, self.future, self.mask_key = N, dim, future, mask_key
        self.padding, self.padding_value = padding, 0 if padding == "zeros" else padding_value
        self.as_inverse, self.check_layout = as_inverse, check_layout

    @property
    def _offsets(self) -> range:
        return range(self.N) if self.future else range(1 - self.N, 1)

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Read the frames from the storage, see `OverTime`. With `as_inverse`, return the batch unchanged."""
        return data if self.as_inverse else super().gather(storage, rows, data)

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        if self.own_reads(storage):
            return self._values_of_states(storage, rows, data)
        self._require_memory(len(rows), sum(_step_bytes(data, key) for key in self.in_keys))
        read: dict[NestedKey, Windows] = {}

        def frames(key: NestedKey) -> Tensor | None:
            try:
                read[key] = self.take_windows(storage, [key], rows, self._offsets, data)
            except UnknownKeyError:
                return None
            return read[key].entries[0]

        frames = cache(frames)
        values = self._frames_by_index(frames, len(rows.shape), data)
        return {**values, "outside": next(iter(read.values())).outside}

    def pass_arguments(self) -> tuple[Any, ...]:
        """Return what the pass follows from, see `ReadsInPass`."""
        return (
            *(self.N, self.dim, self.future, self.mask_key, self.padding, self.padding_value, self.as_inverse),
            *(self.check_layout, self.done_key, tuple(self.in_keys), tuple(self.out_keys)),
        )

    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        """Return the stacks as entries of a pass, see `ReadsInPass`."""
        zeros = self.padding != "same"
        if self._end_key is not None or self.as_inverse or self.future or self.N > _MAX_UNCHECKED_FRAMES:
            return None
        if (zeros and self.padding_value != 0) or (STEPS_TO_NEXT,) in fields:
            return None
        entries = []
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            key, root = as_key(in_key), self._root_key(in_key)
            if key not in fields:
                return None
            shape = fields[key].shape
            axis = self._axis(shape)
            if axis and axis != -len(shape):  # the frames are not one after another in memory
                return None
            parts = [Values(key, self._offsets, zeros)]
            if root is not None and as_key(root) in fields:
                before = [Values(as_key(root), range(2 - self.N, 1), zeros)] if self.N > 1 else []
                parts = [*before, Values(key, (0,))]
            joined = (self.N * shape[0], *shape[1:]) if axis else (self.N, *shape)
            entries.append(Entry(as_key(out_key), tuple(parts), joined))
        if self.mask_key is not None:
            entries.append(Entry(as_key(self.mask_key), (Outside(self._offsets),)))
        return Pass(tuple(entries))

    @override
    def own_reads(self, storage: Any) -> Collection[Key]:
        keys = [(key,) if isinstance(key, str) else key for key in self.in_keys]
        roots = {key[1:] if key[0] == NEXT else key for key in keys}
        return keys if not (self.as_inverse or self.future) and roots <= storage.wide_states else ()

    def _values_of_states(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the stacks of each step, [B, N, ...], by index of the key: each frame of the batch is read once."""
        window, outside = storage.windows_around(rows, self._offsets, end_key=self._end_key)
        if self.N > _MAX_UNCHECKED_FRAMES:
            self._require_memory(len(rows), sum(storage.pick(key, rows[:1]).nbytes for key in self.own_reads(storage)))
        # A stack under "next" has the last frames of the stack, and the next frame.
        sides = (window, torch.cat([window[:, 1:], window[:, -1:]], 1))
        following = torch.zeros_like(outside), torch.zeros_like(outside)
        following[1][:, -1] = True
        paddings = (outside, torch.cat([outside[:, 1:], torch.zeros_like(outside[:, :1])], 1))
        numbers: dict[Key, dict[int, int]] = {}
        for number, key in enumerate(self.own_reads(storage)):
            side = int(key[0] == NEXT)
            numbers.setdefault(key[side:], {})[side] = number
        values: dict[str, Any] = {"outside": outside}
        for field, number_of_side in numbers.items():
            rows_of_stacks = torch.stack([sides[side] for side in number_of_side])
            stacks = storage.pick_states(
                field, rows_of_stacks, torch.stack([following[side] for side in number_of_side])
            )
            for (side, number), stack in zip(number_of_side.items(), stacks, strict=True):
                if self.padding != "same":
                    stack.masked_fill_(expand_right(paddings[side], stack.shape), self.padding_value)
                if data.get(self.in_keys[number], None) is None:
                    frame = stack[:, -1]
                    replaced = self.in_keys[number] == self.out_keys[number]
                    set_entry(data, self.in_keys[number], frame if replaced else frame.clone())
                values[f"stack {number}"] = stack
        return values

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        self._require_memory(batch.numel(), sum(_step_bytes(batch, key) for key in self.in_keys))
        window, outside = step_windows(self.ends(batch, axis), self._offsets)

        def frames(key: NestedKey) -> Tensor | None:
            missing = batch.get(key, None) is None
            return None if missing else axis.select_steps(self.tensor(batch, key), window)

        return {**self._frames_by_index(cache(frames), len(axis.shape), batch), "outside": axis.unflatten(outside)}

    def unfolding(self, tensordict: Any) -> Any:
        """Return a batch with stacks of its frames, along its time axis, see `OverTime`."""
        return super().transform_batch(self.own(tensordict))

    def make_rb_transform_and_sampler(self, batch_size: int, **sampler_kwargs: Any) -> tuple[Compose, SliceSampler]:
        """Return a transform and a sampler for a buffer that stores single frames.

        The transform also stacks the frames under "next", and removes stacks from data that is written, unless they
        replace the frames. It reads frames from the storage, so that the sampler draws single steps. TorchRL's sampler
        draws slices of N steps, of which the transform returns the last steps.

        Args:
            batch_size: Number of steps of a batch, as the argument of `sample`. The argument is not used, because
                each step has a stack.
            **sampler_kwargs: Arguments of `SliceSampler`.
        """
        from datasets_rl.samplers.slices import SliceSampler

        del batch_size
        frames = self.clone()
        frames.in_keys, frames.out_keys = ([*keys, *map(under_next, keys)] for keys in (self.in_keys, self.out_keys))
        stacks = [key for key in frames.out_keys if key not in frames.in_keys]
        return Compose(frames, ExcludeTransform(*stacks, inverse=True)), SliceSampler(slice_len=1, **sampler_kwargs)

    def _require_memory(self, steps: int, step_bytes: int) -> None:
        """Check that the stacks of some steps, and their row numbers (int64), fit in memory."""
        if self.N > _MAX_UNCHECKED_FRAMES:
            needed = self.N * steps * (8 + step_bytes)
            require_memory(needed, f"CatFrames with N = {self.N:,}", hint="use a smaller N, such as 4")

    def _frames_by_index(self, frames: Callable[[NestedKey], Tensor | None], ndim: int, batch: Any) -> dict[str, Any]:
        """Return the frames of each step, [*batch, N, ...], by index of the key, and which of them are unknown.

        Args:
            frames: Function of a key that returns the window of frames of each step, `None` for a missing key.
            ndim: Number of axes of the batch.
            batch: Batch of the steps.
        """
        values: dict[str, Any] = {}
        for number, key in enumerate(self.in_keys):
            root_key = self._root_key(key)
            previous = None if root_key is None else frames(root_key)
            if previous is None:
                values[str(number)] = stack = require_entry(frames(key), key, batch)
                if self.future and key[0] == NEXT and batch.get(NEXT_FINAL_KNOWN, None) is not None:
                    unknown = _unknown_frames(frames(NEXT_FINAL_KNOWN), stack.shape[: ndim + 1])
                    values[f"unknown {number}"] = unknown
                    values[str(number)] = _repeat_last_known(stack, unknown.to(stack.device))
            else:
                # `write_results` appends the last frame, which is the entry under "next" of the batch itself.
                values[str(number)] = previous.narrow(ndim, 1, self.N - 1)
        return values

    def _root_key(self, key: NestedKey) -> NestedKey | None:
        """Return the root key of the frames before the frame of a key under "next", or `None` for other keys."""
        if self.future or isinstance(key, str) or key[0] != NEXT:
            return None
        return key[1] if len(key) == 2 else key[1:]

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        self._check_follows(batch)
        outside = values["outside"]
        axis = outside.ndim - 1
        for number, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            if (stack := values.get(f"stack {number}")) is not None:
                set_entry(batch, out_key, self._stack_frames(stack, axis))
                continue
            frames = values[str(number)]
            if self.padding != "same":
                padding = outside | values.get(f"unknown {number}", outside).to(outside.device)
                padding = padding[..., self.N - frames.shape[axis] :].to(frames.device)
                frames = frames.masked_fill(expand_right(padding, frames.shape), self.padding_value)
            if frames.shape[axis] < self.N:
                frames = _append_frame(frames, self.tensor(batch, in_key).unsqueeze(axis), axis)
            set_entry(batch, out_key, self._stack_frames(frames, axis))
        if self.mask_key is not None:
            set_entry(batch, self.mask_key, outside)
        return batch

    def _check_follows(self, batch: Any) -> None:
        """Check that the frames under "next" follow the frames of the steps, because n-step targets have later frames."""
        steps = batch.get(STEPS_TO_NEXT, None)
        if steps is not None and any(key[0] == NEXT for key in self.in_keys) and (steps > 1).any():
            raise InvalidArgumentError(
                f"the next frames are up to {int(steps.max())} steps after the frames of the steps, by an earlier transform,"
                " and a stack of both would leave out the frames between them",
                hint="put CatFrames and TimeMaxPool before MultiStepTransform and QChunkTransform",
            )

    @property
    def is_of_past(self) -> bool:
        """Whether the stack of a state consists of that state, of earlier states of the episode, and of padding."""
        return not (self.future or self.as_inverse) and self.mask_key is None and self.done_key in {None, "done"}

    def stack_rows(self, frames: NDArray[Any], last: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[Any]:
        """Return the stacks of frames in memory, for whole episodes: [M, ...].

        Args:
            frames: Frames, [R, ...].
            last: The row of the last frame of each stack, [M].
            first: The row of the first frame of the episode of each stack, [M].

        Raises:
            InvalidArgumentError: If `dim` is not an axis of a frame, or is not that of the channels of an image.
        """
        shape = frames.shape[1:]
        self._require_memory(len(last), frames.nbytes // max(len(frames), 1))
        axis = self._axis(shape)
        place = len(shape) + axis if axis else 0
        # The elements before the axis, and the elements that stay together.
        outer, inner = math.prod(shape[:place]), math.prod(shape[place:])
        stacks = np.empty((len(last), outer, self.N, inner), frames.dtype)
        flat = frames.reshape(len(frames), outer, inner)
        block = max(1, _BLOCK_BYTES * len(last) // max(stacks.nbytes, 1))
        for start in range(0, len(last), block):
            rows = slice(start, start + block)
            _copy_frames(stacks[rows], [*self._taken(flat, last[rows], first[rows])])
        joined = (self.N, *shape) if not axis else (*shape[:place], self.N * shape[place], *shape[place + 1 :])
        return stacks.reshape(len(last), *joined)

    def _taken(self, frames: NDArray[Any], last: NDArray[np.int64], first: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield the first frame of each stack, then the second frame, and so on, [M, ...] each."""
        for offset in self._offsets:
            rows = last + offset
            values = frames[np.maximum(rows, first)]
            if self.padding != "same":
                values[rows < first] = self.padding_value
            yield values

    def _axis(self, shape: Sequence[int]) -> int:
        """Return the axis of concatenation of frames of a shape, negative, or 0 for a new first axis."""
        if self.dim is None:
            return channel_axis(shape)
        if -self.dim > len(shape) + 1:
            raise InvalidArgumentError(
                f"dim is {self.dim}, expected at least {-len(shape) - 1} for frames of shape {list(shape)}"
            )
        if -self.dim == len(shape) + 1:
            return 0
        if self.check_layout and self.dim in {-1, -IMAGE_AXES}:
            first = self.dim == -IMAGE_AXES
            hint = "pass dim=-1, or convert the images with ToTensorImage first" if first else "pass dim=-3"
            check_layout(self, shape, hint, channels_last=not first)
        return self.dim

    def _stack_frames(self, frames: Tensor, axis: int) -> Tensor:
        dim = self._axis(frames.shape[axis + 1 :])
        return _concatenate_frames(frames, axis, dim) if dim else frames

    def inv(self, data: Any) -> Any:
        """Stack the frames of data that is written to the buffer, with `as_inverse`, or return the data unchanged."""
        return super().transform_batch(self.own(data)) if self.as_inverse else data

    def transform_batch(self, batch: Any) -> Any:
        """Stack the frames of a batch. With `as_inverse`, return the batch unchanged."""
        return batch if self.as_inverse else super().transform_batch(batch)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        if self.as_inverse:
            return
        stacked = {out: self._stacked_spec(spec, key) for key, out in zip(self.in_keys, self.out_keys, strict=True)}
        for key, stacked_spec in stacked.items():
            spec.set(key, stacked_spec)
        if self.mask_key is not None:
            spec.set(self.mask_key, any_like(torch.zeros(*spec.shape, self.N, dtype=torch.bool)))

    def _stacked_spec(self, spec: CompositeSpec, key: NestedKey) -> TensorSpec:
        last, root_key = spec[key], self._root_key(key)
        self._require_memory(1, math.prod(last.shape) * last.dtype.itemsize)
        frames = [spec.get(root_key, last) if root_key is not None else last] * (self.N - 1) + [last]

        def joined(values: list[Tensor]) -> Tensor:
            return self._stack_frames(torch.stack(values, spec.ndim), spec.ndim)

        stacked = join_bounds(frames, joined)
        return stacked if self.padding == "same" else include_value(stacked, self.padding_value)

    def _repr_arguments(self) -> dict[str, Any]:
        arguments = {"N": self.N, "dim": self.dim, "padding": self.padding}
        return {**arguments, **({"future": True} if self.future else {})}


def _copy_frames(stacks: NDArray[Any], frames: Sequence[NDArray[Any]]) -> None:
    """Copy frames into stacks.

    Args:
        stacks: The stacks, [M, P, N, D].
        frames: The first frame of each stack, the second frame, and so on, [M, P, D] each.
    """
    pixel_bytes = stacks.shape[-1] * stacks.itemsize
    if pixel_bytes == _RGB and stacks.shape[1] > 1:
        from datasets_rl.transforms._interleave import interleave  # deferred: it loads numba

        steps, pixels, count, channels = stacks.shape
        together = np.stack(frames, 1).reshape(steps, count, pixels * channels)
        interleave(together.view(np.uint8), stacks.reshape(steps, pixels, count * channels).view(np.uint8))
        return
    if dtype := _INTEGERS.get(pixel_bytes):
        stacks, frames = stacks.view(dtype), [values.view(dtype) for values in frames]
    for number, values in enumerate(frames):
        stacks[:, :, number] = values


def _append_frame(frames: Tensor, last: Tensor, axis: int) -> Tensor:
    """Concatenate the frames before the last frame, and the last frame."""
    if frames.dtype is torch.uint8 and type(frames) is Tensor and frames.is_cpu and last.is_cpu:
        # The threads that torch starts for images wait for each other where the threads of the decoder have just run.
        return torch.from_numpy(np.concatenate([frames.numpy(), last.numpy()], axis))
    return torch.cat([frames, last], axis)


def _concatenate_frames(frames: Tensor, axis: int, dim: int) -> Tensor:
    """Concatenate the frames along an axis of a frame, which is not its first axis, as a view if possible.

    Args:
        frames: The frames, [*batch, N, ...].
        axis: The axis of the frames, the number of axes of the batch.
        dim: Axis of a frame, negative.
    """
    count, channels = frames.shape[axis], frames.shape[dim]
    moved = frames.movedim(axis, dim - 1)
    if channels == 1 or frames.ndim + dim == axis + 1:
        return moved.flatten(dim - 1, dim)
    if dim == -1 and channels == _RGB and frames.dtype is torch.uint8 and type(frames) is Tensor and frames.is_cpu:
        from datasets_rl.transforms._interleave import interleave  # deferred: it loads numba

        out = np.empty((math.prod(frames.shape[:axis]), math.prod(frames.shape[axis + 1 : -1]), count * channels), "u1")
        interleave(frames.reshape(len(out), count, -1).contiguous().numpy(), out)
        return torch.from_numpy(out).view(*moved.shape[:-2], count * channels)
    # A copy of each frame takes a third of the time of a single copy with the axes in another order.
    result = torch.empty(moved.shape, dtype=frames.dtype, device=frames.device)
    for number, frame in enumerate(frames.unbind(axis)):
        result.select(dim - 1, number).copy_(frame)
    return result.flatten(dim - 1, dim)


def _unknown_frames(known: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Return which frames after the first are an unknown final observation or a repetition of it, bool [*batch, N].

    Args:
        known: Whether each frame is known, bool [*batch, N, ...], or `None` if all are.
        shape: The shape [*batch, N].
    """
    if known is None:
        return torch.zeros(tuple(shape), dtype=torch.bool)
    unknown = ~known.flatten(len(shape)).all(-1)
    # A window that begins with the unknown frame has no known frame to replace it.
    return unknown & ~unknown[..., :1]


def _repeat_last_known(frames: Tensor, unknown: Tensor) -> Tensor:
    """Return frames, [*batch, N, ...], with the unknown frames of each window replaced by its last known frame."""
    axis = unknown.ndim - 1
    count = (~unknown).sum(-1, keepdim=True)
    indices = torch.minimum(torch.arange(unknown.shape[-1], device=unknown.device), count - 1)
    return frames.gather(axis, expand_right(indices, frames.shape))
