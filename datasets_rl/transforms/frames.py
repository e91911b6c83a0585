"""The last frames side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import require_memory
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN
from datasets_rl.transforms._bounds import between, bounds_of
from datasets_rl.transforms._time import OverTime, TimeAxis, windows
from datasets_rl.transforms.base import Keys, NestedKey, any_like, expand_right, need, reader, taken

__all__ = ["CatFrames"]

Padding = Literal["same", "constant", "zeros"]


_MANY = 1_000
"""Frames of a stack from which on its memory is compared with the machine's."""


def _step_bytes(batch: Any, key: NestedKey) -> int:
    """Return the bytes that an entry of a batch has for each step."""
    value = batch.get(key, None)
    return 0 if value is None else value.nbytes // max(batch.numel(), 1)


class CatFrames(OverTime):
    """Concatenate the last N frames of an entry.

    In a buffer they are read from the storage, for any sampler: single steps need no slices for it. What stands under
    "next" gets the stack of the step after, so that ``next.x`` of a step is ``x`` of the one after it, as TED wants:

        step            0          1          2      | 3  (next episode)
        x, N = 3        0 0 0      0 0 1      0 1 2  | 3 3 3
        next x          0 0 1      0 1 2      1 2 f  |              f: the final observation

    TorchRL stacks the values under "next" for themselves: at step 0 that is 1 1 1, which no environment shows.

    A final observation that is unknown is zeros, and ends only the stack under "next" of the last step, which
    ``("next", "final_known")`` marks. With `future` it would be in earlier stacks, too; there it counts as padding, and the
    last known frame is used for "same".

    Args:
        N: Frames of a stack.
        dim: The axis along which they are concatenated, counted from the last one; the place before the first axis of
            a frame stands for a new one.
        in_keys: Entries with frames; ``["pixels"]`` by default.
        out_keys: Where the stacks are written.
        padding: What stands before the first frame of an episode: "same", the first frame; "constant" or "zeros".
        padding_value: The number for "constant".
        as_inverse: Stack what is written instead of what is sampled. It must be in order, along the axis of time.
        done_key: The flag under "next" that ends an episode, if it is another one than "done".
        future: Stack the next N frames instead, this one first.
        mask_key: Where is written which frames of a stack are padding, bool [*batch, N]; nowhere by default.

    Raises:
        InvalidArgumentError: If `N`, `dim` or `padding` is none of these; all faults at once.
    """

    def __init__(
        self,
        N: int,  # noqa: N803  # the name in the reference
        dim: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        padding: Padding = "same",
        padding_value: float = 0,
        as_inverse: bool = False,
        done_key: NestedKey | None = None,
        future: bool = False,
        mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__("pixels" if in_keys is None else in_keys, out_keys, done_key)
        problems = [f"N is {N}; expected at least 1"] if N < 1 else []
        if dim >= 0:
            problems.append(f"dim is {dim}; expected below 0: counted from the last axis, for any batch size")
        if padding not in {"same", "constant", "zeros"}:
            problems.append(f"padding is {padding!r}; expected 'same', 'constant' or 'zeros'")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        self.N, self.dim, self.future, self.mask_key = N, dim, future, mask_key
        self.padding, self.padding_value = padding, 0 if padding == "zeros" else padding_value
        self.as_inverse = as_inverse

    @property
    def _span(self) -> tuple[int, int]:
        return (0, self.N - 1) if self.future else (self.N - 1, 0)

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Read the frames of a storage, see `OverTime`; unless they were stacked when they were written."""
        return data if self.as_inverse else super().gather(storage, rows, data)

    def found_in_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the frames of each step, [B, N, ...], for each entry that is to be read, and which are padding."""
        self._require_memory(len(rows), sum(_step_bytes(data, key) for key in self.in_keys))
        there, outside = self.around(storage, rows, *self._span)
        entry = reader(storage, there.reshape(-1))

        def frames(key: NestedKey) -> Tensor | None:
            value = entry(key)
            return None if value is None else value.reshape(*there.shape, *value.shape[1:])

        return self._found(frames, outside, data)

    def found_in_batch(self, batch: Any) -> dict[str, Any]:
        """Return the same along the axis of time, [*batch, N, ...]."""
        axis = TimeAxis.of(batch)
        self._require_memory(batch.numel(), sum(_step_bytes(batch, key) for key in self.in_keys))
        there, outside = windows(self.ends(batch, axis), *self._span)

        def frames(key: NestedKey) -> Tensor | None:
            value = batch.get(key, None)
            return None if value is None else axis.at(value, there)

        return self._found(frames, axis.back(outside), batch)

    def _require_memory(self, steps: int, step_bytes: int) -> None:
        """Refuse stacks of so many steps that no memory holds, with their row numbers (int64)."""
        if self.N > _MANY:
            needed = self.N * steps * (8 + step_bytes)
            require_memory(needed, f"CatFrames with N = {self.N:,}", hint="give a smaller N, as in 4")

    def _found(self, frames: Callable[[NestedKey], Tensor | None], outside: Tensor, known: Any) -> dict[str, Any]:
        frames = cache(frames)
        found = {"outside": outside}
        for place, key in enumerate(self.in_keys):
            now = self._now(key)
            before = None if now is None else frames(now)
            if before is None:
                found[str(place)] = stack = need(frames(key), key, known)
                if self.future and key[0] == NEXT and known.get(NEXT_FINAL_KNOWN, None) is not None:
                    unknown = _unknown(frames(NEXT_FINAL_KNOWN), outside)
                    found[f"unknown {place}"] = unknown
                    found[str(place)] = _last_known(stack, unknown.to(stack.device))
            else:
                # The last frame comes from the batch itself: it is what follows.
                found[str(place)] = before.narrow(outside.ndim - 1, 1, self.N - 1)
        return found

    def _now(self, key: NestedKey) -> NestedKey | None:
        """Return where the frames before the one under "next" stand; None if this is no such key."""
        if self.future or isinstance(key, str) or key[0] != NEXT:
            return None
        return key[1] if len(key) == 2 else key[1:]

    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Concatenate the frames."""
        outside = found["outside"]
        axis = outside.ndim - 1
        for place, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            frames = found[str(place)]
            if self.padding != "same":
                padding = outside | found.get(f"unknown {place}", outside)
                padding = padding[..., self.N - frames.shape[axis] :].to(frames.device)
                frames = frames.masked_fill(expand_right(padding, frames.shape), self.padding_value)
            if frames.shape[axis] < self.N:
                frames = torch.cat([frames, taken(batch, in_key).unsqueeze(axis)], axis)
            batch.set(out_key, self._joined(frames, axis))
        if self.mask_key is not None:
            batch.set(self.mask_key, outside)
        return batch

    def _joined(self, frames: Tensor, axis: int) -> Tensor:
        count = frames.ndim - axis - 1
        if -self.dim > count + 1:
            raise InvalidArgumentError(f"dim is {self.dim}, and a frame has shape {list(frames.shape[axis + 1 :])}")
        if -self.dim == count + 1:
            return frames
        # The axis of the frames comes before the one that they are concatenated along, and becomes one with it.
        return frames.movedim(axis, self.dim - 1).flatten(self.dim - 1, self.dim)

    def inv(self, data: Any) -> Any:
        """Stack what is written, with `as_inverse`."""
        return super().apply(self.own(data)) if self.as_inverse else data

    def apply(self, batch: Any) -> Any:
        """Stack the frames of a batch."""
        return batch if self.as_inverse else super().apply(batch)

    def respec(self, spec: CompositeSpec) -> None:
        """Concatenate the specs."""
        if self.as_inverse:
            return
        made = {out: self._stacked(spec, key) for key, out in zip(self.in_keys, self.out_keys, strict=True)}
        for key, one in made.items():
            spec.set(key, one)
        if self.mask_key is not None:
            spec.set(self.mask_key, any_like(torch.zeros(*spec.shape, self.N, dtype=torch.bool)))

    def _stacked(self, spec: CompositeSpec, key: NestedKey) -> TensorSpec:
        last, now = spec[key], self._now(key)
        self._require_memory(1, math.prod(last.shape) * last.dtype.itemsize)
        parts = [spec.get(now, last) if now is not None else last] * (self.N - 1) + [last]

        def joined(values: list[Tensor]) -> Tensor:
            return self._joined(torch.stack(values, spec.ndim), spec.ndim)

        bounds = [pair for pair in map(bounds_of, parts) if pair is not None]
        if len(bounds) < self.N:
            return any_like(joined([part.zero() for part in parts]))
        low, high = (joined([pair[side] for pair in bounds]) for side in (0, 1))
        if self.padding != "same":
            low, high = low.clamp(max=self.padding_value), high.clamp(min=self.padding_value)
        return between(low, high)

    def _facts(self) -> dict[str, Any]:
        facts = {"N": self.N, "dim": self.dim, "padding": self.padding}
        return {**facts, **({"future": True} if self.future else {})}


def _unknown(known: Tensor | None, outside: Tensor) -> Tensor:
    """Return which frames after the first one are an unknown final observation, or repeat it, bool [*batch, N]."""
    if known is None:
        return torch.zeros_like(outside)
    unknown = ~known.flatten(outside.ndim).all(-1).to(outside.device)
    # A window that begins with it has no known frame to use instead.
    return unknown & ~unknown[..., :1]


def _last_known(frames: Tensor, unknown: Tensor) -> Tensor:
    """Return frames, [*batch, N, ...], with the last known one of each window in the place of those after it."""
    axis = unknown.ndim - 1
    count = (~unknown).sum(-1, keepdim=True)
    places = torch.minimum(torch.arange(unknown.shape[-1], device=unknown.device), count - 1)
    return frames.gather(axis, expand_right(places, frames.shape))
