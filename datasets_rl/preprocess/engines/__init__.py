"""Where parts are made: an engine a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Engine"]


class Engine(Protocol):
    """Makes parts, several at once."""

    def run(self, tasks: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield what `part.make` says of each task, in their order.

        Raises:
            DatasetsRLError: What a task raised; no other one is begun then.
        """
        ...
