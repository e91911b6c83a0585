"""The lock of a buffer: a single user at a time, across threads and, once the buffer is shared, across processes."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enumerations, which double the cost of the lock
import os
import signal
import threading
import uuid
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from typing_extensions import Self

from datasets_rl.disk import ScratchFolder
from datasets_rl.storages.base import Storage
from datasets_rl.storages.lock import ProcessLock

_SIGINT = int(signal.SIGINT)
_main = threading.main_thread().ident
"""The thread that receives Ctrl-C."""


class _DeferredInterrupt:
    """SIGINT handler while the main thread holds the lock: Ctrl-C is deferred until the lock is released.

    No step is therefore half written. A second Ctrl-C is delivered immediately, so that a thread that waits forever can
    be interrupted.
    """

    __slots__ = ("before", "count", "depth")

    def __init__(self) -> None:
        self.before: Any = None
        """The handler that this handler replaces while `depth` is above 0."""
        self.depth = self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self.before(number, frame)

    def install(self) -> bool:
        """Replace the handler of Python. False if Ctrl-C does nothing, or has another handler."""
        self.before = _signal.getsignal(_SIGINT)
        is_python = callable(self.before)
        if is_python:
            _signal.signal(_SIGINT, self)  # an earlier Ctrl-C raises here, and nothing is deferred
        return is_python

    def leave(self) -> None:
        """End a use. At the end of the last use, restore the handler and deliver a deferred Ctrl-C."""
        self.depth -= 1
        if not self.depth:
            count, self.count = self.count, 0
            _signal.signal(_SIGINT, self.before)
            if count == 1:
                self.before(_SIGINT, None)


class BufferLock:
    """The lock of a buffer.

    Inside ``with lock`` there is a single thread, and a single process if the buffer is shared. Rows sampled inside may
    be read outside by another thread, between `begin_read` and `end_read`. A writer first waits for these reads with
    `wait_for_reads`, so that no row changes between sampling and reading. The lock is reentrant. Ctrl-C is deferred
    until the lock is released.

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
        self._threads = threading.RLock()
        self._changed = threading.Condition(self._threads)
        self._depth = 0
        self._reads = 0
        self._interrupt = _DeferredInterrupt()
        """Used by the main thread only."""
        self._file = ProcessLock.for_path(self._path) if self._path is not None else None
        _all_locks.add(self)

    @property
    def shared(self) -> bool:
        """Whether the lock also excludes other processes."""
        return self._path is not None

    def share(self, storage: Storage | None = None) -> None:
        """Also exclude other processes that inherit the lock by fork or receive it in a pickle.

        Args:
            storage: The storage that the lock protects. The lock file of the storage is used, if any, and each process
                that acquires the lock recovers the write that a dead process left unfinished (see `Storage.recover`).
        """
        if storage is not None:
            self._storage = storage
        path = self._lock_path() or self._path or self._create_file()
        if path != self._path:
            with self._threads:
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

    @property
    def reading(self) -> AbstractContextManager[object]:
        """The lock for a draw from a read-only storage: Ctrl-C then loses a batch, and needs no deferral."""
        return self._threads if self._file is None and not self._forked else self

    def __enter__(self) -> Self:
        if self._forked:
            # The parent's compute threads do not exist here, and torch would wait for these threads forever once an
            # operation is large enough to be split (32,768 elements or more).
            torch.set_num_threads(1)
            self._forked = False
        interrupt = self._interrupt
        if get_ident() == _main and (interrupt.depth or interrupt.install()):  # only that thread receives Ctrl-C
            interrupt.depth += 1
        try:
            self._threads.acquire()
        except BaseException:
            self._end_deferral()
            raise
        self._depth += 1
        if self._file is not None and self._depth == 1:
            try:
                self._file.acquire()
            except BaseException:
                self._depth -= 1
                self._threads.release()
                self._end_deferral()
                raise
            if self._storage is not None:
                try:
                    self._storage.recover()
                except BaseException:
                    self.__exit__()
                    raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._depth -= 1
        if self._file is not None and not self._depth:
            self._file.release()
        self._threads.release()
        self._end_deferral()

    def _end_deferral(self) -> None:
        if self._interrupt.depth and get_ident() == _main:
            self._interrupt.leave()

    def begin_read(self) -> None:
        """Announce a read that ends outside the lock. Called while the lock is held."""
        self._reads += 1

    def end_read(self) -> None:
        """End an announced read. Called outside the lock."""
        with self._threads:
            self._reads -= 1
            self._changed.notify_all()

    def wait_for_reads(self) -> None:
        """Wait until all announced reads have ended. Called by a writer that holds the lock."""
        while self._reads:
            self._changed.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_scratch": self._scratch, "_storage": self._storage, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy of a storage may have another lock file.
        self._path = self._lock_path() or self._path
        self._initialize()


class BufferLocks:
    """The locks of several buffers, acquired together, always in the same order, which excludes deadlocks.

    Args:
        locks: The locks. Duplicates are allowed.
    """

    def __init__(self, locks: Iterable[BufferLock]) -> None:
        # A copy of a lock has the same name, so the id breaks ties.
        self._locks = sorted(set(locks), key=lambda lock: (lock.name, id(lock)))

    @property
    def shared(self) -> bool:
        """Whether the locks also exclude other processes."""
        return any(lock.shared for lock in self._locks)

    def share(self, storage: Storage | None = None) -> None:
        """Also exclude other processes. Each lock has a separate storage."""
        del storage
        for lock in self._locks:
            lock.share()

    @property
    def reading(self) -> Self:
        """These locks, see `BufferLock.reading`."""
        return self

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            for lock in self._locks:
                entered.enter_context(lock)
            entered.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        for lock in reversed(self._locks):
            lock.__exit__(*failure)

    def begin_read(self) -> None:
        """Announce a read that ends outside the locks. Called while the locks are held."""
        for lock in self._locks:
            lock.begin_read()

    def end_read(self) -> None:
        """End an announced read. Called outside the locks."""
        for lock in self._locks:
            lock.end_read()

    def wait_for_reads(self) -> None:
        """Wait until all announced reads have ended. Called by a writer that holds the locks."""
        for lock in self._locks:
            lock.wait_for_reads()


_all_locks: weakref.WeakSet[BufferLock] = weakref.WeakSet()


def _reset_after_fork() -> None:
    """Reset every lock in a forked process: the parent's threads that held locks do not exist here."""
    global _main  # noqa: PLW0603 - the thread that forks is the main thread of the new process
    _main = get_ident()
    for lock in list(_all_locks):
        if lock._interrupt.depth:  # noqa: SLF001 - same module
            _signal.signal(_SIGINT, lock._interrupt.before)  # noqa: SLF001 - same module
        lock._initialize(forked=True)  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_reset_after_fork)
