"""Atomic commits of files and folders, locks and free space: the only code that renames, fsyncs or locks.

A file or a folder is made beside its place and moved there in one rename, or exchanged with the one that is there, so
that a reader sees the old one or the new one, and never a part of either. Contents are fsynced before the rename and
the parent folder after it, so that this holds after a power cut too.
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

from datasets_rl.errors import DiskFullError, InvalidArgumentError, LockedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested for where it is used

__all__ = [
    "MANIFEST_FILE",
    "TRASH_FOLDER",
    "VERSIONS_FOLDER",
    "WORK_FOLDER",
    "FileLock",
    "check_nesting",
    "discard",
    "disk_errors",
    "empty_trash",
    "exchange",
    "free_bytes",
    "free_owner_files",
    "free_temporary_files",
    "identity",
    "link_or_copy",
    "lock",
    "machine",
    "move",
    "publish_file",
    "publish_folder",
    "remove_tree",
    "require_free",
    "started",
    "sync",
    "sync_tree",
    "tree_bytes",
    "write_json",
    "write_text",
]

MANIFEST_FILE = "manifest.json"
"""The file that comes last: a folder without it is no dataset."""
WORK_FOLDER = ".work"
"""Beside datasets, the folder of unfinished builds, owner files and recorded changes."""
VERSIONS_FOLDER = ".versions"
"""Beside datasets, the folder of their earlier versions."""
_BELOW = ("*/", "*/*/", "*/*/*/")
"""Where an id with slashes may have put a dataset below a folder."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's list of names, are on the disk."""
    # Windows cannot open a folder, nor fsync a file that is open for reading; there the rename alone orders the commit.
    with suppress(OSError) if os.name == "nt" else disk_errors(path.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
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
    free_temporary_files(target.parent, target.name)
    temporary = target.with_name(f".{target.name}.{_process_name()}.tmp")
    try:
        with disk_errors(target.parent), temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
        publish_file(temporary, target)
    except OSError as error:
        # The temporary name means nothing to the reader of the message.
        if error.filename is not None:
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_nesting(folder: Path) -> None:
    """Refuse a dataset inside another one, or around one: checking, replacing or removing one would hit the other.

    Args:
        folder: Where the dataset is to be stored; it may exist.

    Raises:
        InvalidArgumentError: If a folder above it is a dataset, or one below it is while it is not.
    """
    outer = next((one for one in folder.resolve().parents if _is_dataset(one)), None)
    if outer is not None:
        raise InvalidArgumentError(
            f"{folder} lies inside a dataset: {outer}", hint="choose a name or a folder that is not below that one"
        )
    if not (folder / MANIFEST_FILE).exists():
        below = chain.from_iterable(folder.glob(f"{levels}{MANIFEST_FILE}") for levels in _BELOW)
        inner = next((one.parent for one in below if _is_dataset(one.parent)), None)
        if inner is not None:
            raise InvalidArgumentError(
                f"{folder} has a dataset inside it: {inner}",
                hint="choose a name or a folder that is not above that one",
            )


def _is_dataset(folder: Path) -> bool:
    """Return whether a folder has a manifest of ours; other programs have files of this name too."""
    try:
        return "format_version" in json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, RecursionError, TypeError, ValueError):
        return False


def free_temporary_files(folder: Path, name: str = "*") -> None:
    """Delete what processes that died in `write_text` left in a folder."""
    pattern = f"{glob.escape(name.rstrip('*'))}{'*' * name.endswith('*')}"
    for path in folder.glob(f".{pattern}.*.tmp"):
        if _is_of_dead(path.name.removesuffix(".tmp")):
            path.unlink(missing_ok=True)


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file in the way of `write_text`; NaN and infinity are refused, as JSON does not have them."""
    write_text(target, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync_tree(folder: Path) -> None:
    """Wait until a folder and everything below it is on the disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def move(path: Path, target: Path) -> None:
    """Rename a file or a folder; the folders above the target are made."""
    _rename(path, target)
    sync(target.parent)


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file that never changes a second name; copy it where the file system has no hard links."""
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
            continue  # another process has just deleted the folder, which was empty
        return


def exchange(path: Path, other: Path) -> bool:
    """Let two files or folders swap their names in one step, so that both names exist at every instant.

    Returns:
        False, with nothing changed, where the kernel or the file system has no such step (NFS, Windows).
    """
    # The audit event is the one that os.rename raises: whoever watches renames sees this one, too.
    sys.audit("os.rename", str(path), str(other), -1, -1)
    swapped = _swap()(os.fsencode(path), os.fsencode(other))
    if swapped:
        sync(path.parent)
        sync(other.parent)
    return swapped


_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})
_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS


@cache
def _swap() -> Callable[[bytes, bytes], bool]:
    """Return the function of the C library that exchanges two names; one that returns False where there is none."""
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
    """Move a finished folder to its place; one that is there already is replaced, and deleted."""
    sync_tree(build)
    if not target.exists():
        move(build, target)
        return
    if not exchange(build, target):
        remove_tree(target)
        move(build, target)
    remove_tree(build)


def identity(folder: Path) -> str | None:
    """Return what identifies the dataset in a folder, the sha256 of its manifest; None if there is no dataset.

    The manifest has the digest of every file, so that equal identities mean equal bytes.
    """
    path = folder / MANIFEST_FILE
    try:
        # A pipe would be waited for; whatever is not a file is not a manifest.
        return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(path.lstat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_tree(path: Path) -> None:
    """Delete a file or a folder with all that is in it; nothing there is fine. Links are deleted, never followed."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.exists():
        shutil.rmtree(path)


