"""Deletion: of what no other process opens, and of what others may be opening."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from datasets_rl.disk.atomic import sync_file
from datasets_rl.disk.plain import NO_LINK, check_kind, kind_error
from datasets_rl.errors import IntegrityError

TRASH_NAME = re.compile("trash-[0-9a-f]{32}")
"""The name of a folder that is being deleted."""
_HAS_DESCRIPTORS = {os.open, os.stat, os.unlink, os.rmdir, os.mkdir, os.rename} <= os.supports_dir_fd
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", os.O_RDONLY)


def remove_file(path: Path) -> None:
    """Delete a file or a link, if present."""
    path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> bool:
    """Delete a folder if empty, and return whether the folder was deleted."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def remove_tree(path: Path, root: Path | None = None) -> None:
    """Delete a file or a folder with its contents, if present. Links are deleted, never followed.

    Args:
        path: The file or folder.
        root: A folder above the path, by default the parent. No folder between the two may be a link.

    Raises:
        IntegrityError: If the path is not below the root, or a link is between them. Nothing is deleted then.
    """
    if not os.path.lexists(path):
        return
    with _opened_folder(path.parent, path.parent if root is None else root) as above:
        _remove_entry(path.name, above)


@contextmanager
def _opened_folder(folder: Path, root: Path) -> Iterator[int | Path]:
    """Open a folder at or below a root, name by name, so that no link is followed.

    Yields:
        The descriptor, or the path where the system has no functions for descriptors.
    """
    names = folder.relative_to(root).parts if folder.is_relative_to(root) else ("..",)
    if ".." in names:
        raise IntegrityError(str(folder), [f"the folder is not inside {root}"], hint=f"look at {folder}")
    if not _HAS_DESCRIPTORS:
        if folder.resolve() != root.resolve().joinpath(*names):
            raise kind_error(folder, "reached by a symbolic link", "folder")
        yield folder
        return
    handle = os.open(root, _FOLDER)
    try:
        for depth, name in enumerate(names, 1):
            try:
                inner = os.open(name, _FOLDER | NO_LINK, dir_fd=handle)
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
    """Delete an entry of an opened folder, with everything below."""
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

    The path is first renamed, atomically, to ``trash-<random>`` in `root`. What cannot be deleted now, because another
    process has open or deletes too, is left to `empty_trash`.

    Args:
        path: The file or folder, which need not exist.
        root: A folder above the path, on the same file system. No folder between the two may be a link.
        unless: Called after the rename. If this returns True, the path gets the old name back, and stays.

    Raises:
        IntegrityError: If the path is not below the root, or a link is between them. Nothing is deleted then.
    """
    if not os.path.lexists(path):
        return
    trash = root / f"trash-{uuid4().hex}"
    try:
        _rename_below(path, trash, root)
    except FileNotFoundError:  # another process has just deleted the path
        remove_empty_parents(path, root)
        return
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
    """Delete the remains of deletions by dead processes in a folder."""
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - the paths of a link's entries are never used
            if TRASH_NAME.fullmatch(name):
                with suppress(OSError):  # another process deletes the path
                    remove_tree(folder / name, folder)


def remove_empty_parents(path: Path, root: Path) -> None:
    """Delete the folders between a path and the root that are empty."""
    with suppress(OSError):
        for parent in path.parents:
            if parent == root or root not in parent.parents:
                return
            parent.rmdir()
