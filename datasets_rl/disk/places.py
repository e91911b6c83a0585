"""Paths of users, and the folders of datasets that nothing else may be written into."""

from __future__ import annotations

import json
import os
import re
from itertools import chain
from pathlib import Path

from datasets_rl.disk.plain import is_plain_file, read_plain
from datasets_rl.errors import IntegrityError, InvalidArgumentError

CURRENT_FILE = "CURRENT"
"""The file that names the current version of a dataset."""
MANIFEST_FILE = "manifest.json"
"""The file that is written last: a folder without this file is not a dataset."""
FORMAT_NAME = "datasets-rl/ted"
"""The name of the format in a manifest."""
MAX_MANIFEST_BYTES = 256 << 20
"""More than the manifest of a dataset with a million files has."""
STATE_FILE = "state.json"
"""The file of a checkpoint that is written last."""
_NESTED_LEVELS = ("*/", "*/*/", "*/*/*/")
"""The levels below a folder at which a dataset with slashes in the id may be stored."""


def expand_home(path: Path | str) -> Path:
    """Return a path in which ``~`` at the beginning is replaced by the home folder of a user.

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


def real_path(path: Path) -> Path:
    """Return the absolute path of a file or a folder, without links to folders.

    A link to a file keeps its name, because the target may lack the ending of the format.
    """
    # Unlike the methods of Path, these functions have no error for loops of links and names that are too long.
    is_folder = path.name in {"", ".."} or os.path.isdir(path)  # noqa: PTH112 - see above
    return Path(os.path.realpath(path)) if is_folder else Path(os.path.realpath(path.parent), path.name)


def check_nesting(folder: Path) -> None:
    """Check that a folder that a command writes is not inside a version of a dataset, and has no version inside.

    Otherwise verifying, replacing or removing the one would affect the other.

    Raises:
        InvalidArgumentError: If a parent folder is a version, or a folder below is a version while `folder` itself is
            not.
    """
    check_outside_versions(folder)
    if not (folder / MANIFEST_FILE).exists():
        manifests = chain.from_iterable(folder.glob(f"{levels}{MANIFEST_FILE}") for levels in _NESTED_LEVELS)
        inner = next((path.parent for path in manifests if is_version(path.parent)), None)
        if inner is not None:
            raise InvalidArgumentError(
                f"{folder} has a dataset inside: {inner}",
                hint="choose a name or a folder that is not above that dataset",
            )


def check_outside_versions(path: Path) -> None:
    """Check that a file or folder to write is not a version of a dataset, which never changes, nor inside a version.

    The same holds for everything else in the folder of a dataset, which is deleted with the dataset.

    Raises:
        InvalidArgumentError: If the path is inside a dataset.
    """
    if outer := dataset_around(path / "entry"):
        raise InvalidArgumentError(
            f"{path} is inside a dataset: {outer}", hint="choose a name or a folder that is not below that dataset"
        )


def dataset_around(path: Path) -> Path | None:
    """Return the folder of a dataset that a path is inside of: a version, or raw, recorded or unfinished files."""
    folders = Path(
        os.path.realpath(path)
    ).parents  # unlike the method of Path, realpath ends for a link that leads to itself
    return next((one for one in folders if is_version(one) or _is_entry(one)), None)


def _is_entry(folder: Path) -> bool:
    return _ENTRY.fullmatch(folder.name) is not None and is_plain_file(folder.parent / CURRENT_FILE)


_ENTRY = re.compile("(build|trash)-.*|raw(@.*)?|recorded")
"""The names of folders beside the versions of a dataset."""


def is_version(folder: Path) -> bool:
    """Return whether a folder has a manifest of this package. Other programs use the same file name."""
    try:
        document = json.loads(read_plain(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES))
    except (IntegrityError, OSError, RecursionError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT_NAME
