"""Publishing: the only way in which a dataset changes.

    sync the build  ->  rename to the version name  ->  replace CURRENT  ->  sync the folder

A process that is killed in between leaves the old CURRENT or the new CURRENT. The manifest of a version records the
request for the version and the digest of its parent, the version that was current before. The same request on the same
parent finds a version that was published without becoming current, points to this version and is done.

Nothing depends on the lock of a dataset, which only keeps two processes from doing the same work: the names of builds
and versions are unique, and the last CURRENT wins.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE, TRASH_NAME
from datasets_rl.errors import DatasetsRLError, DiskFullError, ManifestError, NotADatasetError
from datasets_rl.format.current import VERSION_NAME, read_current
from datasets_rl.store.layout import DatasetPaths, is_own_name, unmark_folder

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest

VERSION_FOLDER = "version"
"""The folder of the new version in the build."""
SHORT_WAIT = 10.0
"""Seconds that a short change waits for the lock: another command may be deleting leftovers, on a machine that is busy."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a dataset."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of the version, ``0001-3f2a9c10``."""
        return self.folder.name

    @property
    def number(self) -> int:
        """The number of the version: versions are numbered from 1 in the order of publication."""
        return int(self.name.partition("-")[0])

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        from datasets_rl.format.manifest import Manifest

        return Manifest.read(self.folder)

    @property
    def digest(self) -> str:
        """The digest of the manifest. Empty for a damaged manifest."""
        with suppress(ManifestError, NotADatasetError):
            return self.manifest.digest
        return ""

    @property
    def is_current(self) -> bool:
        """Whether the file ``CURRENT`` of the dataset names this version."""
        with suppress(ManifestError):
            return read_current(self.folder.parent) == self.name
        return False

    def discard(self) -> None:
        """Delete the version, unless a process without the lock has made it current in the meantime."""
        disk.discard(self.folder, self.folder.parent, unless=lambda: self.is_current)


def versions_of(paths: DatasetPaths) -> list[Version]:
    """Return all versions of a dataset, the oldest first."""
    folders = disk.plain_folders(paths.folder, paths.folder)
    found = [path for path in folders if VERSION_NAME.fullmatch(path.name)]
    return [Version(path) for path in sorted(found, key=_order) if disk.is_plain_file(path / MANIFEST_FILE)]


def _order(path: Path) -> tuple[int, str]:
    return int(path.name.partition("-")[0]), path.name


def current_version(paths: DatasetPaths, *, replaces: bool = False) -> Version | None:
    """Return the current version of a dataset, or None.

    Args:
        paths: The dataset.
        replaces: Whether the file ``CURRENT`` is about to be replaced, so that a damaged file counts as no file.

    Raises:
        ManifestError: If the file ``CURRENT`` is damaged.
    """
    try:
        return Version(paths.version)
    except NotADatasetError:
        return None
    except ManifestError:
        if replaces:
            return None
        raise


def parent_of(paths: DatasetPaths, version: Version) -> Version | None:
    """Return the version from which another version was made, or which was replaced, or None if not on the disk.

    Raises:
        ManifestError: If a manifest is damaged.
    """
    return next(iter(_with_digest(paths, version.manifest.parent)), None)


def _with_digest(paths: DatasetPaths, digest: str, *, except_for: Version | None = None) -> list[Version]:
    """Return the versions with this digest of the manifest, the newest first."""
    named = [version for version in versions_of(paths) if digest and version.name.endswith(f"-{digest[:8]}")]
    return [version for version in reversed(named) if version != except_for and version.manifest.digest == digest]


def point_to(paths: DatasetPaths, version: Version) -> None:
    """Make a version the current version, atomically.

    Raises:
        NotADatasetError: If a process without the lock has removed the dataset.
    """
    disk.check_kind(paths.current, folder=False)
    try:
        disk.write_text(paths.current, f"{version.name}\n")
    except FileNotFoundError:
        raise NotADatasetError(paths.folder, "another process has just removed it") from None
    unmark_folder(paths.folder)


@contextmanager
def locked(
    paths: DatasetPaths, name: str, *, wait: float = 3600.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the lock of a dataset, after deleting what dead processes left that no command resumes.

    A folder that has no version yet is marked first.

    Args:
        paths: The dataset, which need not exist yet.
        name: The name of the dataset in messages.
        wait: Seconds to wait for another process that changes the dataset.
        waiting: Called once with the name of that process.

    Raises:
        LockedError: If the other process did not finish in time.
        IntegrityError: If a file or folder of the dataset is a link, a pipe or the like.
        InvalidArgumentError: If there is no dataset, and the folder holds files that are not of a dataset.
    """
    check_entries(paths)
    try:
        mark_as_own(paths)
        with disk.lock(paths.lock, name, wait=wait, waiting=waiting):
            if not paths.is_own:  # the process that had the lock before has deleted the folder
                paths.mark()
            sweep(paths)
            yield
    finally:
        remove_if_empty(paths)


