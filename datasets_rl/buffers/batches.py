"""Runs of batches: many batches are drawn ahead, read by a single gather, and returned as views of the result.

rows of batches    | 7 2 9 | 4 4 1 | 0 3 8 |     drawn in the order of `sample`
gathered           | 7 2 9   4 4 1   0 3 8 |     a single call, a single TensorDict
batches            | view  | view  | view  |     of the same memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.buffers.arguments import check_batch_size
from datasets_rl.buffers.read_path import Drawn, ReadPath
from datasets_rl.ted.unchecked import unchecked
from datasets_rl.transforms.base import Transform

_INDEX = "index"
_MAX_BATCHES = 64
_MAX_STEPS = 1 << 14
"""Number of steps that are read at once: about 3 MB of a typical dataset, which stay in the cache of a core."""
_MAX_BYTES = 1 << 26
"""Size of a run, if a single batch is not larger: batches of images are large."""


def can_read_runs(buffer: ReadPath) -> bool:
    """Return whether the batches of a buffer may be drawn and read together: nothing depends on the batch."""
    per_step = all(isinstance(transform, Transform) and transform.per_step for transform in buffer.transforms)
    return buffer.storage.read_only and buffer.sampler.draws_ahead and per_step


def runs_of_batches(buffer: ReadPath, batches: int | None, batch_size: int | None) -> Iterator[Any]:
    """Yield the batches that as many calls of `sample` would return.

    Args:
        buffer: A buffer for which `can_read_runs` is True.
        batches: Number of batches. None until the sampler runs out.
        batch_size: Number of steps of each batch. By default the constructor's number.
    """
    size: Any = buffer.batch_size if batch_size is None else batch_size
    check_batch_size(size)
    most: int | None = None  # until the first batch shows its size
    remaining = batches
    while (remaining is None or remaining > 0) and (drawn := buffer.take_waiting(size)) is not None:
        yield buffer.make(drawn)[0]
        if remaining is None and drawn.last:
            return
        remaining = None if remaining is None else remaining - 1
    while remaining is None or remaining > 0:
        ahead = (most or 1) if remaining is None else min(most or 1, remaining)
        run = _draw_run(buffer, ahead, size, to_end=remaining is None)
        buffer.runs.append(run)
        try:
            for batch in run.read(buffer):
                if most is None:
                    batch_bytes = batch.bytes() if is_tensor_collection(batch) else 0
                    most = max(1, min(_MAX_BATCHES, _MAX_STEPS // size, _MAX_BYTES // max(batch_bytes, 1)))
                run.received += 1
                yield batch
        finally:
            buffer.runs.remove(run)
            _put_back(buffer, run.left)
        if remaining is None and run.drawn[-1].last:
            return
        remaining = None if remaining is None else remaining - len(run.sizes)


@dataclass(eq=False)
class Run:
    """Batches that were drawn together, and are received in order."""

    drawn: list[Drawn]
    """The draws of all batches, or a single draw for all batches."""
    sizes: list[int]
    """The number of steps of each batch."""
    received: int = 0
    """Number of batches that the caller has received."""

    def read(self, buffer: ReadPath) -> Iterator[Any]:
        """Yield the batches. Batches that are read in the same way are read together."""
        drawn = self.drawn
        if len(drawn) > 1 and all(_is_plain(one) for one in drawn):
            drawn = [Drawn(drawn[0].storage, torch.cat([one.index for one in drawn]), {})]
        elif len(drawn) == 1 and buffer.transforms:
            # A transform may change the info in place, of batches that are not received yet.
            info = {key: value.clone() if isinstance(value, Tensor) else value for key, value in drawn[0].info.items()}
            drawn = [replace(drawn[0], info=info)]
        read = (buffer.make(batch)[0] for batch in drawn)
        return read if len(drawn) == len(self.sizes) else split_steps(next(read), self.sizes)

    @property
    def left(self) -> list[Drawn]:
        """The draws of the batches that the caller has not received."""
        if len(self.drawn) == len(self.sizes):
            return self.drawn[self.received :]
        (run,), size = self.drawn, self.sizes[0]
        return [
            Drawn(
                run.storage,
                run.index[start : start + size],
                {key: value[start : start + size] for key, value in run.info.items() if key != _INDEX},
                size=size,
            )
            for start in range(self.received * size, len(self.sizes) * size, size)
        ]


def _is_plain(drawn: Drawn) -> bool:
    return not drawn.info and isinstance(drawn.index, Tensor) and drawn.index.ndim == 1


def _put_back(buffer: ReadPath, left: list[Drawn]) -> None:
    """Let the next batches be the batches of a loop that ended early, if the sampler draws each item once."""
    if not left or left[0].storage is not buffer.storage:
        return
    if left[0].before is not None:
        buffer.sampler.load_state_dict(buffer.sampler.state_at(left[0].before))
    elif buffer.sampler.has_epochs:
        buffer.waiting.extend(left)


def _draw_run(buffer: ReadPath, batches: int, size: int, *, to_end: bool) -> Run:
    """Draw batches from a read-only storage.

    Args:
        buffer: The buffer.
        batches: Number of batches.
        size: Number of steps of each.
        to_end: Whether the run ends when the sampler runs out.
    """
    storage, sampler = buffer.storage, buffer.sampler
    drawn: list[Drawn] = []
    with buffer.lock:
        sampled = sampler.sample_batches(storage, size, batches) if batches > 1 else None
        if sampled is not None:
            return Run([Drawn(storage, *sampled)], [size] * batches)
        for _ in range(batches):
            before = sampler.position
            index, info = buffer.choose_rows(storage, size)
            drawn.append(Drawn(storage, index, info, last=sampler.ran_out, before=before, size=size))
            if to_end and drawn[-1].last:
                break
    return Run(drawn, [len(one.index) for one in drawn])


def split_steps(data: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """Split a TensorDict [B, ...] into consecutive parts along the first axis, as views. The sizes sum up to B."""
    if type(data) is not TensorDict:
        return iter(data.split(list(sizes)))
    columns = [
        value.split_with_sizes(sizes) if isinstance(value, Tensor) else split_steps(value, sizes)
        for value in data.values()
    ]
    names, rest = tuple(data.keys()), data.batch_size[1:]
    shapes = {size: torch.Size((size, *rest)) for size in sizes}
    rows = zip(*columns, strict=True)
    return (
        # The checks of the public constructor cost more than the gather of a batch.
        unchecked(dict(zip(names, row, strict=True)), shapes[size], data.device)
        for size, row in zip(sizes, rows, strict=True)
    )
