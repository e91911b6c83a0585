"""Files and folders that are written completely or not at all, and what reaches the disk when."""

from __future__ import annotations

import glob
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from datasets_rl.disk.plain import paths_like
from datasets_rl.disk.processes import CLAIM, is_abandoned, process_name
from datasets_rl.disk.space import disk_errors, existing
from datasets_rl.errors import NotWritableError, Remedy

MAX_ATTEMPTS = 20
"""Attempts to create something in a folder that other processes delete when empty."""


def sync_file(path: Path) -> None:
    """Flush the bytes of a file, or the entries of a folder, to the disk (fsync)."""
    # Windows cannot open a folder, nor fsync a file that is open for reading. There the rename alone orders the commit.
    with suppress(OSError) if os.name == "nt" else disk_errors(path.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_stream(stream: IO[Any]) -> None:
    """Flush the written bytes of an open file to the disk (fsync)."""
    stream.flush()
    os.fsync(stream.fileno())


def publish_file(temporary: Path, target: Path, keep: Path | None = None) -> None:
    """Rename a finished file to the target atomically. An existing file is replaced, or renamed to `keep` before."""
    sync_file(temporary)
    if keep is not None and target.exists():
        os.replace(target, keep)
    os.replace(temporary, target)
    sync_file(target.parent)


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a file has these bytes and no others. Of another file no more is read than needed."""
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
        content: The bytes of the file.
        keep: The name under which the previous file is kept.
        hint: What to do next if the disk is full.

    Raises:
        DiskFullError: If the disk is full.
    """
    with replaced_file(target, keep=keep, hint=hint) as stream:
        stream.write(content)


@contextmanager
def replaced_file(target: Path, *, keep: Path | None = None, hint: str | Remedy = "") -> Iterator[IO[bytes]]:
    """Open a new file for writing that replaces a file at the end of the block. The arguments are those of `write_bytes`.

    After a failure, the previous file is unchanged.

    Raises:
        DiskFullError: If the disk is full.
    """
    with _temporary_file(target) as temporary:
        try:
            with disk_errors(target.parent, hint=hint), temporary.open("wb") as stream:
                yield stream
            publish_file(temporary, target, keep)
        except OSError as error:
            # The temporary name means nothing to the reader of the message.
            if error.filename is not None:
                error.filename, error.filename2 = str(target), None
            raise


@contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """Give the name of a file that becomes `target`. Temporary files, also of dead processes, are deleted afterward."""
    free_temporary_files(target.parent, target.name)
    temporary = target.with_name(f".{target.name}@{process_name()}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def rewrite_file(path: Path, content: bytes) -> None:
    """Replace the content of a file of the user's, atomically. A link stays a link, and the file keeps mode and owner.

    Raises:
        DiskFullError: If the disk is full. The file is unchanged then.
        NotWritableError: If the process may not write there.
    """
    target = path.resolve()
    status = target.stat() if target.exists() else None
    with _temporary_file(target) as temporary, disk_errors(target):
        # Only the owner may read the temporary file until the mode is set, because the content may hold secrets.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o666 if status is None else 0o600), "wb") as stream:
            stream.write(content)
        if status is not None:
            if hasattr(os, "chown") and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.chown(temporary, status.st_uid, status.st_gid)
            temporary.chmod(stat.S_IMODE(status.st_mode))
        publish_file(temporary, target)


def free_temporary_files(folder: Path, name: str = "*") -> None:
    """Delete the temporary files of processes that died in `write_text`."""
    for path in temporary_files(folder, name):
        path.unlink(missing_ok=True)


def temporary_files(folder: Path, name: str = "*") -> list[Path]:
    """Return the temporary files of processes that died in `write_text`."""
    pattern = f"{glob.escape(name.rstrip('*'))}{'*' * name.endswith('*')}"
    found = ((path, path.name.removesuffix(".tmp")) for path in paths_like(folder, f".{pattern}@*.tmp"))
    # Others have hidden files with an @, too.
    return [path for path, name in found if CLAIM.fullmatch(name) and is_abandoned(path, name)]


def create_file(path: Path, content: bytes) -> None:
    """Create a file together with the content, and the parent folder. An existing path stays unchanged.

    Linux links a file with content to the name. Elsewhere, a process that is killed may leave an empty file.

    Raises:
        DiskFullError: If the disk is full.
        NotWritableError: If the process may not write there.
    """
    for attempt in range(MAX_ATTEMPTS):
        make_folder(path.parent)
        try:
            with suppress(FileExistsError), disk_errors(path.parent), _nameless_file(path) as stream:
                stream.write(content)
                stream.flush()
                if isinstance(stream.name, int):
                    # A folder is named for the file to be linked by its descriptor, which is a link.
                    os.link(f"/proc/self/fd/{stream.name}", path, src_dir_fd=stream.name, follow_symlinks=True)
        except FileNotFoundError:  # another process has just deleted the empty folder
            if attempt == MAX_ATTEMPTS - 1:
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
    """Write a JSON file atomically. NaN and infinity, which JSON does not have, raise `ValueError`."""
    write_text(target, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything below to the disk."""
    for path in sorted(folder.rglob("*")):
        sync_file(path)
    sync_file(folder)


def move_path(path: Path, target: Path, *, sync: bool = True) -> None:
    """Rename a file or a folder atomically, creating the parent folders of the target. An existing file is replaced.

    Args:
        path: The file or folder.
        target: The new path, on the same file system.
        sync: Whether the new name is flushed to the disk.
    """
    while True:
        make_folder(target.parent)
        try:
            os.replace(path, target)
        except FileNotFoundError:
            if target.parent.exists() or not os.path.lexists(path):
                raise
            continue  # another process has just deleted the empty folder
        break
    if sync:
        sync_file(target.parent)


def make_folder(path: Path) -> None:
    """Create a folder and the parents, unless the folder exists, although other processes delete empty folders.

    Raises:
        NotWritableError: If the process may not create the folder.
        DiskFullError: If the disk is full.
    """
    with disk_errors(path):
        for _ in range(MAX_ATTEMPTS):
            # A folder is deleted before another folder is created inside, or between the look that finds it and the
            # next.
            with suppress(FileNotFoundError, FileExistsError):
                path.mkdir(parents=True, exist_ok=True)
                return
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # as in /proc, which has the folders of the system alone
            raise NotWritableError(existing(path), "no folder can be created there") from error


def link_file(path: Path, target: Path) -> bool:
    """Give a file a second name, a hard link, and return whether the file system has hard links between the two."""
    try:
        os.link(path, target)
    except OSError:
        return False
    return True


def link_or_copy(path: Path, target: Path) -> None:
    """Hard-link a file that never changes, or copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not link_file(path, target):
        with disk_errors(target):
            shutil.copyfile(path, target)


def make_link(link: Path, target: Path) -> None:
    """Create a symbolic link to a target. A file or a link of the same name is deleted before."""
    link.unlink(missing_ok=True)
    link.symlink_to(target)
