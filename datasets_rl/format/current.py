"""The current version of a dataset: which of the folders in a dataset's folder the dataset's name means.

    <dataset>/CURRENT             a line with the name of the current version, replaced atomically
    <dataset>/0001-3f2a9c10/      a version: complete, never changes

A folder with a manifest and without ``CURRENT`` is a single version, such as a copy of a version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import Call, IntegrityError, ManifestError, NotADatasetError, Remedy

T = TypeVar("T")
CURRENT_FILE = disk.CURRENT_FILE
"""The file in a dataset's folder with the name of its current version."""
VERSION_NAME = re.compile("[0-9]{4,9}-[0-9a-f]{8}")
"""The name of a version: a number, and the first digits of the manifest's digest."""


def read_current(folder: Path) -> str | None:
    """Return the name of the current version in a dataset's folder, or None without such a file.

    Raises:
        ManifestError: If the file does not hold the name of a version.
    """
    path = folder / CURRENT_FILE
    try:
        data = disk.read_plain(path, _MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IntegrityError as error:
        raise ManifestError(str(path), error.problems, hint=error.remedy) from None
    except OSError as error:
        raise ManifestError(str(path), [f"the file cannot be read: {error}"]) from error
    return version_named(
        data,
        str(path),
        hint=Remedy("{} makes a version of this dataset the current version", Call("restore", folder, ...)),
    )


def version_named(data: bytes, where: str, *, hint: str | Remedy = "") -> str:
    """Return the name of a version that the content of a file ``CURRENT`` states.

    Raises:
        ManifestError: If the content is not the name of a version.
    """
    name = data[:_MAX_BYTES].decode("ascii", "replace").rstrip("\n")
    if not VERSION_NAME.fullmatch(name):
        problem = f"the name is {name[:40]!r}, expected the name of a version, as in 0001-3f2a9c10"
        raise ManifestError(where, [problem], hint=hint)
    return name


_MAX_BYTES = 100
"""More than the name of a version has."""


def version_folder(folder: Path) -> Path:
    """Return the folder of the current version of a dataset. A folder that is a version itself is returned unchanged.

    Raises:
        NotADatasetError: If there is no finished version.
        ManifestError: If the file ``CURRENT`` is damaged, or names a version that is not there.
    """
    name = read_current(folder)
    while name is not None:
        version = folder / name
        # A link here would lead out of the dataset.
        if not version.is_symlink() and os.path.isfile(version / MANIFEST_FILE):  # noqa: PTH113 - False for long names
            return version
        former, name = name, read_current(folder)
        if name == former:
            raise ManifestError(
                str(folder / CURRENT_FILE), [f"the current version is {name}, which is missing"], hint=_another(folder)
            )
    if os.path.lexists(folder / MANIFEST_FILE):
        return folder
    raise NotADatasetError(
        folder, hint=Remedy("`{}` shows the stored datasets", Call("list_datasets", downloaded=True))
    )


def _another(folder: Path) -> Remedy:
    return Remedy("{} makes another version the current version", Call("restore", folder, ...))


def is_dataset(folder: Path) -> bool:
    """Return whether a folder has a finished version, or is a finished version."""
    try:
        return os.path.isfile(version_folder(folder) / MANIFEST_FILE)  # noqa: PTH113 - False for long names
    except (ManifestError, NotADatasetError):
        return False


def in_current_version(folder: Path, read: Callable[[Path], T]) -> T:
    """Return what a function returns for the folder of the current version.

    If that version is deleted in the meantime, the function is called again for the version that is current then.
    """
    version = version_folder(folder)
    while True:
        try:
            return read(version)
        except (IntegrityError, NotADatasetError, FileNotFoundError):
            former, version = version, version_folder(folder)
            if version == former:
                raise
