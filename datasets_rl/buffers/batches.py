"""Runs of batches: many batches are drawn ahead, read by one gather, and handed out as views of it.

rows of batches    | 7 2 9 | 4 4 1 | 0 3 8 |     drawn in the order of `sample`
gathered           | 7 2 9   4 4 1   0 3 8 |     one call, one TensorDict
batches            | view  | view  | view  |     of the same memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.storages.packed import unchecked
from datasets_rl.transforms.base import Transform

if TYPE_CHECKING:
    from datasets_rl.buffers.replay import Drawn, ReplayBuffer

__all__ = ["Run", "can_read_runs", "runs_of_batches", "split_steps"]

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
        for last, batch in zip(run.last, _read_run(buffer, run), strict=True):
            buffer._ran_out = last  # noqa: SLF001 - the same
            if most is None:
                batch_bytes = batch.bytes() if is_tensor_collection(batch) else 0
                most = max(1, min(_MAX_BATCHES, _MAX_STEPS // size, _MAX_BYTES // max(batch_bytes, 1)))
            yield batch
        if remaining is None and run.last[-1]:
            return
        remaining = None if remaining is None else remaining - len(run.last)


@dataclass(slots=True)
class Run:
    """Batches that were drawn one after the other."""

    drawn: list[Drawn]
    """All batches as one if it has `sizes`, else each batch."""
    last: list[bool]
    """Whether the sampler ran out with a batch, for each."""
    sizes: list[int] | None = None
    """Number of steps of each batch in one."""

    @classmethod
    def of_batches(cls, drawn: list[Drawn]) -> Run:
        """Create the run of some batches, which are read as one if nothing belongs to a single batch."""
        last = [one.last for one in drawn]
        if len(drawn) == 1 or any(
            one.info or not isinstance(one.index, Tensor) or one.index.ndim != 1 for one in drawn
        ):
            return cls(drawn, last)
        sizes = [len(one.index) for one in drawn]
        drawn[0].index = torch.cat([one.index for one in drawn])
        return cls(drawn[:1], last, sizes)


def _read_run(buffer: ReplayBuffer, run: Run) -> Iterator[Any]:
    read = (buffer._make_batch(drawn)[0] for drawn in run.drawn)  # noqa: SLF001 - the two files are one class
    return read if run.sizes is None else split_steps(next(read), run.sizes)


def can_read_runs(buffer: ReplayBuffer) -> bool:
    """Return whether the batches of a buffer may be drawn and read together: nothing depends on the batch."""
    per_step = all(isinstance(one, Transform) and one.per_step for one in buffer.transforms)
    return buffer.storage.read_only and buffer.sampler.draws_ahead and per_step


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
