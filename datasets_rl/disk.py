"""Atomic commits of files and folders, locks and free space: the only code that renames, fsyncs or locks.

A file or a folder is made beside its place and moved there in one rename, so that a reader sees the old one, the new
one or none, and never a part. Contents are fsynced before the rename and the parent folder after it, so that this
holds after a power cut too.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import SoftFileLock, Timeout

from datasets_rl.errors import BadArgument, DiskFull, Locked

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested for where it is used

__all__ = [
    "MANIFEST_FILE",
    "FileLock",
    "discard_folder",
    "disk_errors",
    "free_bytes",
    "lock",
    "publish_file",
    "publish_folder",
    "recover_folder",
    "remove_tree",
    "require_free",
    "sync",
    "tree_bytes",
    "write_json",
    "write_text",
]

MANIFEST_FILE = "manifest.json"
"""The file that comes last: a folder without it is no dataset."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's list of names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        # Windows cannot fsync a folder, nor a file that is open for reading; there the rename alone orders the commit.
        with suppress(OSError) if os.name == "nt" else disk_errors(path.parent):
            os.fsync(handle)
    finally:
        os.close(handle)


def publish_file(temporary: Path, target: Path) -> None:
    """Move a finished file to its place in one step; a file that is there already is replaced."""
    sync(temporary)
    os.replace(temporary, target)
    sync(target.parent)


def write_text(target: Path, text: str) -> None:
    """Write a whole text file, or leave what was there."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with disk_errors(target.parent), temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
        publish_file(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file in the way of `write_text`; NaN and infinity are refused, as JSON does not have them."""
    write_text(target, json.dumps(value, indent=1, allow_nan=False) + "\n")


def publish_folder(build: Path, target: Path, *, aside: Path, keep: Path | None = None) -> None:
    """Move a finished folder to its place.

    A folder that is there already goes to `aside` first, and is deleted when the new one stands, or moved to `keep`. A
    process that dies between the two renames leaves `aside`, which `recover_folder` brings back.
    """
    for path in sorted(build.rglob("*")):
        sync(path)
    sync(build)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        remove_tree(aside)
        os.replace(target, aside)
        sync(aside.parent)
    os.replace(build, target)
    sync(target.parent)
    _put_aside(aside, keep)


def _put_aside(replaced: Path, keep: Path | None) -> None:
    if keep is not None and replaced.exists():
        remove_tree(keep)
        keep.parent.mkdir(parents=True, exist_ok=True)
        os.replace(replaced, keep)
    remove_tree(replaced)


def recover_folder(target: Path, *, aside: Path, keep: Path | None = None) -> None:
    """Undo what a process that died inside `publish_folder` left: the replaced folder returns, or goes where it was to."""
    if not aside.exists():
        return
    if target.exists():
        _put_aside(aside, keep)
    else:
        os.replace(aside, target)
        sync(target.parent)


def remove_tree(path: Path) -> None:
    """Delete a file or a folder with all that is in it; nothing there is fine. Links are deleted, never followed."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.exists():
        shutil.rmtree(path)


def discard_folder(target: Path, *, by_way_of: Path) -> None:
    """Delete a folder that others may be opening: it leaves its place in one step, so that nobody finds half of it."""
    by_way_of.parent.mkdir(parents=True, exist_ok=True)
    remove_tree(by_way_of)
    os.replace(target, by_way_of)
    sync(target.parent)
    remove_tree(by_way_of)


def tree_bytes(path: Path) -> int:
    """Return the sum of the sizes of all files below a folder."""
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())


def free_bytes(path: Path) -> int:
    """Return the bytes that a file below `path` could still take; `path` itself need not exist yet."""
    for folder in (path, *path.absolute().parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return 0


def require_free(path: Path, needed: int, why: str = "", *, hint: str = "") -> None:
    """Check that `needed` bytes fit below `path`.

    Raises:
        DiskFull: If they do not.
    """
    free = free_bytes(path)
    if needed > free:
        raise DiskFull(path, needed, free, why, hint=hint)


@contextmanager
def disk_errors(path: Path, *, hint: str = "") -> Iterator[None]:
    """Turn the system's "no space left" inside the block into `DiskFull`, which names the place."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(path, None, free_bytes(path), os.strerror(error.errno), hint=hint) from error
        raise


@contextmanager
def lock(
    path: Path, what: str, *, wait: float = 3600.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold an owner file for the length of the block, so that two processes do a piece of work once.

    The file names its owner (process and host) instead of relying on flock, which succeeds silently on Lustre, GPFS
    and NFS. The file of a process that died on this host is taken over; that of another host is waited for.

    Args:
        path: The owner file; its folder is made.
        what: What is locked, for messages.
        wait: Seconds to wait for another owner.
        waiting: Called once with the owner's name if there is one to wait for.

    Raises:
        Locked: If the other owner is still there after `wait` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    owner_file = SoftFileLock(path, is_singleton=False)
    try:
        owner_file.acquire(timeout=0)
    except Timeout:
        if waiting is not None and wait > 0:
            waiting(_owner(owner_file))
        try:
            owner_file.acquire(timeout=wait, poll_interval=0.1)
        except Timeout:
            raise Locked(what, _owner(owner_file), path) from None
    try:
        yield
    finally:
        owner_file.release()


class FileLock:
    """Held by one process at a time, and free again when that process dies; taken and given back in a microsecond or two.

    For processes of one machine that share memory; `lock` is for folders that may lie on a network. A process that is
    forked opens the file anew, so that it excludes its parent. Not reentrant, and not for threads.

    Args:
        path: A file that exists as long as any process may take the lock.

    Raises:
        BadArgument: On a system without `fcntl`.
    """

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise BadArgument("memory cannot be shared between processes on this system: it has no fcntl")
        self.path = path
        self._process = -1
        self._handle = -1

    def open(self) -> None:
        """Open the file in this process, after which it may be removed."""
        if self._process != os.getpid():
            # The handle that came along by a fork is the parent's: with it, both would hold the lock at once, and if the
            # parent dies with the lock held, an open copy of the handle would hold it for good.
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._process = os.getpid()

    def acquire(self) -> None:
        """Wait for the lock and take it."""
        self.open()
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._process == os.getpid():
            os.close(self._handle)


def _owner(owner_file: SoftFileLock) -> str:
    process, host = "unknown", socket.gethostname()
    with suppress(OSError, ValueError):
        process, host, *_ = Path(owner_file.lock_file).read_text(encoding="utf-8", errors="replace").splitlines()
    return f"process {process} on {host}"
