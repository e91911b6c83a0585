"""Threads that decode: started once for the process, and shared by all callers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Lock

_lock = Lock()
_pool: ThreadPoolExecutor | None = None


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_on_all_cores(work: Callable[[int, int], None], count: int, per_task: int) -> None:
    """Call ``work(start, stop)`` for consecutive ranges of `count` items, in this thread and in the threads of the pool.

    This thread takes ranges, too, so that the work ends even if all other threads are busy, and a single range is as
    fast as a plain call. The first exception of `work` is raised after all threads have stopped.

    Args:
        work: Processes the items `start` to `stop`. The function should release the interpreter's lock.
        count: Number of items.
        per_task: Number of items per call, enough for some 100 microseconds.
    """
    if count <= per_task or (cores := core_count()) < 2:
        if count:
            work(0, count)
        return
    starts = range(0, count, per_task)
    remaining = iter(starts)

    def work_on_remaining() -> None:
        for start in remaining:
            work(start, min(start + per_task, count))

    futures: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # no thread starts while the interpreter shuts down
            pool = _shared_pool(cores)
            futures.extend(pool.submit(work_on_remaining) for _ in range(min(cores, len(starts)) - 1))
        work_on_remaining()
    finally:
        deque(remaining, maxlen=0)  # after an exception, the other threads start no further range
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()


def _shared_pool(cores: int) -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603 - a single pool for the process
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(cores - 1, thread_name_prefix="rlds-decode")
        return _pool


def _reset_after_fork() -> None:
    """Forget the pool in a forked process: the threads do not exist here."""
    global _lock, _pool
    _lock, _pool = Lock(), None


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
