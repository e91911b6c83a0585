"""Several pieces of work at once, which stop together, and a rate that they share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from datasets_rl.errors import InvalidArgumentError

__all__ = ["CancelToken", "Cancelled", "Limiter", "in_parallel"]

_GRACE = 1.0
"""Seconds that Ctrl-C waits for threads that are blocked in the network."""
_GLANCE = 0.1


class Cancelled(Exception):
    """Another thread failed, or the user interrupted; what they raise is what the user sees."""


class CancelToken:
    """A flag that ends work; it is up as soon as its parent's is."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self._event = threading.Event()
        self._parent = parent

    def set(self) -> None:
        """Raise the flag."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether this flag or its parent's is up."""
        return self._event.is_set() or (self._parent is not None and self._parent.is_set())

    def check(self) -> None:
        """Raise `Cancelled` if the flag is up."""
        if self.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait, unless the flag goes up first."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            self._event.wait(min(left, _GLANCE))
        self.check()


class Limiter:
    """Spreads bytes so that all threads together keep a rate.

    Args:
        rate: Bytes a second; None is no limit.

    Raises:
        InvalidArgumentError: If the rate is not above 0.
    """

    def __init__(self, rate: float | None = None) -> None:
        if rate is not None and rate <= 0:
            raise InvalidArgumentError(f"the rate limit is {rate}; expected a number of bytes a second above 0")
        self._rate = rate
        self._lock = threading.Lock()
        self._free = time.monotonic()

    def delay(self, size: int) -> float:
        """Take `size` bytes and return the seconds to wait for them."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + size / self._rate
            return self._free - now


def in_parallel(tasks: Sequence[Callable[[], None]], workers: int, cancel: CancelToken) -> None:
    """Run the tasks on up to `workers` threads; the first failure stops the others and is raised here.

    The threads are daemons, so that Ctrl-C ends the program at once and not when a stalled connection times out; what
    is on the disk is right at any moment.
    """
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            task()
        return
    queue, failures = deque(tasks), list[BaseException]()
    threads = [
        threading.Thread(target=_work, args=(queue, failures, cancel), daemon=True)
        for _ in range(min(workers, len(tasks)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        cancel.set()
        until = time.monotonic() + _GRACE
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        raise
    for failure in sorted(failures, key=lambda each: isinstance(each, Cancelled)):
        raise failure


def _work(queue: deque[Callable[[], None]], failures: list[BaseException], cancel: CancelToken) -> None:
    while not cancel.is_set():
        try:
            task = queue.popleft()
        except IndexError:
            return
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            failures.append(error)
            cancel.set()
