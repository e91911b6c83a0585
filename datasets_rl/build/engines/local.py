"""The engine that writes partial datasets in processes of this machine.

The processes are started as programs, and not by `multiprocessing`, which would import the script of the user again.
Each task is sent as a line of JSON. Results return as pickles, which preserve the attributes of errors.
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
from typing import IO, Any

from typing_extensions import Self

from datasets_rl.build.engines import TaskFunction, TaskResult, WorkerDiedError
from datasets_rl.errors import DatasetsRLError
from datasets_rl.progress import Report

_PROGRAM = """
from datasets_rl.build.engines.local import main
main()
"""
_AHEAD = 2
"""Partial datasets in addition to the current ones: a partial dataset is appended, another is queued."""
_REPORT_INTERVAL = 0.2
"""Seconds between two reports of steps: a report costs as much as reading a short episode."""


class LocalEngine:
    """An engine that writes partial datasets in processes of this machine.

    Args:
        jobs: The number of processes.
        threads: The number of threads that the libraries in each process may use. By default set by the environment.
        max_tasks_per_child: The number of tasks after which a process is replaced. None for never.
    """

    def __init__(self, jobs: int, *, threads: int | None = None, max_tasks_per_child: int | None = None) -> None:
        self._jobs = jobs
        self._threads = threads
        self._max_tasks_per_child = max_tasks_per_child

    @property
    def max_in_flight(self) -> int:
        """The number of partial datasets to have at once: as many as processes, and two more."""
        return self._jobs + _AHEAD

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:
        """Submit a task to a process, see `Engine.submit`."""
        return self._pool.submit(self._run, make, task, report).result

    def _run(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
        worker = self._acquire_worker()
        try:
            return worker.run(make, task, report)
        finally:
            if worker.alive and worker.tasks != self._max_tasks_per_child:
                self._idle.append(worker)
            else:
                worker.close()

    def _acquire_worker(self) -> _Worker:
        with self._starting:
            if self._idle:
                return self._idle.pop()
            if self._closed:
                raise WorkerDiedError("was not started")
            self._workers.append(_Worker(self._threads))
            return self._workers[-1]

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="rlds-partial")
        self._starting = threading.Lock()
        self._closed = False
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._starting:
            self._closed = True
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=True)


class _Worker:
    """A process that runs tasks in order, because a start costs as much as reading 50 MB."""

    def __init__(self, threads: int | None) -> None:
        self.tasks = 0
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(  # noqa: S603 -- this very Python
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C interrupts only the parent process, which then ends this process
            env={**os.environ, **limit, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def run(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> Mapping[str, Any]:
        """Run a task, and return its result."""
        self.tasks += 1
        stdin, stdout = self._streams
        try:
            stdin.write(json.dumps([make.__module__, make.__qualname__, task]).encode() + b"\n")
            stdin.flush()
            while isinstance(message := pickle.load(stdout), int):  # noqa: S301 -- from a child process
                report(message)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # the process has ended, or was closed
            raise WorkerDiedError(f"ended with {self._process.wait()}") from None
        if isinstance(message, DatasetsRLError):
            raise message
        result: Mapping[str, Any] = message
        return result

    @property
    def alive(self) -> bool:
        """Whether the process can run another task."""
        return self._process.poll() is None

    @property
    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise WorkerDiedError("has no pipes")
        return stdin, stdout

    def close(self) -> None:
        """Kill the process, even in the middle of a task."""
        self._process.kill()
        self._process.wait()
        for stream in self._streams:
            with suppress(BrokenPipeError):
                stream.close()


def main() -> None:
    """Run the tasks that arrive as lines on stdin.

    Write numbers of steps and then the result of each task to stdout.
    """
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print to stdout must not corrupt the pickles
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_queue_stdin_lines, args=(lines,), daemon=True).start()
    while True:
        module, name, task = json.loads(lines.get())
        try:
            result = getattr(import_module(module), name)(task, _PipedReport(out))
        except DatasetsRLError as error:
            result = error
        try:
            pickle.dump(result, out)
            out.flush()
        except BrokenPipeError:  # the parent process was killed
            os._exit(1)


def _queue_stdin_lines(lines: SimpleQueue[str]) -> None:
    """Read lines, also while a task runs: at the end of stdin the parent process is gone, and this process exits."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(1)


class _PipedReport(Report):
    """A report that sends numbers of steps to the parent process."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._steps = 0
        self._last_sent = time.monotonic()

    def __call__(self, units: int) -> None:
        self._steps += units
        if time.monotonic() - self._last_sent > _REPORT_INTERVAL:
            pickle.dump(self._steps, self._out)
            self._out.flush()
            self._steps, self._last_sent = 0, time.monotonic()
