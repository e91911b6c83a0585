"""Atomic commits of files and folders, locks and free space: the only code that renames, fsyncs or locks.

A file or a folder is written under a temporary name next to its target and then renamed to the target, or exchanged
with the existing one, so that a reader sees the old version or the new one, and never a part of either. Contents are
fsynced before the rename and the parent folder after it, so that this also holds after a power cut.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets_rl.errors import DiskFullError, IntegrityError, InvalidArgumentError, LockedError
from datasets_rl.remedy import Remedy

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested for where it is used

MANIFEST_FILE = "manifest.json"
"""The file that is written last: a folder without it is not a dataset."""
RECORDED_FOLDER = ".recorded"
"""The folder of recordings, next to the datasets."""

WORK_FOLDER = ".work"
"""The folder of unfinished builds, owner files and recorded changes, next to the datasets."""
VERSIONS_FOLDER = ".versions"
"""The folder of earlier versions, next to the datasets."""
_NESTED_LEVELS = ("*/", "*/*/", "*/*/*/")
"""The levels below a folder at which a dataset may be stored whose id has slashes."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
        DiskFullError: If there is no space left.
    """
    free_temporary_files(target.parent, target.name)
    temporary = target.with_name(f".{target.name}.{_process_name()}.tmp")
    try:
        with disk_errors(target.parent, hint=hint), temporary.open("wb") as stream:
            stream.write(content)
        publish_file(temporary, target, keep)
    except OSError as error:
        # The temporary name means nothing to the reader of the message.
        if error.filename is not None:
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_nesting(folder: Path) -> None:
    """Check that a dataset would not contain another one, nor be inside one.

    Otherwise verifying, replacing or removing one of them would affect the other.

    Args:
        folder: The folder in which the dataset is to be stored; it may exist.

    Raises:
        InvalidArgumentError: If a parent folder is a dataset, or a folder below is one while `folder` itself is not.
    """
    outer = next((parent for parent in folder.resolve().parents if _is_dataset(parent)), None)
    if outer is not None:
        raise InvalidArgumentError(
            f"{folder} is inside a dataset: {outer}", hint="choose a name or a folder that is not below that one"
        )
    if not (folder / MANIFEST_FILE).exists():
        manifests = chain.from_iterable(folder.glob(f"{levels}{MANIFEST_FILE}") for levels in _NESTED_LEVELS)
        inner = next((path.parent for path in manifests if _is_dataset(path.parent)), None)
        if inner is not None:
            raise InvalidArgumentError(
                f"{folder} has a dataset inside it: {inner}",
                hint="choose a name or a folder that is not above that one",
            )


def _is_dataset(folder: Path) -> bool:
    """Return whether a folder has a manifest of this package; other programs use the same file name."""
    try:
        return "format_version" in json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, RecursionError, TypeError, ValueError):
        return False


def free_temporary_files(folder: Path, name: str = "*") -> None:
    """Delete the temporary files of processes that died in `write_text`."""
    pattern = f"{glob.escape(name.rstrip('*'))}{'*' * name.endswith('*')}"
    for path in folder.glob(f".{pattern}.*.tmp"):
        if _is_of_dead_process(path.name.removesuffix(".tmp")):
            path.unlink(missing_ok=True)


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
        target.parent.mkdir(parents=True, exist_ok=True)
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


def replace_folder(build: Path, target: Path, former: Path) -> None:
    """Replace a folder by a finished one, atomically where the file system can exchange two names.

    Args:
        build: The finished folder; after an exchange, the replaced one.
        target: The folder to replace. It need not exist, and may be empty.
        former: The path to which the replaced folder is moved where names cannot be exchanged.
    """
    if (target / MANIFEST_FILE).is_file():
        if exchange_folders(build, target):
            return
        move_path(target, former)
    elif target.is_dir():
        target.rmdir()
    move_path(build, target)


def folder_identity(folder: Path) -> str | None:
    """Return the identity of the dataset in a folder, the SHA-256 of its manifest; None if there is no dataset.

    The manifest has the digest of every file, so that equal identities mean equal bytes.
    """
    path = folder / MANIFEST_FILE
    try:
        # Reading a named pipe would block, so only a regular file counts as a manifest.
        return hashlib.sha256(path.read_bytes()).hexdigest() if is_plain_file(path) else None
    except (FileNotFoundError, NotADirectoryError):
        return None


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


def read_plain(path: Path) -> bytes:
    """Return the bytes of a hidden file, which others may have replaced: links and pipes are never opened.

    Raises:
        IntegrityError: If it is not a plain file.
        FileNotFoundError: If there is none.
    """
    with os.fdopen(_open_plain(path), "rb") as stream:
        return stream.read()


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


TRASH_FOLDER = ".rlds-trash"
"""The folder of files that are being deleted, next to the datasets."""


def discard(path: Path, root: Path) -> None:
    """Delete a file or a folder that others may be opening, and the parent folders below `root` that become empty.

    It is first renamed, atomically, into the trash folder of `root`. Files that cannot be deleted now, because another
    process has them open or deletes them too, are left to `empty_trash`.

    Args:
        path: The file or folder; it need not exist.
        root: A folder above it, on the same file system; no folder between the two may be a link.

    Raises:
        IntegrityError: If the path is not below the root, or a link is between them; nothing is deleted then.
    """
    trash = root / TRASH_FOLDER
    trashed = trash / uuid4().hex
    while os.path.lexists(path):
        check_kind(trash, folder=True)
        trash.mkdir(exist_ok=True)
        try:
            _rename_below(path, trashed, root)
        except FileNotFoundError:
            continue  # another process has just deleted the empty trash folder
        with suppress(OSError):
            sync_file(path.parent)
            remove_tree(trashed, root)
            trash.rmdir()
        break
    remove_empty_parents(path, root)


def _rename_below(path: Path, target: Path, root: Path) -> None:
    """Rename a file or a folder, between folders below a root to which no link leads."""
    with _opened_folder(path.parent, root) as above, _opened_folder(target.parent, root) as folder:
        if isinstance(above, Path) or isinstance(folder, Path):
            os.replace(path, target)
        else:
            os.rename(path.name, target.name, src_dir_fd=above, dst_dir_fd=folder)


def remove_empty_parents(path: Path, root: Path) -> None:
    """Delete the folders between a path and the root that are empty."""
    with suppress(OSError):
        for parent in path.parents:
            if parent == root or root not in parent.parents:
                return
            parent.rmdir()


def empty_trash(trash: Path) -> None:
    """Delete a trash folder and the files that dead processes left in it.

    Raises:
        IntegrityError: If it is a link.
    """
    with suppress(OSError):
        for name in os.listdir(trash):  # noqa: PTH208 - the paths of a link's entries are never used
            with suppress(OSError):  # another process deletes it
                remove_tree(trash / name, trash.parent)
        trash.rmdir()


def tree_bytes(path: Path) -> int:
    """Return the size of a file, or the sum of the sizes of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(item.lstat().st_size for item in path.rglob("*") if item.is_file())


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
    """Convert the "no space left" errors of the system, raised in the block, to `DiskFullError`, which names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(path, None, free_bytes(path), os.strerror(error.errno), hint=hint) from error
        raise


@contextmanager
def lock(
    path: Path, name: str, *, wait: float = 3600.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold a lock between processes for the duration of the block: a file that names its owner.

    The owner file contains the PID and the host of its owner, and is created atomically with this content. If the owner
    was a process of this host that died, in this container or another one, or if the file names no owner, the lock is
    taken over at once. If the owner is of another host, this waits: some network file systems do not share locks
    between hosts.

    Args:
        path: The owner file; its folder is created.
        name: The name of the locked resource, for messages.
        wait: Seconds to wait for another owner.
        waiting: Called once with the name of the owner if this has to wait.

    Raises:
        LockedError: If another process still holds the lock after `wait` seconds.
        IntegrityError: If the path is not a plain file.
    """
    deadline = time.monotonic() + wait
    for claim in path.parent.glob(f"{glob.escape(path.name)}.*"):
        _free_claim(claim)
    while (handle := _create_owner_file(path)) is None:
        if not os.path.lexists(path):
            continue  # its owner has just released it
        if time.monotonic() >= deadline:
            raise LockedError(name, _read_owner(path), path)
        if waiting is not None:
            waiting(_read_owner(path))
            waiting = None
        time.sleep(0.05)
    _HELD.add(handle)
    try:
        yield
    finally:
        if handle in _HELD:  # False in a forked child
            with suppress(OSError):
                if os.path.samestat(path.stat(), os.fstat(handle)):
                    path.unlink()
            _HELD.remove(handle)
            os.close(handle)


