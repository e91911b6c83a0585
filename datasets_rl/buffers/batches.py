"""Runs of batches: many batches are drawn ahead, read by one gather, and handed out as views of it.

rows of batches    | 7 2 9 | 4 4 1 | 0 3 8 |     drawn in the order of `sample`
gathered           | 7 2 9   4 4 1   0 3 8 |     one call, one TensorDict
batches            | view  | view  | view  |     of the same memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.buffers.arguments import check_batch_size
from datasets_rl.buffers.read_path import Drawn, ReadPath
from datasets_rl.storages.packed import unchecked
from datasets_rl.transforms.base import Transform

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
        batches: Number of batches; None until the sampler runs out.
        batch_size: Number of steps of each; by default that of the constructor.
    """
    size: Any = buffer.batch_size if batch_size is None else batch_size
    check_batch_size(size)
    most: int | None = None  # until the first batch shows its size
    remaining = batches
    while remaining is None or remaining > 0:
        ahead = (most or 1) if remaining is None else min(most or 1, remaining)
        drawn, sizes = _draw_run(buffer, ahead, size, to_end=remaining is None)
        read = (buffer.make(batch)[0] for batch in drawn)
        for batch in read if len(drawn) == len(sizes) else split_steps(next(read), sizes):
            if most is None:
                batch_bytes = batch.bytes() if is_tensor_collection(batch) else 0
                most = max(1, min(_MAX_BATCHES, _MAX_STEPS // size, _MAX_BYTES // max(batch_bytes, 1)))
            yield batch
        if remaining is None and drawn[-1].last:
            return
        remaining = None if remaining is None else remaining - len(sizes)


def _draw_run(buffer: ReadPath, batches: int, size: int, *, to_end: bool) -> tuple[list[Drawn], list[int]]:
    """Draw batches from a read-only storage, as one if nothing belongs to a single batch.

    Args:
        buffer: The buffer.
        batches: Number of batches.
        size: Number of steps of each.
        to_end: Whether the run ends when the sampler runs out.

    Returns:
        What is read together, and the number of steps of each batch.
    """
    storage, drawn = buffer.storage, []
    with buffer.lock:
        sampled = buffer.sampler.sample_batches(storage, size, batches) if batches > 1 else None
        if sampled is not None:
            return [Drawn(storage, *sampled)], [size] * batches
        for _ in range(batches):
            drawn.append(Drawn(storage, *buffer.choose_rows(storage, size), last=buffer.sampler.ran_out))
            if to_end and drawn[-1].last:
                break
    sizes = [len(batch.index) for batch in drawn]
    if len(drawn) > 1 and all(
        not batch.info and isinstance(batch.index, Tensor) and batch.index.ndim == 1 for batch in drawn
    ):
        return [Drawn(storage, torch.cat([batch.index for batch in drawn]), {}, last=drawn[-1].last)], sizes
    return drawn, sizes


def split_steps(data: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """Split a TensorDict [B, ...] into consecutive parts along its first axis, as views; the sizes sum up to B."""
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
