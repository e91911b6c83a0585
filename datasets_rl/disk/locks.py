"""Locks between processes: of a folder that may be on a network, and of memory that processes of a machine share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from datasets_rl.disk.atomic import MAX_ATTEMPTS, make_folder
from datasets_rl.disk.plain import NO_LINK, open_plain, read_plain
from datasets_rl.disk.space import disk_errors
from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested where used


@contextmanager
def lock(
    path: Path, name: str, *, wait: float = 3600.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold a lock between processes for the duration of the block, so that the same work is not done twice.

    The lock is a lock of the library filelock, which the system releases when the holder dies. Locks of network file
    systems may lie, so that what is right on the disk must never depend on a lock.

    Args:
        path: The file of the lock, which names the holder. The file is created, with the folder, and deleted at the
            end.
        name: The name of the locked resource, for messages.
        wait: Seconds to wait for another holder.
        waiting: Called once with the name of the holder if this has to wait.

    Raises:
        LockedError: If another process still holds the lock after `wait` seconds.
        IntegrityError: If the path is not a plain file.
        DiskFullError: If the disk has too little space for the file.
        NotWritableError: If the process may not create the file.
    """
    import filelock

    _check_lock(path)
    held = filelock.FileLock(path)
    with disk_errors(path.parent):
        try:
            own = _acquire(held, path, 0.0)
        except filelock.Timeout:
            if waiting is not None:
                waiting(_holder(path))
            try:
                own = _acquire(held, path, wait)
            except filelock.Timeout:
                raise LockedError(name, _holder(path), path) from None
    try:
        with suppress(OSError):
            path.write_text(f"{_LOCK_START}{os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        # Deleted while the lock is held: a waiting process sees that the file is gone, and creates another one. Where the
        # folder was deleted or moved in the meantime, another process may hold a lock of the same name.
        with suppress(OSError):
            if own is not None and os.path.samestat(own, path.lstat()):
                path.unlink()
        held.release()


def _check_lock(path: Path) -> None:
    """Check that a lock file, which will be deleted, is not of another program. After a kill, the file may be empty."""
    try:
        content = read_plain(path, _MAX_NAME).strip(b"\0")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if content and not content.startswith(_LOCK_START.encode()):
        raise IntegrityError(
            str(path),
            ["the file is of another program, and not a lock"],
            hint=f"look at {path}, and move or delete the file",
        )


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock. Nothing is changed. False on a system that does not say this."""
    if fcntl is None:
        return False
    try:
        handle = open_plain(path)
    except (FileNotFoundError, IntegrityError, PermissionError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


_LOCK_START = "process "


def _acquire(held: Any, path: Path, seconds: float) -> os.stat_result | None:
    """Acquire a lock. Return the status of the lock file, or None where the file is gone already."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            make_folder(path.parent)
            os.close(
                os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
            )  # filelock waits where the file cannot be created
            held.acquire(timeout=seconds, poll_interval=0.05)
        except (FileNotFoundError, FileExistsError):  # another process has just deleted the empty folder
            if attempt == MAX_ATTEMPTS - 1:
                raise
        except OSError as error:
            # The name of the lock means nothing to the reader of the message.
            if error.filename == str(path):
                error.filename = str(path.parent)
            raise
        else:
            break
    with suppress(OSError):
        return path.lstat()
    return None


def _holder(path: Path) -> str:
    """Return the name of the process that holds a lock."""
    with suppress(OSError, IntegrityError):
        return read_plain(path, _MAX_NAME).decode(errors="replace") or "another process"
    return "another process"


_MAX_NAME = 200


class FileLock:
    """A lock between the processes of a machine, released by the system when the holder dies.

    For processes that share memory: an acquisition with the release takes a microsecond or two. For folders that may be
    on a network, use `lock`. A forked process opens the file again, so that parent and child exclude each other. Not
    reentrant, and not for threads.

    Args:
        path: A file that exists as long as any process may open the lock.

    Raises:
        InvalidArgumentError: On a system without `fcntl`.
    """

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise InvalidArgumentError("memory cannot be shared between processes on this system, which has no fcntl")
        self.path = path
        self._process = -1
        self._handle = -1

    def open(self) -> None:
        """Open the file in this process, after which the file may be removed."""
        if self._process != os.getpid():
            # A descriptor inherited by fork shares the lock of the parent: both processes would hold the lock at once,
            # and if the parent died, the open copy would hold the lock forever.
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._process = os.getpid()

    def acquire(self) -> None:
        """Wait until the lock is free, and acquire the lock."""
        self.open()
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the lock."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def __del__(self, getpid: Callable[[], int] = os.getpid, close: Callable[[int], None] = os.close) -> None:
        # The functions are arguments because the names of a module may be gone when the interpreter exits.
        if self._process == getpid():
            close(self._handle)
