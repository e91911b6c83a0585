"""Temporary folders that go with the process that made them, also if it is killed.

    <temporary folder>/datasets_rl_scratch_.../owner.lock     locked by every process that uses the folder

A process holds a shared lock on `owner.lock` as long as it may use the folder. The kernel frees it when the process dies,
however it dies. A process that gets the exclusive lock therefore knows that no other one uses the folder: process ids,
which the system gives again and which mean nothing in another container, play no part. A forked process inherits the
lock, and one that gets the folder in a pickle takes it itself.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from datasets_rl.disk import remove_tree

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested for where it is used

__all__ = ["ScratchFolder", "sweep_scratch"]

_PREFIX = "datasets_rl_scratch_"
_OWNER = "owner.lock"


class ScratchFolder:
    """A temporary folder that is removed with this object, at the latest when its process ends, or by a later sweep.

    A pickle of it, and a forked copy, use the folder too; only the one that made it removes it. The first folder that a
    process makes sweeps away those of dead processes, see `sweep_scratch`.

    Attributes:
        path: The folder.
    """

    _swept = False

    def __init__(self) -> None:
        if not ScratchFolder._swept:
            ScratchFolder._swept = True
            sweep_scratch()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                handle = _lock(self.path / _OWNER)
            except FileNotFoundError:  # a sweep took the folder before it was locked
                continue
            break
        weakref.finalize(self, os.close, handle)
        weakref.finalize(self, _remove, self.path, os.getpid())  # runs before the one above it

    @classmethod
    def of(cls, path: Path) -> ScratchFolder | None:
        """Use a folder that another process has made; None if it is not a scratch folder, which no sweep removes."""
        made = cls.__new__(cls)
        try:
            made.__setstate__({"path": path})
        except FileNotFoundError:
            return None
        return made

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.path = state["path"]
        weakref.finalize(self, os.close, _lock(self.path / _OWNER, make=False))


def _lock(path: Path, *, make: bool = True) -> int:
    """Take the lock of those who use a folder, and return its handle.

    Raises:
        FileNotFoundError: If the folder is gone.
    """
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_SH)
    if not os.fstat(handle).st_nlink:  # a sweep had the lock, and has removed the folder
        os.close(handle)
        raise FileNotFoundError(path)
    return handle


def sweep_scratch(folder: Path | str | None = None) -> int:
    """Remove the scratch folders of processes that are dead.

    Folders that a living process uses stay, and so do those that a user has named or asked to keep: they have no owner.

    Args:
        folder: Where scratch folders lie; the system's temporary folder by default.

    Returns:
        The bytes freed on the disk.
    """
    if fcntl is None:  # without locks, nothing tells a living owner from a dead one
        return 0
    with os.scandir(tempfile.gettempdir() if folder is None else folder) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX) and _is_mine(entry)]
    return sum(map(_sweep, found))


def _is_mine(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:  # it has just gone
        return False


def _sweep(folder: Path) -> int:
    """Remove a scratch folder if no process uses it, and return the bytes freed."""
    with suppress(OSError):
        # The process that made it died at once; one that is still making it makes another.
        folder.rmdir()
        return 0
    try:
        handle = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        freed = sum(path.lstat().st_blocks * 512 for path in folder.iterdir())
        remove_tree(folder)
    except OSError:  # it is used
        return 0
    finally:
        os.close(handle)
    return freed


def _remove(folder: Path, owner: int) -> None:
    """Remove a scratch folder; a forked process that ends leaves it to the one that made it."""
    if os.getpid() == owner:
        remove_tree(folder)
