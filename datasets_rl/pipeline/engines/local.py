"""Parts made in processes of this machine.

They are started as programs, and not by `multiprocessing`, which would run the user's script again. A line of JSON goes
to them for each part. Pickles come back, because errors are more than their text.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any

from datasets_rl.errors import DatasetsRLError
from datasets_rl.pipeline.engines import TaskFunction, TaskResult, WorkerDiedError
from datasets_rl.progress import Report

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Local"]

_PROGRAM = """
from datasets_rl.pipeline.engines.local import main
main()
"""
_AHEAD = 2
"""Parts beside those that are being made: one is joined, one waits for its turn."""
_TELL_EVERY = 0.2
"""Seconds between two numbers of steps: to tell one costs as much as to read a short episode."""


class Local:
    """Makes parts in processes of this machine.

    Args:
        jobs: How many.
        threads: Threads that the libraries of each of them may use; by default what the environment says.
        max_tasks_per_child: Parts after which a process is replaced; None for never.
    """

    def __init__(self, jobs: int, *, threads: int | None = None, max_tasks_per_child: int | None = None) -> None:
        self._jobs = jobs
        self._threads = threads
        self._tasks_of_one = max_tasks_per_child

    @property
    def max_in_flight(self) -> int:
        """How many parts there should be at once."""
        return self._jobs + _AHEAD

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:
        """Let a process make a part."""
        return self._pool.submit(self._make, make, task, report).result

    def _make(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
        worker = self._taken()
        try:
            return worker.make(make, task, report)
        finally:
            if worker.lives and worker.tasks != self._tasks_of_one:
                self._idle.append(worker)
            else:
                worker.close()

    def _taken(self) -> _Worker:
        with self._starting:
            if self._idle:
                return self._idle.pop()
            if self._over:
                raise WorkerDiedError("was not started")
            self._workers.append(_Worker(self._threads))
            return self._workers[-1]

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="rlds-part")
        self._starting = threading.Lock()
        self._over = False
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._starting:
            self._over = True
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=True)


class _Worker:
    """A process that makes one part after the other: to start one costs as much as to read 50 MB."""

    def __init__(self, threads: int | None) -> None:
        self.tasks = 0
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(  # noqa: S603 -- this very Python
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the process that started this one, which ends it
            env={**os.environ, **limit, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def make(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
        """Let it make a part."""
        self.tasks += 1
        stdin, stdout = self._streams
        try:
            stdin.write(json.dumps([make.__module__, make.__qualname__, task]).encode() + b"\n")
            stdin.flush()
            while isinstance(answer := pickle.load(stdout), int):  # noqa: S301 -- of a process that is ours
                report(answer)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # it has ended, or was closed meanwhile
            raise WorkerDiedError(f"ended with {self._process.wait()}") from None
        if isinstance(answer, DatasetsRLError):
            raise answer
        said: Mapping[str, Any] = answer
        return said

    @property
    def lives(self) -> bool:
        """Whether it can be asked for more."""
        return self._process.poll() is None

    @property
    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise WorkerDiedError("has no pipes")
        return stdin, stdout

    def close(self) -> None:
        """End it, wherever it is."""
        self._process.kill()
        self._process.wait()
        for stream in self._streams:
            with suppress(BrokenPipeError):
                stream.close()


def main() -> None:
    """Make the parts that the lines of stdin describe; each is answered by numbers of steps, and then what is said of it."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        module, name, task = json.loads(lines.get())
        try:
            answer = getattr(import_module(module), name)(task, _Report(out))
        except DatasetsRLError as error:
            answer = error
        try:
            pickle.dump(answer, out)
            out.flush()
        except BrokenPipeError:  # the process that asked was killed
            os._exit(1)


def _listen(lines: SimpleQueue[str]) -> None:
    """Take up lines, also during the work: where they end, whoever wants parts is gone, and nobody takes this one."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(1)


class _Report(Report):
    """Tells the process that waits of the steps."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._steps = 0
        self._told = time.monotonic()

    def __call__(self, units: int) -> None:
        """Count further steps."""
        self._steps += units
        if time.monotonic() - self._told > _TELL_EVERY:
            pickle.dump(self._steps, self._out)
            self._out.flush()
            self._steps, self._told = 0, time.monotonic()
