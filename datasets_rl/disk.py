"""Atomic commits of files and folders, locks and free space: the only code that renames, fsyncs or locks.

A file or a folder is written under a temporary name next to its target and then renamed to the target, or exchanged
with the existing one, so that a reader sees the old version or the new one, and never a part of either. Contents are
fsynced before the rename and the parent folder after it, so that this also holds after a power cut.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from datasets_rl.errors import (
    DiskFullError,
    FileTooLargeError,
    IntegrityError,
    InvalidArgumentError,
    LockedError,
    NotWritableError,
    Remedy,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested for where it is used

CURRENT_FILE = "CURRENT"
"""The file that names the current version of a dataset."""
MANIFEST_FILE = "manifest.json"
"""The file that is written last: a folder without it is not a dataset."""
FORMAT_NAME = "datasets-rl/ted"
"""The name of the format in a manifest."""
MAX_MANIFEST_BYTES = 256 << 20
"""More than the manifest of a dataset with a million files has."""
STATE_FILE = "state.json"
"""The file of a checkpoint that is written last."""
TRASH_NAME = re.compile("trash-[0-9a-f]{32}")
"""The name of a folder that is being deleted."""
_NESTED_LEVELS = ("*/", "*/*/", "*/*/*/")
"""The levels below a folder at which a dataset may be stored whose id has slashes."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