def check_entries(paths: DatasetPaths) -> None:
    """Check that nothing that a change of a dataset would use leads elsewhere, or would block the change.

    Raises:
        IntegrityError: If there is a link, a pipe, a socket or a device.
    """
    for path in paths.entries():
        disk.check_kind(path, folder=not path.name.startswith((".", "CURRENT")))


def mark_as_own(paths: DatasetPaths) -> None:
    """Mark a folder in which a dataset begins, so that whatever a killed command leaves there is known to be ours.

    Raises:
        InvalidArgumentError: If there is no dataset, and the folder holds files that are not of a dataset.
    """
    if not paths.is_own:
        paths.check_changeable()
        paths.mark()


def leftovers(paths: DatasetPaths) -> list[Path]:
    """Return what dead processes left in the folder of a dataset and no command resumes, sorted.

    `sweep` deletes these.
    """
    found = [version.folder for version in _completed(paths)]
    found += [path for path in paths.entries() if TRASH_NAME.fullmatch(path.name)]
    found += [file for place in _abandoned_places(paths) for file in disk.temporary_files(place)]
    return sorted(found)


def sweep(paths: DatasetPaths) -> None:
    """Delete what dead processes left in the folder of a dataset. Release what a command resumes or reuses."""
    for version in _completed(paths):
        version.discard()
    disk.empty_trash(paths.folder)
    for place in _abandoned_places(paths):
        disk.free_temporary_files(place)
    with suppress(OSError):
        for folder in filter(disk.is_abandoned, disk.claims_of(paths.raw)):
            disk.remove_empty(folder)
            disk.release(folder)
    with suppress(ManifestError):
        if read_current(paths.folder) is not None:
            unmark_folder(paths.folder)


def _completed(paths: DatasetPaths) -> list[Version]:
    """Return what is of no more use since the current version was published, see `_superfluous`."""
    with suppress(OSError, ManifestError, NotADatasetError):
        version = Version(paths.version)
        manifest = version.manifest
        builds = disk.claims_of(_build_folder(paths, manifest.request, manifest.parent))
        return _superfluous(paths, version, builds)
    return []


def _abandoned_places(paths: DatasetPaths) -> list[Path]:
    """Return the folders of a dataset that may have temporary files of dead processes."""
    with suppress(OSError):
        unfinished = [*paths.builds(), *disk.plain_folders(paths.recorded, paths.folder)] if paths.is_own else []
        abandoned = filter(disk.is_abandoned, [paths.folder, *unfinished])
        return [place for folder in abandoned for place in (folder, folder / VERSION_FOLDER)]
    return []


def remove_if_empty(paths: DatasetPaths) -> None:
    """Delete the folder of a dataset that has nothing, and the empty parent folders below the root."""
    if paths.is_own:
        disk.remove_empty(paths.recorded)
    while all(path == paths.mark_file for path in paths.entries()) and unmark_folder(paths.folder):
        disk.remove_empty(paths.folder)
        if not any(is_own_name(path.name) for path in paths.foreign()):
            break
        paths.mark()  # another process has just begun there, and may have ended since: only the mark is left then
    disk.remove_empty_parents(paths.folder / "entry", paths.root)


@dataclass(frozen=True)
class Build:
    """An unfinished version, which this process has claimed."""

    paths: DatasetPaths
    request: str
    """The request for the build, as canonical JSON."""
    parent: Version | None
    """The version that the new version is made of, or replaces."""
    work: Path
    """The folder of everything unfinished: the new version, the journal and partial datasets."""
    published: list[Version] = field(default_factory=list)

    @property
    def version(self) -> Path:
        """The folder of the new version during the build."""
        return self.work / VERSION_FOLDER

    @property
    def journal(self) -> Path:
        """The journal of the build: the chunks that are committed."""
        return self.work / "journal.jsonl"

    @property
    def upstream(self) -> Path:
        """The file with the upstream's description of the files."""
        return self.work / "upstream.json"

    def take_raw(self, raw: Path) -> None:
        """Move the claimed raw files of the dataset into the build, to be deleted when the build is published."""
        disk.remove_tree(self._raw)
        disk.release(raw, self._raw)

    def return_raw(self, raw: Path) -> None:
        """Move raw files that an interrupted process has moved into the build back to an empty claimed folder."""
        if self._raw.exists():
            disk.release(self._raw, raw)

    @property
    def _raw(self) -> Path:
        return self.work / "raw"


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(request: Any) -> str:
    """Return a request, a JSON value, as the text that a manifest records."""
    return _CANONICAL.encode(request)


def build_folder(paths: DatasetPaths, request: str, parent: Version | None) -> Path:
    """Return the folder of the build of a request, which need not exist, and may be claimed under another name."""
    return _build_folder(paths, request, parent.digest if parent else "")


def _build_folder(paths: DatasetPaths, request: str, parent_digest: str) -> Path:
    key = hashlib.sha256(f"{request} {parent_digest}".encode()).hexdigest()[:8]
    return paths.folder / f"build-{key}"


