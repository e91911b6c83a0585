"""The loop that builds a stored dataset, for downloads and for preprocessing.

chunks   0 1 2 3 4 5     in order, where each appends its rows in this process, or as a partial dataset of a worker
writer   0 1 2           the rows of chunk 2 are appended, and synced
journal  0 1 2           then a line for chunk 2 is synced: a build that is run again continues with chunk 3
release  0 1             then the inputs of chunk 2 may be deleted
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import Self

from datasets_rl.build.engines import Engine, TaskFunction
from datasets_rl.build.journal import Journal
from datasets_rl.build.partial import remove_partial
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.progress import CountingReport, Report

T = TypeVar("T")


class Chunk(ABC):
    """Rows that are appended and committed together. A context manager, which may hold files open."""

    @abstractmethod
    def append_to(self, writer: DatasetWriter) -> Mapping[str, Any]:
        """Append the rows, and return the entry for the journal, a JSON value."""

    def release(self) -> None:
        """Delete the files that are no longer needed once the rows are on the disk. By default there are none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Close the files. By default no file is open."""


def build(
    chunks: Iterable[Chunk],
    writer: DatasetWriter,
    journal: Journal | None,
    chunk_count: int,
    is_complete: Callable[[], bool] = bool,
) -> list[Mapping[str, Any]]:
    """Append chunks in order, and commit each chunk except the last.

    The last chunk is not committed, so that after a kill the files of at least one chunk are opened again.

    Args:
        chunks: The chunks that are not in the journal.
        writer: The writer of the dataset, which holds the rows of the chunks in the journal.
        journal: The journal. None if an interrupted build starts over.
        chunk_count: The number of chunks, including chunks in the journal.
        is_complete: Returns whether the chunks after the last appended chunk have no rows to append.

    Returns:
        The entries of the journal, followed by the entries of the appended chunks.
    """
    entries = [] if journal is None else list(journal.entries)
    for chunk in chunks:
        with chunk:
            entries.append(chunk.append_to(writer))
        if is_complete():
            break
        if journal is not None and len(entries) < chunk_count:
            journal.append({**entries[-1], "commit": writer.commit()})
            chunk.release()
    return entries


def submitted_ahead(chunks: Iterator[T], max_in_flight: int) -> Iterator[T]:
    """Yield chunks in order. Each is created, and its task submitted, up to `max_in_flight` chunks ahead."""
    in_flight: deque[T] = deque()
    for chunk in chunks:
        in_flight.append(chunk)
        if len(in_flight) >= max_in_flight:
            yield in_flight.popleft()
    yield from in_flight


class WorkerResult:
    """The result of a task: a partial dataset that another process writes.

    Args:
        engine: The engine that runs the task.
        function: Writes the partial dataset into the folder ``task["folder"]``.
        task: The argument of `function`, a JSON value.
        report: Called with each number of further steps.
    """

    def __init__(self, engine: Engine, function: TaskFunction, task: Mapping[str, Any], report: Report) -> None:
        self.folder = Path(task["folder"])
        self._report = report
        self._reported = CountingReport(report)
        self._result = engine.submit(function, task, self._reported)

    def get(self) -> Mapping[str, Any]:
        """Wait for the function, and return its result.

        Raises:
            WorkerDiedError: If the process died. Errors of the function are raised unchanged.
        """
        return self._result()

    def correct_report(self, steps: int) -> None:
        """Correct the reported number of steps to `steps`: an engine may report no steps, or some steps twice."""
        self._report(steps - self._reported.done)

    def remove(self) -> None:
        """Delete the partial dataset."""
        remove_partial(self.folder)
