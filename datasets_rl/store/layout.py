"""Names and paths of everything of one dataset, all of which is in its folder."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE, TRASH_NAME
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.current import CURRENT_FILE, VERSION_NAME, is_dataset, version_folder

OWN_SOURCE = "local"
"""The source of the user's own datasets: only these grow by recordings."""
STREAM_FOLDER = ".stream"
"""The folder of the shards that streams keep for later ones, below the folder of a source."""
_CLAIM = r"(@[A-Za-z0-9_]+-\d+(t\d+)?(\.\d+)?)?"
_OWN = re.compile(
    rf"{VERSION_NAME.pattern}|build-[0-9a-f]{{8}}{_CLAIM}|raw{_CLAIM}|recorded|{TRASH_NAME.pattern}"
    rf"|{CURRENT_FILE}|\.{CURRENT_FILE}@.+\.tmp|\.lock"
)
_RESERVED = re.compile(rf"{VERSION_NAME.pattern}|(build|trash)-.*|raw(@.*)?|recorded|{CURRENT_FILE}")


@dataclass(frozen=True, slots=True)
class DatasetPaths:
    """The paths of all files of one dataset, below the folder of its source."""

    root: Path
    """The source's folder, ``<RLDS_HOME>/d4rl``."""
    name: str
    """The id within the source; with ``@NAME`` for a derived dataset."""

    @property
    def folder(self) -> Path:
        """The folder of the dataset."""
        return self.root / self.name

    @property
    def current(self) -> Path:
        """The file with the name of the current version."""
        return self.folder / CURRENT_FILE

    @property
    def raw(self) -> Path:
        """The folder of the upstream files."""
        return self.folder / "raw"

    @property
    def recorded(self) -> Path:
        """The folder of the recordings: finished episodes that no version has yet."""
        return self.folder / "recorded"

    @property
    def lock(self) -> Path:
        """The lock of the process that changes the dataset."""
        return self.folder / ".lock"

    @property
    def exists(self) -> bool:
        """Whether there is a finished dataset."""
        return is_dataset(self.folder)

    @property
    def version(self) -> Path:
        """The folder of the current version.

        Raises:
            NotADatasetError: If there is none.
            ManifestError: If the file ``CURRENT`` is damaged.
        """
        return version_folder(self.folder)

    @property
    def has_no_pointer(self) -> bool:
        """Whether the folder is a single version, such as a copy of one, and thus cannot be changed."""
        return not os.path.lexists(self.current) and os.path.lexists(self.folder / MANIFEST_FILE)

    def builds(self) -> list[Path]:
        """Return the folders of unfinished versions, sorted."""
        return [path for path in self.entries() if path.name.startswith("build-")]

    def entries(self) -> list[Path]:
        """Return the files and folders of the dataset, sorted; what others put into its folder is not among them."""
        return [path for path in _listed(self.folder) if is_own_name(path.name)]

    def foreign(self) -> list[Path]:
        """Return what others put into the folder of the dataset, sorted; a dataset inside it is not foreign."""
        return [path for path in _listed(self.folder) if not is_own_name(path.name) and next(walk(path), None) is None]

    def bytes(self) -> int:
        """Return the size of everything of the dataset."""
        if self.has_no_pointer:
            return disk.tree_bytes(self.folder)
        return sum(map(disk.tree_bytes, self.entries()))

    def check_changeable(self) -> None:
        """Check that a command may put a version of a dataset here.

        Raises:
            InvalidArgumentError: If the folder is a single version, or inside one, or holds files that are not a
                dataset.
        """
        if self.has_no_pointer:
            raise InvalidArgumentError(
                f"{self.folder} is a single version of a dataset: it has {MANIFEST_FILE} and no {CURRENT_FILE}, and "
                "versions never change",
                hint="write the result to another folder, or name the dataset whose version it is",
            )
        if outer := disk.dataset_around(self.folder):
            raise InvalidArgumentError(
                f"{self.folder} is inside a dataset: {outer}",
                hint="choose a name or a folder that is not below that one",
            )
        if not self.exists and (_is_no_folder(self.folder) or self.foreign()):
            raise InvalidArgumentError(
                f"{self.folder} already exists: it holds files that are not a dataset",
                hint="move it, or choose another place",
            )


def dataset_folder(version: Path) -> Path:
    """Return the folder of the dataset of a version; a folder that is a single version is returned unchanged."""
    return version.parent if VERSION_NAME.fullmatch(version.name) else version


def is_own_name(name: str) -> bool:
    """Return whether a name in the folder of a dataset is one that this package gives."""
    return _OWN.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Check that no part of the name of a dataset looks like an entry in the folder of another one.

    Raises:
        InvalidArgumentError: If one does.
    """
    if reserved := next(filter(_RESERVED.fullmatch, name.split("/")), None):
        raise InvalidArgumentError(
            f"{reserved!r} cannot name a dataset: folders of datasets have entries of such names",
            hint="choose another name",
        )


def walk(folder: Path) -> Iterator[Path]:
    """Yield every folder below a folder that has something of a dataset, sorted; nothing inside of versions."""
    seen: set[Path] = set()
    # Links may lead to datasets on other disks; `seen` ends the cycle of a link to a parent folder.
    for path, folders, files in os.walk(folder, followlinks=True):
        here = Path(path)
        is_leaf = MANIFEST_FILE in files or here.resolve() in seen
        seen.add(here.resolve())
        if MANIFEST_FILE in files or any(map(is_own_name, [*folders, *files])):
            yield here
        folders[:] = (
            [] if is_leaf else sorted(name for name in folders if not name.startswith(".") and not is_own_name(name))
        )


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_no_folder(path: Path) -> bool:
    """Return whether a path has something other than a folder; one look, because others may create or delete it."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return path.is_symlink()
    except OSError:  # a folder above it is a file, or a link leads to itself
        return os.path.lexists(path)
