"""Engines, which write partial datasets in other processes. The results do not depend on the engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import Self

from datasets_rl.errors import Remedy
from datasets_rl.progress import Report

__all__ = ["Engine", "TaskFunction", "TaskResult", "WorkerDiedError", "useful_job_count"]

TaskFunction = Callable[[Mapping[str, Any], Report], Mapping[str, Any]]
"""Writes the partial dataset that a task describes, unless present already. Task and result are JSON values."""
TaskResult = Callable[[], Mapping[str, Any]]
"""Waits for the result of a task, and raises the error of its function, `WorkerDiedError` if the process died."""


MIN_PARALLEL_BYTES = 64 << 20
"""The size of raw files for which several processes are worth starting: each takes half a second to start."""


def useful_job_count(sizes: Sequence[int | None], shards: int, jobs: int) -> int:
    """Return the number of processes of this machine that should read the shards of a dataset.

    Args:
        sizes: The sizes of the dataset's files in bytes, None where unknown.
        shards: The number of shards.
        jobs: The number of processes that the user allows.
    """
    large = None in sizes or sum(size or 0 for size in sizes) >= MIN_PARALLEL_BYTES
    return min(jobs, shards, os.cpu_count() or 1) if large and sys.executable else 1


class Engine(Protocol):
    """An executor that writes partial datasets in other processes, several at once.

    A context manager. On exit, the tasks end.
    """

    @property
    def max_in_flight(self) -> int:
        """The number of partial datasets to have at once: queued, being written or being appended."""
        ...

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:
        """Submit a task to another process.

        Args:
            make: A function of this package.
            task: The first argument of `make`. The key ``folder`` has the folder of the partial dataset.
            report: Called with the number of steps since its last call, if the engine supports it.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *details: object) -> None: ...


class WorkerDiedError(Exception):
    """Raised when a process died while writing a partial dataset.

    Args:
        how: How the process died, as in "ended with 3".
        hint: What to do next, if the engine knows.
    """

    def __init__(self, how: str, *, hint: str | Remedy = "") -> None:
        super().__init__(how)
        self.how = how
        self.remedy = Remedy.from_hint(hint)
