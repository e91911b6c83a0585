"""Runs of batches: many batches are drawn ahead, read by one gather, and handed out as views of it.

rows of batches    | 7 2 9 | 4 4 1 | 0 3 8 |     drawn in the order of `sample`
gathered           | 7 2 9   4 4 1   0 3 8 |     one call, one TensorDict
batches            | view  | view  | view  |     of the same memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.transforms.base import Transform

if TYPE_CHECKING:
    from datasets_rl.buffers.replay import Drawn, ReplayBuffer

__all__ = ["can_read_runs", "runs_of_batches", "split_steps"]

_MAX_BATCHES = 64
_MAX_STEPS = 1 << 14
"""Number of steps that are read at once: about 3 MB of a typical dataset, which stay in the cache of a core."""
_MAX_BYTES = 1 << 26
"""Size of a run, if a single batch is not larger: batches of images are large."""


def runs_of_batches(buffer: ReplayBuffer, batches: int | None, batch_size: int | None) -> Iterator[Any]:
    """Yield the batches that as many calls of `sample` would return.

    Args:
        buffer: A buffer over a dataset.
        batches: Number of batches; None until the sampler runs out.
        batch_size: Number of steps of each.
    """
    size = batch_size or buffer.batch_size or 1
    most: int | None = None  # until the first batch shows its size
    remaining = batches
    while remaining is None or remaining > 0:
        ahead = (most or 1) if remaining is None else min(most or 1, remaining)
        run = buffer._draw_run(ahead, batch_size, to_end=remaining is None)  # noqa: SLF001 - the two files are one class
        for drawn, batch in zip(run, _read_run(buffer, run), strict=True):
            buffer._ran_out = drawn.last  # noqa: SLF001 - the same
            if most is None:
                batch_bytes = batch.bytes() if is_tensor_collection(batch) else 0
                most = max(1, min(_MAX_BATCHES, _MAX_STEPS // size, _MAX_BYTES // max(batch_bytes, 1)))
            yield batch
        if remaining is None and run[-1].last:
            return
        remaining = None if remaining is None else remaining - len(run)


def _read_run(buffer: ReplayBuffer, run: Sequence[Drawn]) -> Iterator[Any]:
    first = run[0]
    if len(run) == 1 or not all(isinstance(one.index, Tensor) and one.index.ndim == 1 and not one.info for one in run):
        for drawn in run:
            yield buffer._make_batch(drawn)[0]  # noqa: SLF001 - the two files are one class
        return
    first.index, sizes = torch.cat([drawn.index for drawn in run]), [len(drawn.index) for drawn in run]
    data, _ = buffer._make_batch(first)  # noqa: SLF001 - the same
    yield from split_steps(data, sizes)


def can_read_runs(buffer: ReplayBuffer) -> bool:
    """Return whether the batches of a buffer may be drawn and read together: nothing depends on the batch."""
    per_step = all(isinstance(one, Transform) and one.per_step for one in buffer.transforms)
    return buffer.storage.read_only and buffer.sampler.draws_ahead and per_step


def split_steps(data: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """Split a TensorDict [B, ...] into consecutive parts along its first axis, as views; the sizes sum up to B."""
    if type(data) is not TensorDict:
        return iter(data.split(list(sizes)))
    parts = {
        name: [*split_steps(value, sizes)] if is_tensor_collection(value) else value.split(list(sizes))
        for name, value in data.items()
    }
    rest = data.batch_size[1:]
    rows = zip(*parts.values(), strict=True)
    return (
        # The checks of the public constructor cost more than the gather of a batch.
        TensorDict._new_unsafe(  # noqa: SLF001 - see above
            source=dict(zip(parts, row, strict=True)),
            batch_size=torch.Size((size, *rest)),
            device=data.device,
            names=None,
        )
        for size, row in zip(sizes, rows, strict=True)
    )
