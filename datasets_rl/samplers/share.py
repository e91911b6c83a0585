"""The share of the rows that a process samples from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed

from datasets_rl.errors import InvalidArgumentError

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage


def empty_storage_error() -> InvalidArgumentError:
    """Return the error of a sampler over a storage without steps."""
    return InvalidArgumentError("Cannot sample from an empty storage", hint="extend the buffer first")


def check_any_valid(storage: Storage, count: int) -> None:
    """Check that a storage has valid rows.

    Raises:
        InvalidArgumentError: If `count` is 0, so that all rows are torn.
    """
    if not count:
        raise InvalidArgumentError(
            f"the storage has no valid steps to sample: {storage.torn:,} of {len(storage):,} steps are torn, because a "
            "process died while writing",
            hint="extend the buffer: new steps replace torn steps",
        )


@dataclass(frozen=True, slots=True)
class Share:
    """Every n-th row: the shares of all ranks are disjoint, cover all rows, and differ in size by at most 1 row.

    world_size 3    row   0 1 2 3 4 5 6 7
                    rank  0 1 2 0 1 2 0 1
    """

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_rank(cls, rank: int | None, world_size: int | None) -> Share:
        """Parse the arguments of a sampler.

        Raises:
            InvalidArgumentError: If an argument is given alone, or the rank is out of range.
        """
        if rank is None and world_size is None:
            return cls()
        if rank is None or world_size is None:
            raise InvalidArgumentError(f"rank is {rank} and world_size is {world_size}, expected both, or neither")
        arguments: tuple[Any, Any] = (rank, world_size)
        if not all(isinstance(argument, int) for argument in arguments) or not 0 <= rank < world_size:
            raise InvalidArgumentError(f"rank is {rank!r}, expected at least 0 and below world_size {world_size!r}")
        return cls(rank, world_size)

    @classmethod
    def of_process(cls, rank: int | None, world_size: int | None) -> Share:
        """Parse the arguments of a sampler. Without arguments, find the rank of this process.

        The rank is from `torch.distributed` if a process group exists, else from the environment variables that
        torchrun sets, ``RANK`` and ``WORLD_SIZE``, else 0 of 1.

        Raises:
            InvalidArgumentError: If an argument or variable is given alone, or the rank is out of range.
        """
        if rank is not None or world_size is not None:
            return cls.from_rank(rank, world_size)
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        texts = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")}
        if not any(texts.values()):
            return cls()
        if not all(text.isascii() and text.isdecimal() for text in texts.values()):
            raise InvalidArgumentError(
                f"RANK is {texts['RANK']!r} and WORLD_SIZE is {texts['WORLD_SIZE']!r}, expected two integers",
                hint="pass rank and world_size, or unset both variables",
            )
        return cls.from_rank(*map(int, texts.values()))

    def __bool__(self) -> bool:
        """Return whether there are several processes."""
        return self.world_size > 1

    def size(self, row_count: int) -> int:
        """Return how many of the first `row_count` rows are in this share."""
        return len(range(self.rank, row_count, self.world_size))

    def rows(self, numbers: Tensor) -> Tensor:
        """Convert numbers within this share to rows. The argument may be modified in place."""
        return numbers.mul_(self.world_size).add_(self.rank) if self else numbers

    def numbers(self, rows: Tensor) -> Tensor:
        """Convert rows that are in this share to numbers within the share: the inverse of `rows`."""
        return rows[rows % self.world_size == self.rank] // self.world_size if self else rows

    def __str__(self) -> str:
        """Return the share as arguments, empty for a single process."""
        return f"rank={self.rank}, world_size={self.world_size}" if self else ""