def free_owner_files(folder: Path, *, dry_run: bool = False) -> list[Path]:
    """Delete the owner files in a folder whose process is dead, except in a dry run; return those with a live owner."""
    for path in sorted(folder.glob(f"*{_CLAIM}")) if not dry_run else ():
        _free_claim(path)
    owners = filter(is_plain_file, sorted(folder.glob("*.lock")))
    return [path for path in owners if not _free_if_dead(path, dry_run=dry_run)]


def _free_claim(path: Path) -> None:
    """Delete a temporary owner file of a dead process."""
    if path.name.endswith(_CLAIM) and _is_of_dead_process(path.name.removesuffix(_CLAIM)):
        path.unlink(missing_ok=True)


_HELD: set[int] = set()
"""The file descriptors of the owner files of this process."""


def _close_inherited_locks() -> None:
    """Close the owner files in a forked child, which would otherwise hold the locks after the death of its parent."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)

_CLAIM = ".claim"
_MAX_ATTEMPTS = 20
_TORN_SECONDS = 2.0


def _create_owner_file(path: Path) -> int | None:
    """Create the owner file of this process, and return its file descriptor; None if a live process has the lock."""
    if os.path.lexists(path) and not _free_if_dead(path):
        return None
    content = "\n".join(
        [str(os.getpid()), socket.gethostname(), str(process_start_time(os.getpid())), *machine_identity(), ""]
    ).encode()
    claim = path.with_name(f"{path.name}.{uuid4().hex[:8]}.{_process_name()}{_CLAIM}")
    handle = _create_claim(claim, path)
    created = False
    try:
        if fcntl is not None:
            # The system releases this lock when the process dies, also for processes in other containers, whose PIDs
            # cannot be looked up.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, content)
        created = _link_claim(claim, path)
    except OSError as error:
        raise _disk_error(error, path) from error
    finally:
        claim.unlink(missing_ok=True)
        if not created:
            os.close(handle)
    return handle if created else None


def _create_claim(claim: Path, path: Path) -> int:
    """Create a file beside a lock, and return its file descriptor."""
    attempt = 1
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            # Another process may have deleted the empty folder in between; in /proc, nothing can ever be created.
            if not isinstance(error, FileNotFoundError) or attempt == _MAX_ATTEMPTS:
                raise _disk_error(error, path) from error
            attempt += 1


def _link_claim(claim: Path, path: Path) -> bool:
    """Link a temporary file to the name of the owner file atomically; return False if that name exists."""
    try:
        os.link(claim, path)
    except (FileExistsError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in _NO_EXCHANGE | {errno.EMLINK, errno.EXDEV}:
            raise
        # Without hard links an empty file reserves the name first; a process that dies in between leaves it empty.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        os.replace(claim, path)
    return True


def _disk_error(error: OSError, path: Path) -> Exception:
    if error.errno in _FULL:
        return DiskFullError(path, None, free_bytes(path), os.strerror(error.errno or 0))
    return error


def may_be_owned(path: Path) -> bool:
    """Return whether the process of an owner file may be alive, without locking or changing the file.

    Of a process on another host, or in another container, this cannot be known: it may be.
    """
    try:
        content, written = read_plain(path), path.lstat().st_mtime
    except (IntegrityError, OSError):
        return False
    lines = content.decode(errors="replace").splitlines()
    if [*lines[1:2], *lines[3:5]] not in ([], [socket.gethostname(), *machine_identity()]):
        return True
    return bool(content) and _is_alive(content, written)


def _free_if_dead(path: Path, *, dry_run: bool = False) -> bool:
    """Delete an owner file whose process is dead; return whether the file is gone, or would be in a dry run."""
    try:
        with os.fdopen(_open_plain(path), "rb") as stream:
            # The lock is held by a live owner, or by another process that is about to delete the file.
            if _is_held(stream.fileno()) or _is_alive(stream.read(4096), os.fstat(stream.fileno()).st_mtime):
                return False
            if dry_run:
                return True
            # Another process may have replaced the file since it was opened.
            if fcntl is not None:
                if os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                    path.unlink()
                return True
        path.unlink()
    except FileNotFoundError:
        pass
    return True


def _is_held(handle: int) -> bool:
    """Return whether another process holds the lock of a file; if not, this process locks it until it is closed."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        pass
    return False


