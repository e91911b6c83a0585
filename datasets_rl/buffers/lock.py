"""Who may touch a buffer now: one at a time, over threads, and over processes once it is shared."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enumerations, which double the cost of a lock
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
    """Ctrl-C while the main thread is inside: it comes when the lock has been left, so that no step is half written.

    A second one comes at once: whoever waits for something that never ends gets out.
    """

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self.before = before
        self.depth = 1
        self._came = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came += 1
        if self._came > 1:
            self.before(number, frame)

    def let_go(self) -> None:
        _signal.signal(_SIGINT, self.before)
        if self._came == 1:
            self.before(_SIGINT, None)


class BufferLock:
    """The lock of a buffer.

    Inside ``with lock`` there is one thread, and one process if the buffer is shared. What was drawn inside may be read
    outside of it by another thread, between `begin_read` and `end_read`; a writer first waits for these with
    `wait_for_reads`, so that no row changes between its choice and its reading. The lock may be entered again by who is
    inside. Ctrl-C is held back until it has been left.

        caller    | draw, begin_read |                    | wait ....... write |
        thread                         read ... end_read
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._scratch: ScratchFolder | None = None
        """Where the lock file lies, if it is not that of the storage."""
        self._storage: Storage | None = None
        self.name = uuid.uuid4().hex
        """The same in all processes."""
        self._start()

    def _start(self, *, forked: bool = False) -> None:
        self._forked = forked
        self._inside = threading.Condition(threading.RLock())
        self._depth = 0
        self._reads = 0
        self._held_back: _DeferredInterrupt | None = None
        """Only the main thread sets it."""
        self._file = ProcessLock.at(self._path) if self._path is not None else None
        _all_locks.add(self)

    @property
    def shared(self) -> bool:
        """Whether processes exclude each other too."""
        return self._path is not None

    def share(self, storage: Storage | None = None) -> None:
        """Exclude other processes too: those that inherit the lock by fork, or get it in a pickle.

        Args:
            storage: What the lock protects: its lock file is used if it has one, and who enters first finds the write
                that a process has left unfinished (see `Storage.recover`).
        """
        if storage is not None:
            self._storage = storage
        path = self._lock_path() or self._path or self._make_file()
        if path != self._path:
            with self._inside:
                before, self._path, self._file = self._file, path, ProcessLock.at(path)
                if self._depth:
                    self._file.acquire()
                    if before is not None:
                        before.release()

    def _lock_path(self) -> Path | None:
        path = self._storage.lock_path if self._storage is not None else None
        if path is not None:
            path.touch()
        return path

    def _make_file(self) -> Path:
        self._scratch = ScratchFolder()
        path = self._scratch.path / "buffer.lock"
        path.touch()
        return path

    def __enter__(self) -> None:
        if self._forked:
            # The threads with which the parent computes do not exist here, and torch waits for them for ever as soon as
            # something is large enough to be split (from 32,768 elements).
            torch.set_num_threads(1)
            self._forked = False
        self._hold_back()
        try:
            self._inside.acquire()
        except BaseException:
            self._let_go()
            raise
        self._depth += 1
        if self._file is not None and self._depth == 1:
            try:
                self._file.acquire()
            except BaseException:
                self._depth -= 1
                self._inside.release()
                self._let_go()
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
        self._let_go()

    def _hold_back(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return  # Ctrl-C comes to the main thread only
        if self._held_back is not None:
            self._held_back.depth += 1
            return
        before = _signal.getsignal(_SIGINT)
        if callable(before):
            held_back = _DeferredInterrupt(before)
            _signal.signal(_SIGINT, held_back)  # one that comes before raises here, and nothing is held back
            self._held_back = held_back

    def _let_go(self) -> None:
        held_back = self._held_back
        if held_back is None or threading.get_ident() != threading.main_thread().ident:
            return
        held_back.depth -= 1
        if not held_back.depth:
            self._held_back = None
            held_back.let_go()

    def begin_read(self) -> None:
        """Announce a reading that ends outside; called inside."""
        self._reads += 1

    def end_read(self) -> None:
        """Say that a reading has ended; called outside."""
        with self._inside:
            self._reads -= 1
            self._inside.notify_all()

    def wait_for_reads(self) -> None:
        """Wait until every announced reading has ended; called inside, by who is going to write."""
        while self._reads:
            self._inside.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_scratch": self._scratch, "_storage": self._storage, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy of a storage may have a file of its own.
        self._path = self._lock_path() or self._path
        self._start()


class BufferLocks:
    """The locks of several buffers, entered together; in the same order everywhere, so that nobody waits in a ring.

    Args:
        locks: The locks; one may be there several times.
    """

    def __init__(self, locks: Iterable[BufferLock]) -> None:
        # A copy of a lock has its name.
        self._locks = sorted(set(locks), key=lambda lock: (lock.name, id(lock)))

    @property
    def shared(self) -> bool:
        """Whether processes exclude each other too."""
        return any(lock.shared for lock in self._locks)

    def share(self, storage: Storage | None = None) -> None:
        """Exclude other processes too; each lock knows the storage that it protects."""
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
        """Announce a reading that ends outside; called inside."""
        for lock in self._locks:
            lock.begin_read()

    def end_read(self) -> None:
        """Say that a reading has ended; called outside."""
        for lock in self._locks:
            lock.end_read()

    def wait_for_reads(self) -> None:
        """Wait until every announced reading has ended; called inside, by who is going to write."""
        for lock in self._locks:
            lock.wait_for_reads()


_all_locks: weakref.WeakSet[BufferLock] = weakref.WeakSet()


def _after_fork() -> None:
    """Free every lock in a forked process: the threads of its parent that were inside do not exist here."""
    for lock in list(_all_locks):
        if lock._held_back is not None:  # noqa: SLF001 - of this file
            _signal.signal(_SIGINT, lock._held_back.before)  # noqa: SLF001 - of this file
        lock._start(forked=True)  # noqa: SLF001 - of this file


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)
