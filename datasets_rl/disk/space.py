"""Sizes, free space, and the errors of a disk that takes no more bytes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datasets_rl.errors import DiskFullError, FileTooLargeError, NotWritableError, Remedy

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


def tree_bytes(path: Path) -> int:
    """Return the size of a file, or of all files below a folder. 0 for what is deleted in the meantime."""
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
        DiskFullError: If the space is too small.
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
            raise NotWritableError(existing(path), os.strerror(error.errno)) from error
        raise


def existing(path: Path) -> Path:
    """Return a path, or the nearest existing path above."""
    return next(above for above in (path, *path.absolute().parents) if os.path.lexists(above))