def _is_alive(content: bytes, written: float) -> bool:
    """Return whether the owner named in an owner file may be alive, given that no process holds the file's lock.

    same kernel and PID namespace     the PID is looked up
    same kernel or host name          dead, because the lock is free
    another host                      alive, because it cannot be checked
    """
    lines = content.decode(errors="replace").splitlines()
    if len(lines) < 2 or not lines[0].isdigit():
        return 0 <= time.time() - written < _TORN_SECONDS
    this_machine = machine_identity()
    if (lines[3:5] or this_machine) == this_machine and lines[1] == socket.gethostname():
        start_time = process_start_time(int(lines[0]))
        return start_time is not None and (len(lines) < 3 or lines[2] in {start_time, ""})
    return lines[3:4] != this_machine[:1] and lines[1] != socket.gethostname()


@cache
def machine_identity() -> list[str]:
    """Return the boot id of this kernel and the PID namespace of this process; an unknown one is an empty string."""
    boot_id, pid_namespace = "", ""
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        pid_namespace = str(Path("/proc/self/ns/pid").readlink())
    return [boot_id, pid_namespace]


def _process_name() -> str:
    """Return a name of this process that is unique among hosts and containers."""
    machine_id = hashlib.sha256(" ".join([socket.gethostname(), *machine_identity()]).encode()).hexdigest()[:8]
    return f"{machine_id}-{os.getpid()}"


def _is_of_dead_process(name: str) -> bool:
    """Return whether a file name ends with the name of a dead process of this host."""
    machine_id, _, pid = name.rpartition(".")[2].rpartition("-")
    this_machine_id = _process_name().partition("-")[0]
    return machine_id == this_machine_id and pid.isdigit() and process_start_time(int(pid)) is None


def process_start_time(pid: int) -> str | None:
    """Return the start time of a process of this host, which distinguishes it from later processes with the same PID.

    Returns:
        The start time in clock ticks since boot; None if there is no such process or if it is a zombie; "" where the
        system does not report start times.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        # The program name, in parentheses, may contain any character; the state is the field after it.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    if Path("/proc/self/stat").exists():
        return None
    return "" if _exists(pid) else None


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # on Windows os.kill ends the process for every signal
        import ctypes

        handle = ctypes.windll.kernel32.OpenProcess(0x1000, 0, pid)
        if handle:
            ctypes.windll.kernel32.CloseHandle(handle)
        return bool(handle)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


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


def _read_owner(path: Path) -> str:
    process, host = "unknown", socket.gethostname()
    with suppress(OSError, ValueError, IntegrityError):
        process, host, *_ = read_plain(path).decode(errors="replace").splitlines()
    return f"process {process} on {host}"
