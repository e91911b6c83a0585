"""Names and paths of everything of a dataset, all of which is in the dataset's folder."""

from __future__ import annotations

import json
import os
import re
import stat
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE, TRASH_NAME
from datasets_rl.errors import IntegrityError, InvalidArgumentError, ManifestError, UnsearchedWarning
from datasets_rl.format.current import CURRENT_FILE, VERSION_NAME, is_dataset, read_current, version_folder

OWN_SOURCE = "local"
"""The source of the user's own datasets: only these grow by recordings."""
STREAM_FOLDER = ".stream"
"""The folder of the shards that streams keep for later streams, below the folder of a source."""
AUDIT_FOLDER = ".audit"
"""The folder in the home with the measures of unfinished audits, a folder for each audit."""
INDEX_FOLDER = ".identify"
"""The folder in the home with the index of the fingerprints of all stored datasets."""
INDEX_FILE = "index"
RECORDING_FILE = "recording.json"
"""The file with the description of a recording."""
_RECORDED = "recorded"
MARK_FILE = ".datasets-rl"
"""The file that marks a folder as a folder of this package until it has a version: others have names like ours, too."""
_MARK = b"This folder is of datasets-rl, which deletes its unfinished and temporary files.\n"
_MAX_FOLDERS = 5_000
"""Folders without a dataset below a source's folder after which the search for datasets ends. Upper folders come
first."""
_LOOKS, _LOOK_SECONDS = 20, 0.05
_SHORT_LOOKS, _SHORT_LOOK_SECONDS = 3, 0.005
_CLAIM = r"(@[A-Za-z0-9_]+-\d+(t\d+)?(\.\d+)?)?"
_OWN = re.compile(
    rf"{VERSION_NAME.pattern}|build-[0-9a-f]{{8}}{_CLAIM}|raw{_CLAIM}|recorded|{TRASH_NAME.pattern}"
    rf"|{CURRENT_FILE}|\.{CURRENT_FILE}@.+\.tmp|\.lock|{re.escape(MARK_FILE)}"
)
_RESERVED = re.compile(rf"{VERSION_NAME.pattern}|(build|trash)-.*|raw(@.*)?|recorded|{CURRENT_FILE}")


@dataclass(frozen=True, slots=True)
class DatasetPaths:
    """The paths of all files of a dataset, below the folder of the source."""

    root: Path
    """The source's folder, ``<RLDS_HOME>/d4rl``."""
    name: str
    """The id within the source, with ``@NAME`` for a derived dataset."""

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
        return self.folder / _RECORDED

    @property
    def lock(self) -> Path:
        """The lock of the process that changes the dataset."""
        return self.folder / ".lock"

    @property
    def mark_file(self) -> Path:
        """The file that marks the folder before the first version."""
        return self.folder / MARK_FILE

    @property
    def exists(self) -> bool:
        """Whether there is a finished dataset."""
        return is_dataset(self.folder)

    @property
    def version(self) -> Path:
        """The folder of the current version.

        Raises:
            NotADatasetError: If the dataset has no version.
            ManifestError: If the file ``CURRENT`` is damaged.
        """
        return version_folder(self.folder)

    @property
    def has_no_pointer(self) -> bool:
        """Whether the folder is a single version, such as a copy of a version, and thus cannot be changed."""
        return not os.path.lexists(self.current) and disk.is_version(self.folder)

    @property
    def is_own(self) -> bool:
        """Whether the folder is certainly the folder of a dataset, see `is_own_folder`."""
        return is_own_folder(self.folder)

    def mark(self) -> None:
        """Create the folder and mark it as a folder of this package, before anything is put there."""
        mark_folder(self.folder)

    def builds(self) -> list[Path]:
        """Return the folders of unfinished versions, sorted."""
        return [path for path in self.entries() if path.name.startswith("build-")]

    def entries(self) -> list[Path]:
        """Return the files and folders of the dataset, sorted, without what others put into the folder.

        A name says nothing in a folder of others: there is no entry unless the folder is the folder of a dataset.
        """
        return [path for path in _listed(self.folder) if is_own_name(path.name)] if self.is_own else []

    def foreign(self) -> Iterator[Path]:
        """Yield what others put into the folder of the dataset, sorted. A dataset inside is not foreign."""
        own = {*self.entries()}
        return (path for path in _listed(self.folder) if path not in own and not _leads_to_dataset(path))

    def first_foreign(self, *others: Path) -> Path | None:
        """Return the first file that others put into a folder that is not a dataset's, except these files.

        Another process may begin or delete a dataset there. New files of that process may be listed after this process
        has looked for the mark, and the mark may be missing for a moment, so that a file with a name like ours is
        looked at several times, and longer while a process holds the lock.
        """
        first = None
        for look in range(_LOOKS):
            first = next((path for path in self.foreign() if path not in others), None)
            if first is None or not is_own_name(first.name):
                break
            if not disk.is_locked(self.lock) and look >= _SHORT_LOOKS:
                break
            time.sleep(_LOOK_SECONDS if look >= _SHORT_LOOKS else _SHORT_LOOK_SECONDS)
        return first

    def bytes(self) -> int:
        """Return the size of everything of the dataset."""
        if self.has_no_pointer:
            return disk.tree_bytes(self.folder)
        return sum(map(disk.tree_bytes, self.entries()))

    def check_changeable(self) -> None:
        """Check that a command may put a version of a dataset here.

        Raises:
            InvalidArgumentError: If the folder is a single version, or inside a version, or holds files that are not a
                dataset.
        """
        if self.has_no_pointer:
            raise InvalidArgumentError(
                f"{self.folder} is a single version of a dataset: the folder has {MANIFEST_FILE} and no {CURRENT_FILE}, and "
                "versions never change",
                hint="write the result to another folder, or name the dataset of this version",
            )
        if outer := disk.dataset_around(self.folder):
            raise InvalidArgumentError(
                f"{self.folder} is inside a dataset: {outer}",
                hint="choose a name or a folder that is not below that dataset",
            )
        if not self.exists and (_is_no_folder(self.folder) or self._has_unknown_files()):
            raise InvalidArgumentError(
                f"{self.folder} already exists: the folder holds files that are not a dataset",
                hint="move this folder, or choose another place",
            )

    def _has_unknown_files(self) -> bool:
        """Return whether there is something that is not of this package in a folder where a dataset is to be put.

        Users may put raw files into the folder ``raw`` of a dataset before the conversion. A mark may be empty where a
        file system cannot create a file together with the content.
        """
        return self.first_foreign(self.raw, self.mark_file) is not None