def expand_home(path: Path | str) -> Path:
    """Return a path in which ``~`` at its beginning is replaced by the home folder of a user.

    Raises:
        InvalidArgumentError: If that folder is unknown.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0]
        problem = "HOME is not set" if user == "~" else f"there is no user {user[1:]}"
        raise InvalidArgumentError(
            f"{path} is not a path: {user} means a home folder, and {problem}",
            hint=f"write the whole path, or ./{path} for a folder of that name",
        ) from error


def sync_file(path: Path) -> None:
    """Flush the bytes of a file, or the entries of a folder, to the disk (fsync)."""
    # Windows cannot open a folder, nor fsync a file that is open for reading; there the rename alone orders the commit.
    with suppress(OSError) if os.name == "nt" else disk_errors(path.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def publish_file(temporary: Path, target: Path, keep: Path | None = None) -> None:
    """Rename a finished file to its target atomically; an existing file is replaced, or renamed to `keep` before."""
    sync_file(temporary)
    if keep is not None and target.exists():
        os.replace(target, keep)
    os.replace(temporary, target)
    sync_file(target.parent)


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a file has these bytes and no others; of another one no more is read than needed."""
    if not path.is_file() or path.stat().st_size != len(content):
        return False
    with path.open("rb") as stream:
        return stream.read(len(content) + 1) == content


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically: after a failure, the previous file is unchanged."""
    write_bytes(target, text.encode())


def write_bytes(target: Path, content: bytes, *, keep: Path | None = None, hint: str | Remedy = "") -> None:
    """Write a file atomically: after a failure, the previous file is unchanged.

    Args:
        target: The file.
        content: Its bytes.
        keep: The name under which the previous file is kept.
        hint: What to do next if the disk is full.

    Raises:
        DiskFullError: If the disk is full.
    """
    with _temporary_file(target) as temporary:
        try:
            with disk_errors(target.parent, hint=hint), temporary.open("wb") as stream:
                stream.write(content)
            publish_file(temporary, target, keep)
        except OSError as error:
            # The temporary name means nothing to the reader of the message.
            if error.filename is not None:
                error.filename, error.filename2 = str(target), None
            raise


@contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """Give the name of a file that becomes `target`; it is deleted afterward, as are those of processes that died."""
    free_temporary_files(target.parent, target.name)
    temporary = target.with_name(f".{target.name}@{process_name()}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def rewrite_file(path: Path, content: bytes) -> None:
    """Replace the content of a file of the user's, atomically; a link stays a link, and the file keeps mode and owner.

    Raises:
        DiskFullError: If the disk is full; the file is unchanged.
        NotWritableError: If the process may not write there.
    """
    target = path.resolve()
    status = target.stat() if target.exists() else None
    with _temporary_file(target) as temporary, disk_errors(target):
        # Only the owner may read it until it has the mode of the file, which may hold secrets.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o666 if status is None else 0o600), "wb") as stream:
            stream.write(content)
        if status is not None:
            if hasattr(os, "chown") and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.chown(temporary, status.st_uid, status.st_gid)
            temporary.chmod(stat.S_IMODE(status.st_mode))
        publish_file(temporary, target)


def check_nesting(folder: Path) -> None:
    """Check that a folder that a command writes is not inside a version of a dataset, and has none inside it.

    Otherwise verifying, replacing or removing one of them would affect the other.

    Raises:
        InvalidArgumentError: If a parent folder is a version, or a folder below is one while `folder` itself is not.
    """
    check_outside_versions(folder)
    if not (folder / MANIFEST_FILE).exists():
        manifests = chain.from_iterable(folder.glob(f"{levels}{MANIFEST_FILE}") for levels in _NESTED_LEVELS)
        inner = next((path.parent for path in manifests if is_version(path.parent)), None)
        if inner is not None:
            raise InvalidArgumentError(
                f"{folder} has a dataset inside it: {inner}",
                hint="choose a name or a folder that is not above that one",
            )


def check_outside_versions(path: Path) -> None:
    """Check that a file or folder to write is not a version of a dataset, which never changes, nor inside one.

    The same holds for what else a dataset has in its folder, which is deleted with it.

    Raises:
        InvalidArgumentError: If it is.
    """
    if outer := dataset_around(path / "entry"):
        raise InvalidArgumentError(
            f"{path} is inside a dataset: {outer}", hint="choose a name or a folder that is not below that one"
        )


def dataset_around(path: Path) -> Path | None:
    """Return the folder of a dataset that a path is inside of: a version, or raw, recorded or unfinished files."""
    folders = Path(os.path.realpath(path)).parents  # unlike the method of Path, it ends for a link that leads to itself
    return next((one for one in folders if is_version(one) or _is_entry(one)), None)


def _is_entry(folder: Path) -> bool:
    return _ENTRY.fullmatch(folder.name) is not None and is_plain_file(folder.parent / CURRENT_FILE)


_ENTRY = re.compile("(build|trash)-.*|raw(@.*)?|recorded")
"""The names of folders beside the versions of a dataset."""


def is_version(folder: Path) -> bool:
    """Return whether a folder has a manifest of this package; other programs use the same file name."""
    try:
        document = json.loads(read_plain(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES))
    except (IntegrityError, OSError, RecursionError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT_NAME


def free_temporary_files(folder: Path, name: str = "*") -> None:
    """Delete the temporary files of processes that died in `write_text`."""
    for path in temporary_files(folder, name):
        path.unlink(missing_ok=True)


def temporary_files(folder: Path, name: str = "*") -> list[Path]:
    """Return the temporary files of processes that died in `write_text`."""
    pattern = f"{glob.escape(name.rstrip('*'))}{'*' * name.endswith('*')}"
    found = ((path, path.name.removesuffix(".tmp")) for path in folder.glob(f".{pattern}@*.tmp"))
    # Others have hidden files with an @, too.
    return [path for path, name in found if _CLAIM.fullmatch(name) and is_abandoned(path, name)]


def create_file(path: Path, content: bytes) -> None:
    """Create a file together with its content, and the folder above it; what has its name already stays as it is.

    Linux links a file that has its content under its name. Elsewhere, a process that is killed may leave an empty file.

    Raises:
        DiskFullError: If the disk is full.
        NotWritableError: If the process may not write there.
    """
    for attempt in range(_MAX_ATTEMPTS):
        make_folder(path.parent)
        try:
            with suppress(FileExistsError), disk_errors(path.parent), _nameless_file(path) as stream:
                stream.write(content)
                stream.flush()
                if isinstance(stream.name, int):
                    # A folder is named for the file to be linked by its descriptor, which is a link.
                    os.link(f"/proc/self/fd/{stream.name}", path, src_dir_fd=stream.name, follow_symlinks=True)
        except FileNotFoundError:  # another process has just deleted the empty folder
            if attempt == _MAX_ATTEMPTS - 1:
                raise
        else:
            return


def _nameless_file(path: Path) -> IO[bytes]:
    """Open a new file in the folder of a path for writing: without a name if possible, and else under that path."""
    if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):  # noqa: PTH112 - not a path of ours
        with suppress(OSError):  # a file system without such files, for example of a network
            return os.fdopen(os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644), "wb")
    return path.open("xb")


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file atomically; NaN and infinity raise `ValueError`, because JSON does not have them."""
    write_text(target, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything below it to the disk."""
    for path in sorted(folder.rglob("*")):
        sync_file(path)
    sync_file(folder)


def move_path(path: Path, target: Path) -> None:
    """Rename a file or a folder, creating the parent folders of the target."""
    _rename(path, target)
    sync_file(target.parent)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, unless it exists, although other processes delete empty folders.

    Raises:
        NotWritableError: If the process may not create it.
        DiskFullError: If the disk is full.
    """
    with disk_errors(path):
        for _ in range(_MAX_ATTEMPTS):
            # A folder is deleted before another one is created in it, or between the look that finds it and the next.
            with suppress(FileNotFoundError, FileExistsError):
                path.mkdir(parents=True, exist_ok=True)
                return
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # as in /proc, which has the folders of the system alone
            raise NotWritableError(_existing(path), "no folder can be created there") from error


def link_or_copy(path: Path, target: Path) -> None:
    """Hard-link a file that never changes; copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:
        with disk_errors(target):
            shutil.copyfile(path, target)


def _rename(path: Path, target: Path) -> None:
    while True:
        make_folder(target.parent)
        try:
            os.replace(path, target)
        except FileNotFoundError:
            if target.parent.exists() or not os.path.lexists(path):
                raise
            continue  # another process has just deleted the empty folder
        return


def exchange_folders(path: Path, second: Path) -> bool:
    """Exchange the names of two files or folders atomically, so that both names exist at every instant.

    Returns:
        False, with nothing changed, where the kernel or the file system cannot exchange names (NFS, Windows).
    """
    # An audit hook that watches os.rename should see this rename, too.
    sys.audit("os.rename", str(path), str(second), -1, -1)
    swapped = _swap_function()(os.fsencode(path), os.fsencode(second))
    if swapped:
        sync_file(path.parent)
        sync_file(second.parent)
    return swapped


_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})
_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS


@cache
def _swap_function() -> Callable[[bytes, bytes], bool]:
    """Return a function that exchanges two names by the C library, or returns False where the library cannot."""
    import ctypes

    library: Any = None if os.name == "nt" else ctypes.CDLL(None, use_errno=True)
    linux, mac = getattr(library, "renameat2", None), getattr(library, "renamex_np", None)

    def swap(path: bytes, other: bytes) -> bool:
        if linux is not None:
            failed = linux(_AT_FDCWD, path, _AT_FDCWD, other, _EXCHANGE)
        elif mac is not None:
            failed = mac(path, other, _EXCHANGE)
        else:
            return False
        code = ctypes.get_errno()
        if failed and code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), os.fsdecode(path), None, os.fsdecode(other))
        return not failed

    return swap


def publish_folder(build: Path, target: Path) -> None:
    """Rename a finished folder to its target; an existing folder is replaced and deleted."""
    sync_tree(build)
    if target.exists() and not exchange_folders(build, target):
        remove_tree(target)
    if not target.exists():
        move_path(build, target)
    remove_tree(build)


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}
_HAS_DESCRIPTORS = {os.open, os.stat, os.unlink, os.rmdir, os.mkdir, os.rename} <= os.supports_dir_fd
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", os.O_RDONLY)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def check_kind(path: Path, *, folder: bool) -> None:
    """Check that a hidden path of this package is a plain folder, or a plain file, if it exists.

    Raises:
        IntegrityError: If it is something else, such as a link or a named pipe, which others must have put there.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise _kind_error(path, _KINDS.get(stat.S_IFMT(mode), "a device"), "folder" if folder else "file")


def _kind_error(path: Path, kind: str, expected: str) -> IntegrityError:
    return IntegrityError(
        str(path),
        [f"it is {kind}; expected a plain {expected} of this package"],
        hint=f"see what {path} is, and move or delete it",
    )


def is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file, and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_plain(path: Path, limit: int) -> bytes:
    """Return the first bytes of a hidden file, which others may have replaced: links and pipes are never opened.

    Args:
        path: The file.
        limit: The most bytes that are read: one more than the file may have, so that the caller sees that it is larger. What
            others put in its place may be larger than the memory.

    Raises:
        IntegrityError: If it is not a plain file.
        FileNotFoundError: If it does not exist.
    """
    with os.fdopen(_open_plain(path), "rb") as stream:
        return stream.read(limit)


def _open_plain(path: Path) -> int:
    """Open a plain file for reading, without following a link or waiting for a pipe; return its descriptor."""
    check_kind(path, folder=False)
    handle = os.open(path, os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was replaced since
        os.close(handle)
        raise _kind_error(path, "no longer a file", "file")
    return handle


def plain_folders(folder: Path, root: Path) -> list[Path]:
    """Return the folders in a hidden folder below a root, sorted; none if a link leads to it. Links are left out."""
    names = [folder, *folder.parents]
    try:
        if not all(stat.S_ISDIR(path.lstat().st_mode) for path in names[: names.index(root)]):
            return []
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(path: Path, root: Path | None = None) -> None:
    """Delete a file or a folder with its contents, if it exists. Links are deleted, never followed.

    Args:
        path: The file or folder.
        root: A folder above it, by default its parent; no folder between the two may be a link.

    Raises:
        IntegrityError: If the path is not below the root, or a link is between them; nothing is deleted then.
    """
    if not os.path.lexists(path):
        return
    with _opened_folder(path.parent, path.parent if root is None else root) as above:
        _remove_entry(path.name, above)


@contextmanager
def _opened_folder(folder: Path, root: Path) -> Iterator[int | Path]:
    """Open a folder at or below a root, one name after the other, so that no link is followed.

    Yields:
        Its descriptor; where the system has no functions for descriptors, its path.
    """
    names = folder.relative_to(root).parts if folder.is_relative_to(root) else ("..",)
    if ".." in names:
        raise IntegrityError(str(folder), [f"it is not inside {root}"], hint=f"see what {folder} is")
    if not _HAS_DESCRIPTORS:
        if folder.resolve() != root.resolve().joinpath(*names):
            raise _kind_error(folder, "reached by a symbolic link", "folder")
        yield folder
        return
    handle = os.open(root, _FOLDER)
    try:
        for depth, name in enumerate(names, 1):
            try:
                inner = os.open(name, _FOLDER | _NO_LINK, dir_fd=handle)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                    check_kind(root.joinpath(*names[:depth]), folder=True)
                raise
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _remove_entry(name: str, above: int | Path) -> None:
    """Delete an entry of an opened folder, with everything below it."""
    if isinstance(above, Path):
        path = above / name
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
        return
    if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=above)
        return
    for _, folders, files, handle in os.fwalk(name, topdown=False, onerror=_raise, dir_fd=above):
        for file in files:
            os.unlink(file, dir_fd=handle)
        for folder in folders:
            try:
                os.rmdir(folder, dir_fd=handle)
            except NotADirectoryError:  # a link to a folder
                os.unlink(folder, dir_fd=handle)
    os.rmdir(name, dir_fd=above)


def _raise(error: OSError) -> None:
    raise error


def discard(path: Path, root: Path, *, unless: Callable[[], bool] | None = None) -> None:
    """Delete a file or a folder that others may be opening, and the parent folders below `root` that become empty.

    It is first renamed, atomically, to ``trash-<random>`` in `root`. What cannot be deleted now, because another process
    has it open or deletes it too, is left to `empty_trash`.

    Args:
        path: The file or folder; it need not exist.
        root: A folder above it, on the same file system; no folder between the two may be a link.
        unless: Called once it has the new name. If this returns True, it gets its name back, and stays.

    Raises:
        IntegrityError: If the path is not below the root, or a link is between them; nothing is deleted then.
    """
    if not os.path.lexists(path):
        return
    trash = root / f"trash-{uuid4().hex}"
    with suppress(FileNotFoundError):  # another process has just deleted it
        _rename_below(path, trash, root)
    if unless is not None and unless():
        _rename_below(trash, path, root)
        return
    with suppress(OSError):
        sync_file(path.parent)
        remove_tree(trash, root)
    remove_empty_parents(path, root)


def _rename_below(path: Path, target: Path, root: Path) -> None:
    """Rename a file or a folder, between folders below a root to which no link leads."""
    with _opened_folder(path.parent, root) as above, _opened_folder(target.parent, root) as folder:
        if isinstance(above, Path) or isinstance(folder, Path):
            path.rename(target)
        else:
            os.rename(path.name, target.name, src_dir_fd=above, dst_dir_fd=folder)


def empty_trash(folder: Path) -> None:
    """Delete what dead processes left when they deleted something of a folder."""
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - the paths of a link's entries are never used
            if TRASH_NAME.fullmatch(name):
                with suppress(OSError):  # another process deletes it
                    remove_tree(folder / name, folder)


def remove_empty_parents(path: Path, root: Path) -> None:
    """Delete the folders between a path and the root that are empty."""
    with suppress(OSError):
        for parent in path.parents:
            if parent == root or root not in parent.parents:
                return
            parent.rmdir()


def tree_bytes(path: Path) -> int:
    """Return the size of a file, or the sum of the sizes of all files below a folder; 0 for what is deleted in the meantime."""
    if path.is_file():
        return _file_bytes(path.resolve())
    return sum(_file_bytes(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _file_bytes(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_size if path.is_file() else 0
    return 0


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system of `path`, which need not exist yet."""
    for folder in (path, *path.absolute().parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return 0


def require_free(path: Path, needed: int, why: str = "", *, hint: str | Remedy = "") -> None:
    """Check that the file system of `path` has `needed` free bytes.

    Raises:
        DiskFullError: If it does not.
    """
    free = free_bytes(path)
    if needed > free:
        raise DiskFullError(path, needed, free, why, hint=hint)


@contextmanager
def disk_errors(path: Path, *, hint: str | Remedy = "") -> Iterator[None]:
    """Convert the errors of the system in the block that say that nothing can be written at `path`.

    Args:
        path: The file or folder that the block writes.
        hint: What to do next if the disk is full.

    Raises:
        DiskFullError: If the disk is full.
        FileTooLargeError: If no file of that size may be written.
        NotWritableError: If the process may not write there.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(path, None, free_bytes(path), os.strerror(error.errno), hint=hint) from error
        if error.errno == errno.EFBIG:
            raise FileTooLargeError(path, free_bytes(path)) from error
        if error.errno in _REFUSED:
            raise NotWritableError(_existing(path), os.strerror(error.errno)) from error
        raise


def _existing(path: Path) -> Path:
    """Return a path, or the nearest one above it that exists."""
    return next(above for above in (path, *path.absolute().parents) if os.path.lexists(above))


@contextmanager
def lock(
    path: Path, name: str, *, wait: float = 3600.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold a lock between processes for the duration of the block, so that they do not do the same work twice.

    It is a lock of the library filelock, which the system releases when its holder dies. Locks of network file systems
    may lie, so that what is right on the disk must never depend on one.

    Args:
        path: The file of the lock, which names its holder; it is created, with its folder, and deleted at the end.
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
            _acquire(held, path, 0.0)
        except filelock.Timeout:
            if waiting is not None:
                waiting(_holder(path))
            try:
                _acquire(held, path, wait)
            except filelock.Timeout:
                raise LockedError(name, _holder(path), path) from None
    try:
        with suppress(OSError):
            path.write_text(f"{_LOCK_START}{os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        # Deleted while it is held: whoever waits for it sees that the file is gone, and creates another one.
        with suppress(OSError):
            path.unlink()
        held.release()


def _check_lock(path: Path) -> None:
    """Check that a lock, which is deleted at its end, is not a file of another program. One of a killed process may be empty."""
    try:
        content = read_plain(path, _MAX_NAME).strip(b"\0")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if content and not content.startswith(_LOCK_START.encode()):
        raise IntegrityError(
            str(path),
            ["it is a file of another program, and no lock"],
            hint=f"see what {path} is, and move or delete it",
        )


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock. Nothing is changed; False on a system that does not say it."""
    if fcntl is None:
        return False
    try:
        handle = _open_plain(path)
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


def _acquire(held: Any, path: Path, seconds: float) -> None:
    for attempt in range(_MAX_ATTEMPTS):
        try:
            make_folder(path.parent)
            os.close(
                os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
            )  # filelock waits where it cannot create it
            held.acquire(timeout=seconds, poll_interval=0.05)
        except (FileNotFoundError, FileExistsError):  # another process has just deleted the empty folder
            if attempt == _MAX_ATTEMPTS - 1:
                raise
        except OSError as error:
            # The name of the lock means nothing to the reader of the message.
            if error.filename == str(path):
                error.filename = str(path.parent)
            raise
        else:
            return


_MAX_ATTEMPTS = 20


def _holder(path: Path) -> str:
    """Return the name of the process that holds a lock."""
    with suppress(OSError, IntegrityError):
        return read_plain(path, _MAX_NAME).decode(errors="replace") or "another process"
    return "another process"


_MAX_NAME = 200
_IDLE_SECONDS = 600.0
"""Seconds after which a claim of another host that has not grown is abandoned."""
_PROCESS = r"(?P<host>[A-Za-z0-9_]+)-(?P<pid>\d+)(t(?P<start>\d+))?(\.\d+)?"
"""The pattern of the name of a process after an ``@``, see `process_name`; a number tells several claims of it apart."""
_CLAIM = re.compile(rf".*@{_PROCESS}")
_CLAIMED: set[str] = set()
"""The real paths of the folders that this process has claimed."""


def _forget_claims() -> None:
    _CLAIMED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_claims)


def process_name() -> str:
    """Return the name of this process in the names of its files: its host, its PID and, on Linux, when it started.

    The start, in clock ticks since the boot of the system, distinguishes it from another process that gets the PID later.
    """
    pid = os.getpid()
    start = _own_start(pid)
    return f"{_host()}-{pid}t{start}" if start else f"{_host()}-{pid}"


@cache
def _own_start(pid: int) -> str:
    """Return when this process, which has the PID, started; empty where the system does not say it."""
    fields = _process_fields("self") if pid else []
    return fields[_START - 1] if len(fields) >= _START else ""


def _process_fields(pid: int | str) -> list[str]:
    """Return the state of a process of Linux and the fields that follow it; empty without /proc."""
    with suppress(FileNotFoundError, PermissionError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


_START = 20
"""The place of the start of a process after its state: field 22 of /proc/PID/stat, of which the state is field 3."""
_INITIAL_SPACE = 0xEFFFFFFC
"""The number of the PID namespace of processes outside of containers."""


@cache
def _host() -> str:
    """Return the name of the host; in a container with that of its PID namespace, as containers may share the host's name."""
    name = re.sub("[^A-Za-z0-9_]", "_", socket.gethostname())[:64] or "host"
    try:
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - a link whose target is not a path
    except OSError:
        space = _INITIAL_SPACE
    return name if space == _INITIAL_SPACE else f"{name}_{space:x}"


def claims_of(folder: Path) -> list[Path]:
    """Return a folder, if it exists, and its claims by any process, sorted."""
    # What others named like a claim, such as raw@old, is theirs.
    claims = [
        path for path in folder.parent.glob(f"{glob.escape(folder.name)}@*") if unclaimed_name(path) == folder.name
    ]
    return [path for path in (folder, *sorted(claims)) if os.path.lexists(path)]


def claim(folder: Path) -> Path:
    """Take a folder for this process: rename it, or what a dead process took, to ``<name>@<process>``, see `process_name`.

    Two processes that claim the same folder never get the same one, whatever locks they hold.

    Returns:
        The claimed folder; a new one if there is nothing to take. `release` gives it back.

    Raises:
        IntegrityError: If the folder is not a plain folder, or has a link, a pipe or the like inside it.
    """
    base = folder.with_name(f"{folder.name}@{process_name()}")
    names = chain([base.name], (f"{base.name}.{number}" for number in count(1)))
    own = next(path for path in map(base.with_name, names) if os.path.realpath(path) not in _CLAIMED)
    for candidate in filter(is_abandoned, claims_of(folder)):
        check_plain_tree(candidate)
        if candidate != own:
            try:
                os.rename(candidate, own)  # noqa: PTH104 - the name must be free, except for an empty folder
            except OSError:  # another process was faster
                continue
        break
    make_folder(own)
    _CLAIMED.add(os.path.realpath(own))
    return own


def release(claimed: Path, folder: Path | None = None) -> Path:
    """Give a claimed folder back, under its former name or that of `folder`; return its path.

    Where another folder has that name by now, it keeps the name of the claim.
    """
    _CLAIMED.discard(os.path.realpath(claimed))
    target = folder or claimed.with_name(unclaimed_name(claimed))
    try:
        os.rename(claimed, target)  # noqa: PTH104 - the name must be free, except for an empty folder
    except OSError:
        return claimed
    sync_file(target.parent)
    return target


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Take a folder for this process for the duration of the block; see `claim`. It is deleted if it is empty then."""
    own = claim(folder)
    try:
        yield own
    finally:
        with suppress(OSError):
            own.rmdir()
        release(own)


def unclaimed_name(path: Path) -> str:
    """Return the name of a folder without that of the process that claimed it."""
    name, mark, process = path.name.rpartition("@")
    return name if mark and _CLAIM.fullmatch(f"@{process}") else path.name


def is_abandoned(path: Path, name: str = "") -> bool:
    """Return whether no process uses what is named after a process, or whether it names none.

    Of this host the process is looked up. Of another one it cannot be: its file or folder is abandoned if it has not
    grown for ten minutes.

    Args:
        path: The file or folder.
        name: The name that ends with that of the process; by default the name of the path.
    """
    claimed = _CLAIM.fullmatch(name or path.name)
    if claimed is None:
        return True
    if claimed["host"] == _host() and os.name != "nt":
        pid, start = int(claimed["pid"]), claimed["start"] or ""
        if pid == os.getpid() and start in {"", _own_start(pid)}:
            return os.path.realpath(path) not in _CLAIMED
        return not _is_running(pid, start)
    return time.time() - _last_change(path) > _IDLE_SECONDS


def _last_change(path: Path) -> float:
    try:
        return max(item.lstat().st_mtime for item in (path, *path.rglob("*")))
    except FileNotFoundError:  # something was deleted in the meantime
        return time.time()


def _is_running(pid: int, start: str) -> bool:
    """Return whether a process of this host is running; a dead one whose parent has not waited for it is not.

    Args:
        pid: Its PID.
        start: When it started; empty if that is not known. Another process with the PID started later.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is of another user
        pass
    fields = _process_fields(pid)
    if len(fields) < _START:  # the system has no /proc
        return True
    return fields[0] not in "ZX" and start in {"", fields[_START - 1]}


def check_plain_tree(path: Path) -> None:
    """Check that a folder of this package, and everything below it, is a plain folder or a plain file.

    Raises:
        IntegrityError: If there is a link, a pipe, a socket or a device.
    """
    check_kind(path, folder=True)
    for folder, folders, files in os.walk(path):
        for name in folders:
            check_kind(Path(folder, name), folder=True)
        for name in files:
            check_kind(Path(folder, name), folder=False)


class FileLock:
    """A lock between the processes of one machine, released by the system when its holder dies.

    For processes that share memory: acquiring and releasing it takes a microsecond or two. For folders that may be on a
    network, use `lock`. A forked process opens the file again, so that it excludes its parent. Not reentrant, and not
    for threads.

    Args:
        path: A file that exists as long as any process may open the lock.

    Raises:
        InvalidArgumentError: On a system without `fcntl`.
    """

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise InvalidArgumentError("memory cannot be shared between processes on this system: it has no fcntl")
        self.path = path
        self._process = -1
        self._handle = -1

    def open(self) -> None:
        """Open the file in this process, after which it may be removed."""
        if self._process != os.getpid():
            # A descriptor inherited by fork shares the lock of the parent: both processes would hold it at once, and if
            # the parent died with it, the open copy would hold it forever.
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._process = os.getpid()

    def acquire(self) -> None:
        """Acquire the lock, waiting until it is free."""
        self.open()
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the lock."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def __del__(self, getpid: Callable[[], int] = os.getpid, close: Callable[[int], None] = os.close) -> None:
        # The functions are arguments because the names of a module may be gone when the interpreter exits.
        if self._process == getpid():
            close(self._handle)
