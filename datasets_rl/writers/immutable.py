"""Writer of read-only datasets, which rejects every write."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.writers.base import Writer


class ImmutableDatasetWriter(Writer):
    """Reject every write, so that a dataset stays as published.

    Args:
        compilable: Accepted for compatibility with TorchRL, without effect.
    """

    def __init__(self, compilable: bool = False) -> None:
        del compilable

    @property
    @override
    def write_count(self) -> int:
        """0: the steps were not written through this writer."""
        return 0

    @override
    def add(self, data: Any) -> int:
        raise _read_only_error("add", data)

    @override
    def extend(self, data: Any) -> Tensor:
        raise _read_only_error("extend", data)

    @override
    def empty(self, empty_write_count: bool = True) -> None:
        del empty_write_count
        raise InvalidArgumentError(
            "a dataset cannot be emptied", hint="use `delete()` to remove the dataset from the disk"
        )


def _read_only_error(verb: str, data: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot {verb} {type(data).__name__}: a dataset is read-only", hint="write to a separate ReplayBuffer"
    )
