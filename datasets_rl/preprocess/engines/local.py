"""Parts made on this machine: in this process, or in others that are started as programs.

The others are not made by `multiprocessing`, which would run the user's script again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from datasets_rl.errors import DatasetsRLError, PreprocessFailed, revived
from datasets_rl.preprocess import part

__all__ = ["Local"]

_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, which ends it
from datasets_rl.preprocess.engines.local import main
main(int(sys.argv[1]))
"""
_AHEAD = 2
"""Parts that are made, or begun, for each process before the first one is taken."""


class Local:
    """Makes parts in processes of this machine.

    Args:
        jobs: How many; with 1, in this one.
        threads: Threads of torch in each of them.
        tasks_of_one: Tasks after which a process is replaced; None for never.
    """

    def __init__(self, jobs: int, *, threads: int = 1, tasks_of_one: int | None = None) -> None:
        self._jobs = jobs
        self._threads = threads
        self._tasks_of_one = tasks_of_one

    def run(self, tasks: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield what is said of each task, in their order."""
        if self._jobs == 1 or len(tasks) < 2:
            yield from (part.make(task) for task in tasks)
        else:
            yield from self.elsewhere(tasks)

    def elsewhere(self, tasks: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Do so in other processes, even where one is enough."""
        own = threading.local()
        workers: list[_Worker] = []

        def make(task: Mapping[str, Any]) -> Mapping[str, Any]:
            worker: _Worker | None = getattr(own, "worker", None)
            if worker is None or worker.tasks == self._tasks_of_one:
                if worker is not None:
                    worker.close()
                worker = own.worker = _Worker(self._threads)
                workers.append(worker)
            return worker.make(task)

        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="rlds-part")
        waiting: list[Future[Mapping[str, Any]]] = []
        left = iter(tasks)
        try:
            for task in left:
                waiting.append(pool.submit(make, task))
                if len(waiting) == self._jobs * _AHEAD:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()
            pool.shutdown(wait=True)


class _Worker:
    """A process that makes one part after the other."""

    def __init__(self, threads: int) -> None:
        self.tasks = 0
        self._process = subprocess.Popen(  # noqa: S603 - this very Python, and a number
            [sys.executable, "-c", _PROGRAM, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def make(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let it make a part."""
        self.tasks += 1
        stdin, stdout = self._process.stdin, self._process.stdout
        line = b""
        if stdin is not None and stdout is not None:
            try:
                stdin.write(json.dumps(task).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            except (BrokenPipeError, ValueError):  # it has ended, or was closed meanwhile
                line = b""
        if not line:
            raise PreprocessFailed(
                f"the process that made episodes {task['first']:,} to {task['behind']:,} ended with {self._process.wait()}",
                hint="fewer --jobs or a smaller --max-ram need less memory",
            )
        answer = json.loads(line)
        if "error" in answer:
            raise revived(**answer["error"])
        found: Mapping[str, Any] = answer
        return found

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue


def main(threads: int) -> None:
    """Make the parts that stdin describes, a line each, and answer each with a line."""
    torch.set_num_threads(threads)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a function prints must not come between
    for line in sys.stdin:
        try:
            answer: Mapping[str, Any] = part.make(json.loads(line))
        except DatasetsRLError as error:
            answer = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
        try:
            out.write(json.dumps(answer) + "\n")
            out.flush()
        except BrokenPipeError:  # the process that asked was killed
            os._exit(1)
