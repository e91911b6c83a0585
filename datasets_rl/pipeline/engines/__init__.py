"""Where parts are made: an engine a file. What is made does not depend on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from datasets_rl.progress import Report

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Engine", "TaskFunction", "TaskResult", "WorkerDiedError", "worth_jobs"]

TaskFunction = Callable[[Mapping[str, Any], Report], Mapping[str, Any]]
"""Makes what a task describes, unless it is there already; both the task and what is said of it are JSON values."""
TaskResult = Callable[[], Mapping[str, Any]]
"""Waits for what is said of a task, and raises what was raised there; `WorkerDiedError` if the process that made it died."""


MIN_PARALLEL_BYTES = 64 << 20
"""Bytes of raw files from which on several processes read them: each takes half a second to start."""


def worth_jobs(sizes: Sequence[int | None], shards: int, jobs: int) -> int:
    """Return how many processes of this machine should read the shards of a dataset.

    Args:
        sizes: Bytes of its files; None where unknown.
        shards: The number of shards.
        jobs: The number of processes that the user allows.
    """
    large = None in sizes or sum(size or 0 for size in sizes) >= MIN_PARALLEL_BYTES
    return min(jobs, shards, os.cpu_count() or 1) if large and sys.executable else 1


class Engine(Protocol):
    """Makes parts in other processes, several at once. A context manager; what was begun in it ends with it."""

    @property
    def max_in_flight(self) -> int:
        """How many parts there should be at once, from those that are begun to the one that is joined."""
        ...

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:
        """Let another process make a part.

        Args:
            make: A function of this package.
            task: Its first argument; as ``folder`` it has the place of the part.
            report: Called with each number of further steps, if the engine hears of them before the part is whole.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *details: object) -> None: ...


class WorkerDiedError(Exception):
    """A process died while it made a part.

    Args:
        how: What became of it, as in "ended with 3".
        hint: What to do next, where the engine knows.
    """

    def __init__(self, how: str, *, hint: str = "") -> None:
        super().__init__(how)
        self.how = how
        self.hint = hint
