"""Batches of a buffer for `torch.utils.data.DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy, deepcopy
from itertools import count
from typing import Any

from torch import Generator
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError


class SampledBatches(IterableDataset[Any]):
    """The batches that a buffer's sampler chooses, loaded by the workers of a `DataLoader`.

        >>> loader = SampledBatches(rb, batches=1000).loader(num_workers=4, pin_memory=True)

    Every worker samples the same batches and loads only a share of the batches. An epoch of a sampler without
    replacement is therefore a single epoch over all workers, and no batch is repeated. A `DataLoader` directly over the
    buffer loads single steps, in order or shuffled, as for any other dataset.

    Args:
        buffer: The buffer, with a batch size.
        batches: Number of batches in an epoch. By default, an epoch lasts until the sampler runs out, which most
            samplers never do.

    Raises:
        InvalidArgumentError: If the buffer has no batch size.
    """

    def __init__(self, buffer: ReplayBuffer, batches: int | None = None) -> None:
        if buffer.batch_size is None:
            raise InvalidArgumentError("the buffer has no batch size", hint="pass batch_size to its constructor")
        self.buffer = buffer
        self.batches = batches
        self._epoch = 0
        self._part: ReplayBuffer | None = None
        """In a worker, the buffer with its share."""

    def loader(self, **options: Any) -> DataLoader[Any]:
        """Return a `DataLoader` over these batches.

        Args:
            options: Options of the `DataLoader` (workers, pinning), except batch size and collate function.
        """
        return _Loader(self, batch_size=None, collate_fn=_identity, **options)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this worker, in order."""
        worker = get_worker_info()
        if worker is None:
            yield from self.buffer.batches(self.batches)
            return
        if self.buffer.workers_draw_shares:
            self._part = self._part or self.buffer.for_worker(worker.id, worker.num_workers)
            own = None if self.batches is None else len(range(worker.id, self.batches, worker.num_workers))
            yield from self._part if own is None else self._part.batches(own)
            return
        buffer, sampler = copy(self.buffer), self.buffer.sampler
        if sampler.position is None:
            # All workers start every epoch with the same sampler state and seed: earlier epochs may have ended
            # anywhere.
            sampler = deepcopy(sampler)
            sampler.generator = Generator().manual_seed(worker.seed - worker.id + self._epoch)
            self._epoch += 1
            buffer.set_sampler(sampler)
        sampler.ran_out, drawn = False, None
        for number in count() if self.batches is None else range(self.batches):
            if drawn is not None and drawn.last:
                return
            drawn = buffer.draw(None, ahead=True)
            if number % worker.num_workers == worker.id:
                yield buffer.make(drawn)[0]
            else:
                buffer.discard(drawn)


class _Loader(DataLoader[Any]):
    """A loader during which the sampler has the position of the last batch, though workers draw ahead."""

    dataset: SampledBatches

    def __iter__(self) -> Any:
        batches = super().__iter__()
        return batches if self.num_workers == 0 else self._followed(batches)

    def _followed(self, batches: Iterator[Any]) -> Iterator[Any]:
        buffer = self.dataset.buffer
        if buffer.workers_draw_shares:
            try:
                yield from batches
            finally:
                buffer.sampler.begin_next_epoch()
            return
        for batch in batches:
            if buffer.sampler.position is not None:
                buffer.discard(buffer.draw(None, ahead=True))
            yield batch


def _identity(batch: Any) -> Any:
    return batch