def dataset_folder(version: Path) -> Path:
    """Return the folder of the dataset of a version. A folder that is a single version is returned unchanged."""
    return version.parent if VERSION_NAME.fullmatch(version.name) else version


def is_own_name(name: str) -> bool:
    """Return whether a name in the folder of a dataset is a name that this package gives."""
    return _OWN.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Check that no part of the name of a dataset looks like an entry in the folder of another dataset.

    Raises:
        InvalidArgumentError: If a part does.
    """
    if reserved := next(filter(_RESERVED.fullmatch, name.split("/")), None):
        raise InvalidArgumentError(
            f"{reserved!r} cannot name a dataset: folders of datasets have entries of such names",
            hint="choose another name",
        )


def mark_folder(folder: Path) -> None:
    """Mark a folder as a folder of this package. A missing folder is created."""
    disk.create_file(folder / MARK_FILE, _MARK)


def unmark_folder(folder: Path) -> bool:
    """Delete the mark of a folder. Return whether the folder had a mark."""
    marked = is_marked(folder)
    if marked:
        disk.remove_file(folder / MARK_FILE)
    return marked


def is_marked(folder: Path) -> bool:
    """Return whether a folder has the mark of this package."""
    with suppress(OSError, IntegrityError):
        return disk.read_plain(folder / MARK_FILE, len(_MARK) + 1) == _MARK
    return False


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder is certainly the folder of a dataset, with any names inside.

    Such a folder has a file ``CURRENT`` that names a version, or a version with a manifest, or is a version, or has a
    recording, or is marked because a command makes the first version or deletes the last version.
    """
    with suppress(ManifestError):
        if read_current(folder) is not None:
            return True
    if is_marked(folder) or disk.is_version(folder):
        return True
    with suppress(OSError):
        versions = filter(_has_version_name, disk.plain_folders(folder, folder))
        return any(map(disk.is_version, versions)) or any(
            map(_is_recording, disk.plain_folders(folder / _RECORDED, folder))
        )
    return False


def _is_recording(folder: Path) -> bool:
    """Return whether a folder has the description of a recording, which states the name of the folder."""
    with suppress(OSError, IntegrityError, RecursionError, ValueError):
        document = json.loads(disk.read_plain(folder / RECORDING_FILE, disk.MAX_MANIFEST_BYTES))
        return isinstance(document, dict) and document.get("id") == disk.unclaimed_name(folder) and "schema" in document
    return False


def _has_version_name(path: Path) -> bool:
    return VERSION_NAME.fullmatch(path.name) is not None


def walk(folder: Path) -> Iterator[Path]:
    """Yield every folder at or below a folder that is a dataset's, sorted. Versions are not searched.

    A link below the folder is followed only if it leads to the folder of a dataset: a link to a large tree, or to a folder
    above, costs a single look. A tree that has more than `_MAX_FOLDERS` other folders is searched from the top, with a
    warning.
    """
    found: list[Path] = []
    waiting, others = deque([folder]), 0
    while waiting and others < _MAX_FOLDERS:
        current = waiting.popleft()
        names, below = _content(current)
        if any(map(_is_telling_name, names)) and is_own_folder(current):
            found.append(current)
            is_leaf = MANIFEST_FILE in names and disk.is_version(current)
        else:
            others += 1
            is_leaf = False
        if not is_leaf and not (current != folder and current.is_symlink()):
            waiting.extend(below)
    if waiting:
        warnings.warn(_unsearched(folder, waiting[0]), stacklevel=2)
    yield from sorted(found, key=lambda path: path.parts)


def _unsearched(folder: Path, first: Path) -> UnsearchedWarning:
    return UnsearchedWarning(
        f"{folder} has more than {_MAX_FOLDERS:,} folders without a dataset: datasets below {first} and in later folders are not found",
        hint=f"move what is not of datasets out of {folder}, or replace a link to that folder by links to the datasets",
    )


def _is_telling_name(name: str) -> bool:
    return name in {CURRENT_FILE, MARK_FILE, MANIFEST_FILE, _RECORDED} or VERSION_NAME.fullmatch(name) is not None


def _content(folder: Path) -> tuple[list[str], list[Path]]:
    """Return the names in a folder, and the folders and links in which there may be datasets.

    Nothing without access.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        found = [*entries]
        below = [Path(entry.path) for entry in found if entry.name[0] != "." and _may_lead_to_dataset(entry)]
        return [entry.name for entry in found], below
    return [], []


def _leads_to_dataset(path: Path) -> bool:
    return is_own_folder(path) if path.is_symlink() else next(walk(path), None) is not None


def _may_lead_to_dataset(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir() and not is_own_name(entry.name)
    return False


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_no_folder(path: Path) -> bool:
    """Return whether a path has something other than a folder. A single look, because others may change the path."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return path.is_symlink()
    except OSError:  # a folder above is a file, or a link leads to itself
        return os.path.lexists(path)
