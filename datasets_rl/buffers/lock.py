"""The lock of a buffer: one user at a time, across threads and, once the buffer is shared, across processes."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enumerations, which double the cost of the lock
import os
import signal
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from datasets_rl.storages.base import Storage
from datasets_rl.storages.lock import ProcessLock
from datasets_rl.storages.scratch import ScratchFolder

__all__ = ["BufferLock", "BufferLocks"]


_SIGINT = int(signal.SIGINT)


class _DeferredInterrupt:
    """SIGINT handler while the main thread holds the lock: it defers Ctrl-C until the lock is released.

    No step is therefore half written. A second Ctrl-C is delivered immediately, so that a thread that waits forever can
    be interrupted.
    """

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self.before = before
        self.depth = 1
        self._count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            self.before(number, frame)

    def restore(self) -> None:
        _signal.signal(_SIGINT, self.before)
        if self._count == 1:
            self.before(_SIGINT, None)


class BufferLock:
    """The lock of a buffer.

    Inside ``with lock`` there is one thread, and one process if the buffer is shared. Rows sampled inside may be read
    outside by another thread, between `begin_read` and `end_read`; a writer first waits for these reads with
    `wait_for_reads`, so that no row changes between its sampling and its reading. The lock is reentrant. Ctrl-C is
    deferred until it is released.

        caller    | draw, begin_read |                    | wait ....... write |
        thread                         read ... end_read
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._scratch: ScratchFolder | None = None
        """Folder of the lock file, if the storage has none."""
        self._storage: Storage | None = None
        self.name = uuid.uuid4().hex
        """Identifier that is the same in all processes."""
        self._initialize()

    def _initialize(self, *, forked: bool = False) -> None:
        self._forked = forked
        self._inside = threading.Condition(threading.RLock())
        self._depth = 0
        self._reads = 0
        self._deferred: _DeferredInterrupt | None = None
        """Set by the main thread only."""
        self._file = ProcessLock.for_path(self._path) if self._path is not None else None
        _all_locks.add(self)

    @property
    def shared(self) -> bool:
        """Whether the lock also excludes other processes."""
        return self._path is not None

    def share(self, storage: Storage | None = None) -> None:
        """Also exclude other processes that inherit the lock by fork or receive it in a pickle.

        Args:
            storage: The storage that the lock protects. Its lock file is used if it has one, and each process that
                acquires the lock recovers the write that a dead process left unfinished (see `Storage.recover`).
        """
        if storage is not None:
            self._storage = storage
        path = self._lock_path() or self._path or self._create_file()
        if path != self._path:
            with self._inside:
                before, self._path, self._file = self._file, path, ProcessLock.for_path(path)
                if self._depth:
                    self._file.acquire()
                    if before is not None:
                        before.release()

    def _lock_path(self) -> Path | None:
        path = self._storage.lock_path if self._storage is not None else None
        if path is not None:
            path.touch()
        return path

    def _create_file(self) -> Path:
        self._scratch = ScratchFolder()
        path = self._scratch.path / "buffer.lock"
        path.touch()
        return path

    def __enter__(self) -> None:
        if self._forked:
            # The parent's compute threads do not exist here, and torch would wait for them forever once an operation is
            # large enough to be split (32,768 elements or more).
            torch.set_num_threads(1)
            self._forked = False
        self._defer_interrupt()
        try:
            self._inside.acquire()
        except BaseException:
            self._restore_interrupt()
            raise
        self._depth += 1
        if self._file is not None and self._depth == 1:
            try:
                self._file.acquire()
            except BaseException:
                self._depth -= 1
                self._inside.release()
                self._restore_interrupt()
                raise
            if self._storage is not None:
                try:
                    self._storage.recover()
                except BaseException:
                    self.__exit__()
                    raise

    def __exit__(self, *failure: object) -> None:
        self._depth -= 1
        if self._file is not None and not self._depth:
            self._file.release()
        self._inside.release()
        self._restore_interrupt()

    def _defer_interrupt(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return  # only the main thread receives Ctrl-C
        if self._deferred is not None:
            self._deferred.depth += 1
            return
        before = _signal.getsignal(_SIGINT)
        if callable(before):
            deferred = _DeferredInterrupt(before)
            _signal.signal(_SIGINT, deferred)  # an earlier Ctrl-C raises here, and nothing is deferred
            self._deferred = deferred

    def _restore_interrupt(self) -> None:
        deferred = self._deferred
        if deferred is None or threading.get_ident() != threading.main_thread().ident:
            return
        deferred.depth -= 1
        if not deferred.depth:
            self._deferred = None
            deferred.restore()

    def begin_read(self) -> None:
        """Announce a read that ends outside the lock; called while the lock is held."""
        self._reads += 1

    def end_read(self) -> None:
        """End an announced read; called outside the lock."""
        with self._inside:
            self._reads -= 1
            self._inside.notify_all()

    def wait_for_reads(self) -> None:
        """Wait until all announced reads have ended; called by a writer while it holds the lock."""
        while self._reads:
            self._inside.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_scratch": self._scratch, "_storage": self._storage, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy of a storage may have another lock file.
        self._path = self._lock_path() or self._path
        self._initialize()


class BufferLocks:
    """The locks of several buffers, acquired together, always in the same order, so that they cannot deadlock.

    Args:
        locks: The locks; duplicates are allowed.
    """

    def __init__(self, locks: Iterable[BufferLock]) -> None:
        # A copy of a lock has the same name, so the id breaks ties.
        self._locks = sorted(set(locks), key=lambda lock: (lock.name, id(lock)))

    @property
    def shared(self) -> bool:
        """Whether the locks also exclude other processes."""
        return any(lock.shared for lock in self._locks)

    def share(self, storage: Storage | None = None) -> None:
        """Also exclude other processes; each lock has its own storage."""
        del storage
        for lock in self._locks:
            lock.share()

    def __enter__(self) -> None:
        entered = ExitStack()
        with entered:
            for lock in self._locks:
                entered.enter_context(lock)
            entered.pop_all()

    def __exit__(self, *failure: object) -> None:
        for lock in reversed(self._locks):
            lock.__exit__(*failure)

    def begin_read(self) -> None:
        """Announce a read that ends outside the locks; called while the locks are held."""
        for lock in self._locks:
            lock.begin_read()

    def end_read(self) -> None:
        """End an announced read; called outside the locks."""
        for lock in self._locks:
            lock.end_read()

    def wait_for_reads(self) -> None:
        """Wait until all announced reads have ended; called by a writer while it holds the locks."""
        for lock in self._locks:
            lock.wait_for_reads()


_all_locks: weakref.WeakSet[BufferLock] = weakref.WeakSet()


def _reset_after_fork() -> None:
    """Reset every lock in a forked process: the parent's threads that held locks do not exist here."""
    for lock in list(_all_locks):
        if lock._deferred is not None:  # noqa: SLF001 - same module
            _signal.signal(_SIGINT, lock._deferred.before)  # noqa: SLF001 - same module
        lock._initialize(forked=True)  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