TRASH_FOLDER = ".rlds-trash"
"""Beside datasets, the folder of what is being deleted."""


def discard(path: Path, trash: Path) -> None:
    """Delete a file or a folder that others may be opening: it loses its name in one step.

    What cannot be deleted now, because another process has it open or deletes it too, is left to `empty_trash`.

    Args:
        path: What is deleted; nothing there is fine.
        trash: A folder on the same file system.
    """
    if not os.path.lexists(path):
        return
    away = trash / uuid4().hex
    _rename(path, away)
    with suppress(OSError):
        sync(path.parent)
        remove_tree(away)
        trash.rmdir()


def empty_trash(trash: Path) -> None:
    """Delete what dead processes left in a trash folder."""
    with suppress(OSError):
        for path in trash.iterdir():
            with suppress(OSError):  # another process deletes it
                remove_tree(path)
        trash.rmdir()


def tree_bytes(path: Path) -> int:
    """Return the size of a file, or the sum of the sizes of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(item.lstat().st_size for item in path.rglob("*") if item.is_file())


def free_bytes(path: Path) -> int:
    """Return the bytes that a file below `path` could still take; `path` itself need not exist yet."""
    for folder in (path, *path.absolute().parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return 0


def require_free(path: Path, needed: int, why: str = "", *, hint: str = "") -> None:
    """Check that `needed` bytes fit below `path`.

    Raises:
        DiskFullError: If they do not.
    """
    free = free_bytes(path)
    if needed > free:
        raise DiskFullError(path, needed, free, why, hint=hint)


@contextmanager
def disk_errors(path: Path, *, hint: str = "") -> Iterator[None]:
    """Turn the system's "no space left" inside the block into `DiskFullError`, which names the place."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(path, None, free_bytes(path), os.strerror(error.errno), hint=hint) from error
        raise