@contextmanager
def building(paths: DatasetPaths, request: str, parent: Version | None) -> Iterator[Build]:
    """Claim the build of a request, with what an interrupted process has completed.

    If the block does not publish the build, the build stays for the same request.

    Raises:
        IntegrityError: If a file or folder of the build is a link, a pipe or the like.
    """
    with disk.claimed(build_folder(paths, request, parent)) as work:
        build = Build(paths, request, parent, work)
        try:
            yield build
        except DiskFullError as error:
            # The name of the build means nothing to the reader of the message.
            error.message = error.message.replace(str(error.path), str(paths.folder))
            raise
        finally:
            if build.published:
                disk.discard(work, paths.folder)


def _make_current(paths: DatasetPaths, version: Version) -> None:
    point_to(paths, version)
    for other in _superfluous(paths, version, paths.builds()):
        other.discard()


def _superfluous(paths: DatasetPaths, version: Version, builds: Sequence[Path]) -> list[Version]:
    """Return what is of no more use since a version is current: builds of dead processes, and superseded versions."""
    return [*map(Version, filter(disk.is_abandoned, builds)), *_superseded(paths, version)]


def point_to_published(paths: DatasetPaths, request: str, parent: Version | None) -> bool:
    """Make the version current that a request on a parent has made, and that was not pointed at, or no longer is.

    Args:
        paths: The dataset.
        request: The request, as canonical JSON.
        parent: The parent version of the build, or None for the first version.

    Returns:
        Whether there is such a version.
    """
    current = current_version(paths, replaces=True)
    for version in reversed(versions_of(paths)):
        if current is not None and version.number <= current.number:
            break
        with suppress(ManifestError):
            manifest = version.manifest
            if (manifest.request, manifest.parent) == (request, parent.digest if parent else ""):
                _make_current(paths, version)
                return True
    return False


def publish(build: Build, accept: Callable[[Manifest], None] | None = None) -> Version:
    """Make a finished build the current version of the dataset.

    Args:
        build: The build. The manifest is complete except for the request and the parent.
        accept: Called with the manifest before anything is published, to refuse the build by an error of this package. A
            refused build is deleted.

    Returns:
        The new version.

    Raises:
        DiskFullError: If the disk has no space left. The current version is unchanged.
    """
    from datasets_rl.format.manifest import Manifest

    paths = build.paths
    written = Manifest.read(build.version)
    if accept is not None:
        try:
            accept(written)
        except DatasetsRLError:
            disk.remove_tree(build.work, paths.folder)
            raise
    digest = build.parent.digest if build.parent is not None else ""
    manifest = replace(written, request=build.request, parent=digest)
    manifest.write(build.version)
    disk.sync_tree(build.version)
    # The name of a folder without a manifest, as of an interrupted copy, is taken, too.
    names = (path for path in paths.entries() if VERSION_NAME.fullmatch(path.name))
    number = max((Version(path).number for path in names), default=0) + 1
    version = Version(paths.folder / f"{number:04}-{manifest.digest[:8]}")
    try:
        disk.move_path(build.version, version.folder)
    except OSError:
        # The name has the digest: a process without the lock has published the same version.
        if not disk.is_plain_file(version.folder / MANIFEST_FILE):
            raise
    build.published.append(version)
    _make_current(paths, version)
    return version


def _superseded(paths: DatasetPaths, version: Version) -> list[Version]:
    """Return the versions that can be deleted without a loss, because the current version has all their data.

    The result has versions with the same digest, and the parent if the version has the episodes of the parent and more,
    is the result of the same request, or is a download like the parent. A parent that was preprocessed cannot be
    downloaded again.
    """
    manifest, found = version.manifest, []
    with suppress(ManifestError):  # a damaged version stays
        found += _with_digest(paths, manifest.digest, except_for=version)
        for parent in _with_digest(paths, manifest.parent)[:1]:
            is_download = manifest.request.startswith('{"download":') and not parent.manifest.history
            if is_download or manifest.request.startswith('{"append":') or manifest.request == parent.manifest.request:
                found.append(parent)
    return [other for other in found if not foreign_files(other.folder)]


def foreign_files(folder: Path) -> list[str]:
    """Return the paths of files in the folder of a version that are not the version's, sorted."""
    from datasets_rl.format.manifest import Manifest

    try:
        own = {entry.path for entry in Manifest.read(folder).files}
    except (ManifestError, NotADatasetError):  # the version is damaged, or another process has deleted the version
        own = {path.relative_to(folder).as_posix() for path in disk.files_below(folder) if path.suffix == ".npy"}
    existing = set()
    for parent, _, files in os.walk(folder):  # unlike rglob, os.walk passes over what is deleted in the meantime
        existing |= {Path(parent, name).relative_to(folder).as_posix() for name in files}
    return sorted(existing - own - {MANIFEST_FILE})
