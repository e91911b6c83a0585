"""Who may touch a buffer now: one at a time, over threads, and over processes once it is shared."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from datasets_rl.disk import FileLock

__all__ = ["Gate", "GateChain"]


class Gate:
    """The lock of a buffer.

    Inside ``with gate`` there is one thread, and one process if the buffer is shared. What was drawn inside may be read
    outside of it by another thread, between `begin_read` and `end_read`; a writer first waits for these with
    `wait_for_reads`, so that no row changes between its choice and its reading. The gate may be entered again by who is
    inside.

        caller    | draw, begin_read |                    | wait ....... write |
        thread                         read ... end_read
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._inside = threading.Condition(threading.RLock())
        self._depth = 0
        self._reads = 0
        self._file = FileLock(self._path) if self._path is not None else None

    @property
    def shared(self) -> bool:
        """Whether processes exclude each other too."""
        return self._path is not None

    def share(self) -> None:
        """Exclude other processes too: those that inherit the gate by fork, or get it in a pickle."""
        if self._path is None:
            handle, name = tempfile.mkstemp(prefix="rlds-", suffix=".lock")
            os.close(handle)
            self._path = Path(name)
            weakref.finalize(self, _remove, self._path, os.getpid())
            with self._inside:
                self._file = FileLock(self._path)
                if self._depth:
                    self._file.acquire()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            # The threads of the parent that were inside do not exist here.
            self._start()
        self._inside.acquire()
        self._depth += 1
        if self._file is not None and self._depth == 1:
            try:
                self._file.acquire()
            except BaseException:
                self._depth -= 1
                self._inside.release()
                raise

    def __exit__(self, *failure: object) -> None:
        self._depth -= 1
        if self._file is not None and not self._depth:
            self._file.release()
        self._inside.release()

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
        return {"_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path = state["_path"]
        self._start()


class GateChain:
    """The gates of several buffers, entered together; always in the same order, so that nobody waits in a ring.

    Args:
        gates: The gates; one may be there several times.
    """

    def __init__(self, gates: Iterable[Gate | GateChain]) -> None:
        self._gates = sorted(set(gates), key=id)

    @property
    def shared(self) -> bool:
        """Whether processes exclude each other too."""
        return any(gate.shared for gate in self._gates)

    def share(self) -> None:
        """Exclude other processes too."""
        for gate in self._gates:
            gate.share()

    def __enter__(self) -> None:
        entered = ExitStack()
        with entered:
            for gate in self._gates:
                entered.enter_context(gate)
            entered.pop_all()

    def __exit__(self, *failure: object) -> None:
        for gate in reversed(self._gates):
            gate.__exit__(*failure)

    def begin_read(self) -> None:
        """Announce a reading that ends outside; called inside."""
        for gate in self._gates:
            gate.begin_read()

    def end_read(self) -> None:
        """Say that a reading has ended; called outside."""
        for gate in self._gates:
            gate.end_read()

    def wait_for_reads(self) -> None:
        """Wait until every announced reading has ended; called inside, by who is going to write."""
        for gate in self._gates:
            gate.wait_for_reads()


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(OSError):
            path.unlink()
