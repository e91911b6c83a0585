"""Threads that run tasks in parallel, cancel together, and share a rate limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from datasets_rl.errors import InvalidArgumentError

_JOIN_TIMEOUT = 1.0
"""Seconds that Ctrl-C waits for threads that are blocked in the network."""
_POLL_SECONDS = 0.1


class Cancelled(Exception):
    """Raised in a thread after another thread failed or the user interrupted. The user sees the other exception."""


class CancelToken:
    """Flag that cancels work. A token with a parent is also set when the parent is set."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self._event = threading.Event()
        self._parent = parent

    def set(self) -> None:
        """Set the flag."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether this flag or the flag of the parent is set."""
        return self._event.is_set() or (self._parent is not None and self._parent.is_set())

    def check(self) -> None:
        """Raise `Cancelled` if the flag is set."""
        if self.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Sleep, and raise `Cancelled` as soon as the flag is set."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            self.check()
            self._event.wait(min(remaining, _POLL_SECONDS))
        self.check()


class Limiter:
    """Rate limiter for bytes, shared by all threads.

    Args:
        rate: Bytes per second. None sets no limit.

    Raises:
        InvalidArgumentError: If the rate is not above 0.
    """

    def __init__(self, rate: float | None = None) -> None:
        if rate is not None and rate <= 0:
            raise InvalidArgumentError(f"the rate limit is {rate}, expected a number of bytes per second above 0")
        self._rate = rate
        self._lock = threading.Lock()
        self._free = time.monotonic()

    def delay(self, size: int) -> float:
        """Reserve `size` bytes and return the seconds to wait before using the bytes."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + size / self._rate
            return self._free - now


def run_in_parallel(tasks: Sequence[Callable[[], None]], workers: int, cancel: CancelToken) -> None:
    """Run the tasks on up to `workers` threads. The first failure cancels the other tasks and is raised here.

    The threads are daemons, so that Ctrl-C ends the program at once and not when a stalled connection times out. This
    is safe because the files on disk are consistent at any moment.
    """
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            task()
        return
    queue, failures = deque(tasks), list[BaseException]()
    threads = [
        threading.Thread(target=_run_tasks, args=(queue, failures, cancel), daemon=True)
        for _ in range(min(workers, len(tasks)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        cancel.set()
        end = time.monotonic() + _JOIN_TIMEOUT
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        raise
    for failure in sorted(failures, key=lambda each: isinstance(each, Cancelled)):
        raise failure


def _run_tasks(queue: deque[Callable[[], None]], failures: list[BaseException], cancel: CancelToken) -> None:
    while not cancel.is_set():
        try:
            task = queue.popleft()
        except IndexError:
            return
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - passed to the caller's thread, which raises it
            failures.append(error)
            cancel.set()
