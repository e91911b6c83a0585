"""A writer that writes nothing: for datasets."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.writers.base import Writer

__all__ = ["ImmutableDatasetWriter"]


class ImmutableDatasetWriter(Writer):
    """Refuse every write: a dataset is what was published."""

    def add(self, data: Any) -> int:
        """Refuse."""
        raise _refused("add", data)

    def extend(self, data: Any) -> Tensor:
        """Refuse."""
        raise _refused("extend", data)

    def empty(self) -> None:
        """Refuse."""
        raise InvalidArgumentError("a dataset cannot be emptied", hint="`delete()` removes it from the disk")


def _refused(verb: str, data: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot {verb} {type(data).__name__}: a dataset is read-only",
        hint="write to a ReplayBuffer of your own",
    )
