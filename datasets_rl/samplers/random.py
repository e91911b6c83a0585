"""Uniform sampler, with replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import Share, check_any_valid, empty_storage_error
from datasets_rl.samplers.without_replacement import SamplerWithoutReplacement

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage


class RandomSampler(Sampler):
    """Draw steps uniformly, with replacement.

        >>> from datasets_rl import RandomSampler, load
        >>> seeded = RandomSampler(generator=torch.Generator().manual_seed(0))
        >>> load("demo/pendulum", sampler=seeded).sample(256).shape
        torch.Size([256])

    Args:
        generator: Random generator. By default torch's global generator, so that `torch.manual_seed` alone reproduces a
            run.
        rank: With `world_size`: draw only from every `world_size`-th row, starting with this row, so that processes
            started by torchrun draw from disjoint rows.
        world_size: Number of processes.
        replacement: False creates a `SamplerWithoutReplacement` from the other arguments instead.

    Raises:
        InvalidArgumentError: If `rank` or `world_size` is given alone, or the rank is out of range.
    """

    draws_ahead = True
    draws_at_random = True
    without_replacement = SamplerWithoutReplacement

    def __init__(
        self,
        generator: Generator | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replacement: bool = True,
    ) -> None:
        del replacement
        self.generator = generator
        self._share = Share.from_rank(rank, world_size)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw `batch_size` steps uniformly."""
        share, count = self._share, len(storage)
        if share.world_size > 1:
            count = share.size(count)
        if not count:
            raise empty_storage_error()
        if storage.torn:
            return self._valid_rows(storage, count, batch_size), {}
        device, generator = storage.rows_device, self.generator
        if device is None and generator is None:
            rows = torch.randint(count, (batch_size,))  # an argument takes torch another tenth of the time
        else:
            if device is not None and generator is not None:
                self._check_generator(device, generator)
            rows = torch.randint(count, (batch_size,), generator=generator, device=device)
        return (share.rows(rows) if share.world_size > 1 else rows), {}

    @staticmethod
    def _check_generator(device: torch.device, generator: Generator) -> None:
        if generator.device.type != device.type:
            raise InvalidArgumentError(
                f"the generator is on {generator.device}, expected a generator on {device}, where the rows are drawn",
                hint=f"generator=torch.Generator({device.type!r})",
            )

    @override
    def sample_batches(self, storage: Storage, batch_size: int, count: int) -> tuple[Tensor, dict[Any, Any]] | None:
        if type(self).sample is not RandomSampler.sample:
            return None
        # The generator yields the same numbers in one call as in several.
        return self.sample(storage, batch_size * count)

    def _valid_rows(self, storage: Storage, count: int, batch_size: int) -> Tensor:
        """Draw from the `count` rows of this share, without torn rows."""
        torn = self._share.numbers(storage.torn_rows())
        count -= len(torn)
        check_any_valid(storage, count)
        numbers = torch.randint(count, (batch_size,), generator=self.generator)
        # `before` counts the valid rows before each torn row. A drawn number skips every torn row up to its place.
        before = torn - torch.arange(len(torn))
        return self._share.rows(numbers + torch.searchsorted(before, numbers, right=True))

    def __repr__(self) -> str:
        return f"RandomSampler({self._share})"