@contextmanager
def lock(
    path: Path, what: str, *, wait: float = 3600.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold an owner file for the length of the block, so that two processes do a piece of work once.

    The file names its owner, the process and the host, and appears with its content in one step. The file of a process
    of this host that died is taken over at once, also if that was in another container, and so is one without an owner.
    That of another host is waited for: some network file systems keep locks to one host.

    Args:
        path: The owner file; its folder is made.
        what: What is locked, for messages.
        wait: Seconds to wait for another owner.
        waiting: Called once with the owner's name if there is one to wait for.

    Raises:
        LockedError: If the other owner is still there after `wait` seconds.
    """
    deadline = time.monotonic() + wait
    for claim in path.parent.glob(f"{glob.escape(path.name)}.*"):
        _free_claim(claim)
    while (held := _take(path)) is None:
        if not os.path.lexists(path):
            continue  # its owner has just given it back
        if time.monotonic() >= deadline:
            raise LockedError(what, _owner(path), path)
        if waiting is not None:
            waiting(_owner(path))
            waiting = None
        time.sleep(0.05)
    _HELD.add(held)
    try:
        yield
    finally:
        if held in _HELD:  # in a forked child it is not
            with suppress(OSError):
                if os.path.samestat(path.stat(), os.fstat(held)):
                    path.unlink()
            _HELD.remove(held)
            os.close(held)


def free_owner_files(folder: Path) -> list[Path]:
    """Delete the owner files in a folder whose process is dead; return those that have a living owner."""
    for path in sorted(folder.glob(f"*{_CLAIM}")):
        _free_claim(path)
    return [path for path in sorted(folder.glob("*.lock")) if not _free_if_dead(path)]


def _free_claim(path: Path) -> None:
    """Delete a file that a process which died meant to become its owner file."""
    if path.name.endswith(_CLAIM) and _is_of_dead(path.name.removesuffix(_CLAIM)):
        path.unlink(missing_ok=True)


_HELD: set[int] = set()
"""The handles of the owner files of this process."""


def _close_inherited() -> None:
    """Let a forked child hold no lock of its parent: it would hold it after the parent's death."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)

_CLAIM = ".claim"
_TORN_SECONDS = 2.0


def _take(path: Path) -> int | None:
    """Create the owner file of this process, unless a living process has one there; return its open handle."""
    if os.path.lexists(path) and not _free_if_dead(path):
        return None
    content = "\n".join([str(os.getpid()), socket.gethostname(), str(started(os.getpid())), *machine(), ""]).encode()
    claim = path.with_name(f"{path.name}.{uuid4().hex[:8]}.{_process_name()}{_CLAIM}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileNotFoundError:  # another process removed the folder, which was empty
        return None
    except OSError as error:
        raise _disk_error(error, path) from error
    taken = False
    try:
        if fcntl is not None:
            # Held as long as the process lives: it tells processes apart whose numbers are of other containers.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, content)
        taken = _link(claim, path)
    except OSError as error:
        raise _disk_error(error, path) from error
    finally:
        claim.unlink(missing_ok=True)
        if not taken:
            os.close(handle)
    return handle if taken else None


def _link(claim: Path, path: Path) -> bool:
    """Give a claim the name of the owner file, in one step; return False if that name is taken."""
    try:
        os.link(claim, path)
    except (FileExistsError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in _NO_EXCHANGE | {errno.EMLINK, errno.EXDEV}:
            raise
        # Without hard links the name is reserved first; a death in between leaves an empty file.
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


def _free_if_dead(path: Path) -> bool:
    """Delete an owner file whose process is dead; return whether there is none now."""
    try:
        with path.open("rb") as stream:
            # Held by a living owner, or by another process that is about to take it over.
            if _is_held(stream.fileno()) or _alive(stream.read(4096), os.fstat(stream.fileno()).st_mtime):
                return False
            # Another process may have taken it over meanwhile: its file has the same name, and is another file.
            if fcntl is not None:
                if os.path.samestat(path.stat(), os.fstat(stream.fileno())):
                    path.unlink()
                return True
        path.unlink()
    except FileNotFoundError:
        pass
    return True


def _is_held(handle: int) -> bool:
    """Return whether another process holds the lock of an open file; else this one holds it until the file is closed."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        pass
    return False


def _alive(content: bytes, written: float) -> bool:
    """Return whether the owner that an owner file names may be at work, although nobody holds the lock of the file.

    process     of this kernel and these process numbers: it is looked up
    kernel      the same, or the same name of the host: dead, because the lock is free
    else        of another host, of which nothing is known: alive
    """
    lines = content.decode(errors="replace").splitlines()
    if len(lines) < 2 or not lines[0].isdigit():
        return 0 <= time.time() - written < _TORN_SECONDS
    here = machine()
    if (lines[3:5] or here) == here and lines[1] == socket.gethostname():
        now = started(int(lines[0]))
        return now is not None and (len(lines) < 3 or lines[2] in {now, ""})
    return lines[3:4] != here[:1] and lines[1] != socket.gethostname()


@cache
def machine() -> list[str]:
    """Return what tells this kernel, since it was booted, and its process numbers from others; empty texts if unknown."""
    boot, numbers = "", ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        numbers = str(Path("/proc/self/ns/pid").readlink())
    return [boot, numbers]


def _process_name() -> str:
    """Return a name for this process that no process of another host or container has."""
    place = hashlib.sha256(" ".join([socket.gethostname(), *machine()]).encode()).hexdigest()[:8]
    return f"{place}-{os.getpid()}"


def _is_of_dead(name: str) -> bool:
    """Return whether a file whose name ends with that of a process belongs to a dead process of this host."""
    place, _, number = name.rpartition(".")[2].rpartition("-")
    here = _process_name().partition("-")[0]
    return place == here and number.isdigit() and started(int(number)) is None


def started(pid: int) -> str | None:
    """Return when a process of this host began, in a form that no later process of the same number has.

    Returns:
        None if there is no such process, or if it is dead and its parent has not noticed; "" where the system does not
        say when it began.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        # The name of the program, in parentheses, may hold anything; the state is the field after it.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    if Path("/proc/self/stat").exists():
        return None
    return "" if _exists(pid) else None


def _exists(pid: int) -> bool:
    if sys.platform == "win32":  # there os.kill ends the process, whatever the signal
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
    """Held by one process at a time, and free again when that process dies; taken and given back in a microsecond or two.

    For processes of one machine that share memory; `lock` is for folders that may lie on a network. A process that is
    forked opens the file anew, so that it excludes its parent. Not reentrant, and not for threads.

    Args:
        path: A file that exists as long as any process may take the lock.

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


def _owner(path: Path) -> str:
    process, host = "unknown", socket.gethostname()
    with suppress(OSError, ValueError):
        process, host, *_ = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return f"process {process} on {host}"
