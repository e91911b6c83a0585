"""``file:///absolute/path``: a file on this machine or on a shared disk, used in place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, path_of_url
from datasets_rl.read.zarr_paths import MARKERS

IN_PLACE = True


def resolve(url: str, ask: Ask) -> Path:
    """Return the path of a file address, as `Scheme.resolve` documents."""
    del ask
    path = path_of_url(url)
    if not path.is_file():
        raise NotServedError("the path is a folder" if path.is_dir() else "there is no such file")
    return path


def folder(url: str, get: Get) -> Folder:
    """List the files below a folder, or in a tar archive, except hidden files, which tools create, other than zarr.

    Raises:
        ConversionError: If an archive is truncated or damaged, or has links or paths that lead out of the archive.
    """
    path = path_of_url(url)
    if path.is_file():
        from datasets_rl.fetch.schemes import tar

        return tar.folder(url, get)
    if not path.is_dir():
        raise NotServedError("there is no such folder")
    assets = (Asset((file.as_uri(),), file.relative_to(path).as_posix(), size=size) for file, size in _files(path))
    return Folder(url, "", tuple(assets))


def _files(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield (file, size) of the regular files below a folder that are not hidden. Files that vanish are skipped.

    The hidden files of metadata of zarr are data.
    """
    for parent, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name[0] != "."]
        for file in (Path(parent, name) for name in names if name[0] != "." or name in MARKERS):
            with suppress(OSError):
                status = file.stat()
                if stat.S_ISREG(status.st_mode):
                    yield file, status.st_size
