"""Plain files and folders: hidden paths of this package, where others may have put a link or a pipe."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from datasets_rl.errors import IntegrityError

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def check_kind(path: Path, *, folder: bool) -> None:
    """Check that a hidden path of this package is a plain folder, or a plain file, if present.

    Raises:
        IntegrityError: If the path is something else, such as a link or a named pipe, which others must have put there.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise kind_error(path, _KINDS.get(stat.S_IFMT(mode), "a device"), "folder" if folder else "file")


def kind_error(path: Path, kind: str, expected: str) -> IntegrityError:
    """Return the error of a path that is not of the expected kind."""
    return IntegrityError(
        str(path),
        [f"the path is {kind}, expected a plain {expected} of this package"],
        hint=f"look at {path}, and move or delete the path",
    )


def is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file, and not a link to a file."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_plain(path: Path, limit: int) -> bytes:
    """Return the first bytes of a hidden file, which others may have replaced: links and pipes are never opened.

    Args:
        path: The file.
        limit: The most bytes that are read: 1 more than the file may have, so that the caller sees that the file is
            larger. What others put in the place of the file may be larger than the memory.

    Raises:
        IntegrityError: If the path is not a plain file.
        FileNotFoundError: If the path does not exist.
    """
    with os.fdopen(open_plain(path), "rb") as stream:
        return stream.read(limit)


def open_plain(path: Path) -> int:
    """Open a plain file for reading, without following a link or waiting for a pipe. Return the descriptor."""
    check_kind(path, folder=False)
    handle = os.open(path, os.O_RDONLY | NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # replaced since the check
        os.close(handle)
        raise kind_error(path, "no longer a file", "file")
    return handle


def plain_folders(folder: Path, root: Path) -> list[Path]:
    """Return the folders in a hidden folder below a root, sorted. Empty if a link leads there. Links are left out."""
    names = [folder, *folder.parents]
    try:
        if not all(stat.S_ISDIR(path.lstat().st_mode) for path in names[: names.index(root)]):
            return []
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def paths_like(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match a pattern of the shell, sorted. A deleted folder has none."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - the glob of a path raises if the folder is deleted during the search
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return [folder / name for name in sorted(fnmatch.filter(names, pattern))]


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and links to files.

    Files that are deleted during the walk are passed over, unlike by a glob.
    """
    paths = (Path(inner, name) for inner, _, names in os.walk(folder) for name in names)
    return (path for path in paths if path.is_file())


def check_plain_tree(path: Path) -> None:
    """Check that a folder of this package, and everything below, is a plain folder or a plain file.

    Raises:
        IntegrityError: If there is a link, a pipe, a socket or a device.
    """
    check_kind(path, folder=True)
    for folder, folders, files in os.walk(path):
        for name in folders:
            check_kind(Path(folder, name), folder=True)
        for name in files:
            check_kind(Path(folder, name), folder=False)
