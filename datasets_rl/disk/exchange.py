"""Folders that replace others: two names are exchanged, so that both exist at every instant."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from datasets_rl.disk.atomic import move_path, sync_file, sync_tree
from datasets_rl.disk.deletion import remove_tree


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
    """Rename a finished folder to the target. An existing folder is replaced and deleted."""
    sync_tree(build)
    if target.exists() and not exchange_folders(build, target):
        remove_tree(target)
    if not target.exists():
        move_path(build, target)
    remove_tree(build)
