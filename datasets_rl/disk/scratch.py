"""Temporary folders that are removed with the process, even if the process is killed.

    <temporary folder>/datasets_rl_scratch_.../owner.lock     locked by every process that uses the folder

A process holds a shared lock on `owner.lock` for as long as the process may use the folder. The kernel releases the
lock when the process dies for any reason. A process that acquires the exclusive lock therefore knows that no other
process uses the folder. Process ids would not work: the system reuses process ids, which also differ between
containers. A forked process inherits the lock, and a process that receives the folder in a pickle acquires a separate
lock.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from datasets_rl.disk.deletion import remove_tree
from datasets_rl.errors import InvalidArgumentError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # callers test for None

_PREFIX = "datasets_rl_scratch_"
_OWNER = "owner.lock"


class ScratchFolder:
    """A temporary folder that is removed with this object, when the process ends, or by a later sweep.

    Pickled and forked copies use the same folder. Only the creator removes it. The first folder that a process creates
    triggers a sweep of the folders of dead processes, see `sweep_scratch`.

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
                handle = _lock_folder(self.path / _OWNER)
            except FileNotFoundError:  # a sweep removed the folder before the lock
                continue
            break
        weakref.finalize(self, os.close, handle)
        self._remove = weakref.finalize(self, _remove_folder, self.path, os.getpid())  # runs before the finalizer above

    @classmethod
    def containing(cls, path: Path) -> ScratchFolder | None:
        """Use a folder of another process, or return None if it is not a scratch folder, which no sweep removes."""
        if not path.name.startswith(_PREFIX):  # other programs have files of the name, too
            return None
        scratch = cls.__new__(cls)
        try:
            scratch.__setstate__({"path": path})
        except InvalidArgumentError:
            return None
        return scratch

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *details: object) -> None:
        self._remove()

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.path = state["path"]
        try:
            handle = _lock_folder(self.path / _OWNER, create=False)
        except FileNotFoundError:
            raise InvalidArgumentError(
                f"{self.path}, the temporary folder of a pickled storage, was deleted with the storage",
                hint="save the buffer with `dumps`, or name a folder that stays with scratch_dir",
            ) from None
        weakref.finalize(self, os.close, handle)


def _lock_folder(path: Path, *, create: bool = True) -> int:
    """Acquire the shared lock of the users of a folder, and return the file descriptor.

    Raises:
        FileNotFoundError: If the folder no longer exists.
    """
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_SH)
    if not os.fstat(handle).st_nlink:  # a sweep held the lock and removed the folder
        os.close(handle)
        raise FileNotFoundError(path)
    return handle


def sweep_scratch(folder: Path | str | None = None, *, dry_run: bool = False) -> dict[Path, int]:
    """Remove the scratch folders of dead processes.

    Folders in use by a living process stay. Folders that a user has named or asked to keep also stay: they have no lock
    file.

    Args:
        folder: The parent folder of the scratch folders. By default the system's temporary folder.
        dry_run: Only return what would be removed.

    Returns:
        The folders that were removed, each with the number of bytes on the disk.
    """
    if fcntl is None:  # without locks, a living owner cannot be distinguished from a dead owner
        return {}
    with os.scandir(tempfile.gettempdir() if folder is None else folder) as entries:
        folders = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX) and _belongs_to_user(entry)]
    sizes = {path: _remove_abandoned(path, dry_run=dry_run) for path in sorted(folders)}
    return {path: size for path, size in sizes.items() if size is not None}


def _belongs_to_user(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:  # removed in the meantime
        return False


def _remove_abandoned(folder: Path, *, dry_run: bool) -> int | None:
    """Remove a scratch folder that no process uses, and return the bytes freed, or None if the folder stays."""
    with suppress(OSError):
        # Empty: the creator died before locking the folder, or is alive and retries with a new folder.
        if not dry_run:
            folder.rmdir()
            return 0
        if not any(folder.iterdir()):
            return 0
    try:
        handle = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        freed = sum(path.lstat().st_blocks * 512 for path in folder.iterdir())
        if not dry_run:
            remove_tree(folder)
    except OSError:  # in use
        return None
    finally:
        os.close(handle)
    return freed


def _remove_folder(folder: Path, owner: int) -> None:
    """Remove a scratch folder. A forked process that ends leaves the folder to the parent."""
    if os.getpid() == owner:
        with suppress(FileNotFoundError):  # the sweep of another process has removed the emptied folder
            remove_tree(folder)
