"""A lock over threads and processes."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from datasets_rl.disk import FileLock

_locks: WeakValueDictionary[Path, ProcessLock] = WeakValueDictionary()


class ProcessLock:
    """Reentrant lock that a single thread of a single process holds at a time.

    The lock is released when that process dies.

    A process has a single lock per file, so that two buffers over the same storage in the same thread cannot deadlock.

    Args:
        path: A file that exists as long as any process may acquire the lock.

    Raises:
        InvalidArgumentError: On a system without `fcntl`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FileLock(path)
        self._thread = threading.RLock()
        self._depth = 0

    @classmethod
    def for_path(cls, path: Path) -> ProcessLock:
        """Return the lock of a file."""
        return _locks.get(path) or _locks.setdefault(path, cls(path))

    def acquire(self) -> None:
        """Wait for the lock, then acquire the lock."""
        self._thread.acquire()
        self._depth += 1
        if self._depth == 1:
            try:
                self._file.acquire()
            except BaseException:
                self._depth = 0
                self._thread.release()
                raise

    def release(self) -> None:
        """Release the lock."""
        self._depth -= 1
        if not self._depth:
            self._file.release()
        self._thread.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *failure: object) -> None:
        self.release()

    def _restart(self) -> None:
        """Reset the lock in a forked process: the parent's thread that held it does not exist here."""
        self._thread = threading.RLock()
        self._depth = 0
        # Reopened now: the parent may delete its buffer and the file before the child first acquires the lock.
        with suppress(OSError):
            self._file.open()


def _reset_after_fork() -> None:
    for lock in list(_locks.values()):
        lock._restart()  # noqa: SLF001 - of this file


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
