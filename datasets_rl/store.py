"""Stored datasets and their versions: the folder layout, and the crash-safe replacement of one version by another.

    <root>/<name>/                        the dataset: its current version, a plain folder
    <root>/.versions/<name>/0001-<id>/    earlier versions, the oldest first, until they are pruned
    <root>/.raw/<name>/                   upstream files
    <root>/.work/<name>/                  an unfinished build
    <root>/.recorded/<name>/<run>/        episodes that are not yet a part of the dataset
    <root>/.work/<name>.lock              the owner file: the process that is changing the dataset
    <root>/.work/<name>.change-<run>      the record of the change that this process is making
    <root>/.rlds-trash/                   files that are being deleted

A version never changes, and its identity is the digest of its manifest. A change from one version to another is
recorded, with the identities of both, before the first rename:

    record  ->  exchange build and dataset  ->  move the old version  ->  trash the rest  ->  unlock  ->  drop the record

A process that is killed at any of these points leaves the record, and the next process that locks the dataset completes
the change: it recognizes each version by its identity, never by its name. A command that finds a completed record of
its own request knows that its work is done.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE, RECORDED_FOLDER, TRASH_FOLDER, VERSIONS_FOLDER, WORK_FOLDER
from datasets_rl.errors import (
    DiskFullError,
    InvalidArgumentError,
    LockedError,
    ManifestError,
    NotADatasetError,
    UnknownIdError,
)
from datasets_rl.remedy import Call, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import DERIVED

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest

RAW_FOLDER = ".raw"
"""The folder of upstream files, next to the datasets."""
STREAM_FOLDER = ".stream"
"""The folder of the shards that streams keep for later ones."""
_RECORD = ".change-"
_MAX_NAME_BYTES = 150
_DERIVED_NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._+,=-]{0,99}")
SHORT_WAIT = 2.0
"""Seconds that a short change waits for the lock: another command may be deleting leftovers."""
_SETTLE_PAUSE = 0.01
_SETTLE_SECONDS = 10.0
"""Seconds that a reader waits for a process between the two renames that replace an exchange where there is none."""
_LOOKS = 3
"""How often a reader finds neither a dataset nor a change before it believes that there is none: a change may begin and
end between the two."""


@dataclass(frozen=True, slots=True)
class DatasetPaths:
    """The paths of all files of one dataset, below the folder of its source."""

    root: Path
    """The source's folder, ``<RLDS_HOME>/d4rl``."""
    name: str
    """The id within the source; with ``@NAME`` for a derived dataset."""
    link: Path | None = None
    """The symbolic link that the user refers to, if the dataset is stored elsewhere."""

    @property
    def user_path(self) -> Path:
        """The path that the user refers to: the link, if there is one, else the folder."""
        return self.link or self.folder

    @property
    def folder(self) -> Path:
        """The folder of the finished dataset."""
        return self.root / self.name

    @property
    def raw(self) -> Path:
        """The folder of the upstream files, complete or partial."""
        return self.root / RAW_FOLDER / self.name

    @property
    def recorded(self) -> Path:
        """The folder of the recordings: finished episodes that are not yet a part of the dataset."""
        return self.root / RECORDED_FOLDER / self._flat

    @property
    def work(self) -> Path:
        """The folder of everything unfinished: the build, its journal and partial datasets."""
        return self.root / WORK_FOLDER / self._flat

    @property
    def build(self) -> Path:
        """The folder of the dataset while it is built."""
        return self.work / "build"

    @property
    def journal(self) -> Path:
        """The journal of the build: the chunks that are committed."""
        return self.work / "journal.jsonl"

    @property
    def upstream(self) -> Path:
        """The file with the upstream's description of its files."""
        return self.work / "upstream.json"

    @property
    def versions(self) -> Path:
        """The folder of the earlier versions of the dataset."""
        return self.root / VERSIONS_FOLDER / self._flat

    @property
    def lock(self) -> Path:
        """The owner file of the process that changes the dataset."""
        return self.root / WORK_FOLDER / f"{self._flat}.lock"

    @property
    def trash(self) -> Path:
        """The folder of files that are being deleted."""
        return self.root / TRASH_FOLDER

    @property
    def exists(self) -> bool:
        """Whether there is a finished dataset."""
        return (self.folder / MANIFEST_FILE).is_file()

    @property
    def folders(self) -> list[Path]:
        """The existing folders of the dataset: the dataset, its earlier versions, recordings, unfinished and raw files."""
        hidden = [path for path in (self.raw, self.work, self.versions, self.recorded) if path.exists()]
        return hidden + [self.folder] * self.exists

    @property
    def _flat(self) -> str:
        """The name as one path component, so that the files of ``a/b`` are not inside the work folder of ``a``."""
        flat = quote(self.name, safe=" @+,=")
        # These suffixes distinguish the owner files and records, which are next to the work folders.
        flat = flat.replace(".lock", "%2Elock").replace(_RECORD, quote(_RECORD).replace(".", "%2E"))
        if len(flat) <= _MAX_NAME_BYTES:
            return flat
        return f"{flat[:100]}-{hashlib.sha256(flat.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Version:
    """An earlier version of a dataset."""

    number: int
    """Its position among the versions; the downloaded version has the lowest."""
    folder: Path

    @property
    def manifest(self) -> Manifest:
        """The manifest of this version."""
        from datasets_rl.format.manifest import Manifest

        return Manifest.read(self.folder)


def dataset_paths(dataset_id: str, *, root: Path | str | None = None, settings: Settings | None = None) -> DatasetPaths:
    """Return the paths of a dataset, which need not exist yet.

    Args:
        dataset_id: The id with its source, ``d4rl/hopper-medium-v2``, or of a derived dataset,
            ``demo/pendulum@td3_bc``.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        settings: The settings; by default those of the environment.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the name of the derived dataset is not valid.
    """
    entry = sources.find(dataset_id)
    base, derived = sources.split_derived(dataset_id)
    mark = dataset_id[len(base) : len(base) + 1]
    if mark:
        check_derived_name(derived)
    if root is None:
        root = (settings or Settings.from_env()).home / entry.source
    paths = DatasetPaths(Path(root).expanduser().absolute(), f"{entry.name}{mark}{derived}")
    # Changes, locks and deletions apply to the dataset that the link points to; the link itself stays.
    linked = paths.folder.is_symlink() and paths.exists
    return replace(paths_of(paths.folder), link=paths.folder) if linked else paths


def check_derived_name(name: str) -> None:
    """Check the name of a derived dataset: the characters after the ``@`` in its id.

    Raises:
        InvalidArgumentError: If the name cannot be part of a folder's name.
    """
    if invalid := [part for part in name.split(DERIVED) if not _DERIVED_NAME.fullmatch(part)]:
        raise InvalidArgumentError(
            f"{invalid[0]!r} cannot name a derived dataset; expected at most 100 letters, digits and any of ._+,=- , "
            "and not a number",
            hint="choose another name",
        )


def id_or_path(dataset: str | Path) -> str | Path:
    """Distinguish a path, such as the folder of a dataset, from an id.

    Args:
        dataset: An id or a path. A folder in the working directory never hides a known id.

    Returns:
        A path, or the id unchanged.
    """
    path = Path(dataset).expanduser()
    if isinstance(dataset, Path) or path.is_absolute() or dataset.startswith((".", "~")):
        return path
    with suppress(UnknownIdError):
        sources.find(dataset)
        return dataset
    # Unlike the method of Path, this is False for a name that is too long for the file system.
    return path if dataset and os.path.exists(path) else dataset  # noqa: PTH110 - see above


def is_settled(paths: DatasetPaths) -> bool:
    """Return whether the dataset exists, after completing any change that a dead process recorded."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    absent = 0
    while absent < _LOOKS and time.monotonic() < deadline:
        if changing := has_unfinished_change(paths):
            with suppress(DiskFullError, LockedError, OSError), disk.lock(paths.lock, paths.name, wait=0):
                _settle_changes(paths)
                return paths.exists
        # Looking again would not do: the next change may begin in between.
        if paths.exists:
            return True
        if changing or has_unfinished_change(paths):
            time.sleep(_SETTLE_PAUSE)  # a live process is between two renames
        else:
            absent += 1
    return False


def paths_of(folder: Path) -> DatasetPaths:
    """Return the paths of the dataset in a folder; the root is that of its id if the folder is named after the id."""
    from datasets_rl.format.manifest import Manifest

    folder = folder.expanduser().resolve()
    with suppress(NotADatasetError, ManifestError):
        return named_paths(folder, Manifest.read(folder).id)
    # On a file system without an exchange the dataset may be missing for a moment, but then a change is recorded.
    candidates = [DatasetPaths(root, folder.relative_to(root).as_posix()) for root in folder.parents]
    return next((paths for paths in candidates if has_unfinished_change(paths)), candidates[0])


def named_paths(folder: Path, dataset_id: str) -> DatasetPaths:
    """Return the paths of a dataset in a folder.

    If the path of the folder ends with the name in the id, which may contain slashes, the root is the folder above the
    whole name; else it is the parent folder.
    """
    name = dataset_id.partition("/")[2]
    if name and folder.as_posix().endswith(f"/{name}"):
        return DatasetPaths(folder.parents[name.count("/")], name)
    return DatasetPaths(folder.parent, folder.name)


def source_folders(home: Path) -> list[Path]:
    """Return the folders of the sources below the folder of all datasets, sorted."""
    return sorted(path for path in home.glob("*") if path.is_dir() and path.name[0] != ".")


def stored_folders(home: Path) -> Iterator[Path]:
    """Yield the folder of every finished dataset below a home folder, sorted."""
    seen: set[Path] = set()
    for source_folder in source_folders(home):
        # Links may lead to datasets on other disks; `seen` ends the cycle of a link to a parent folder.
        for path, folders, files in os.walk(source_folder, followlinks=True):
            folder = Path(path)
            is_leaf = MANIFEST_FILE in files or folder.resolve() in seen
            seen.add(folder.resolve())
            folders[:] = [] if is_leaf else sorted(name for name in folders if not name.startswith("."))
            if MANIFEST_FILE in files:
                yield folder


def derived_paths(base: DatasetPaths) -> list[DatasetPaths]:
    """Return the paths of the datasets that were derived from a dataset, sorted."""
    parent = base.folder.parent
    prefix = f"{base.folder.name}{DERIVED}"
    names = sorted(path.name for path in parent.iterdir() if path.name.startswith(prefix)) if parent.is_dir() else []
    candidates = [DatasetPaths(base.root, f"{base.name}{name.removeprefix(base.folder.name)}") for name in names]
    return [paths for paths in candidates if paths.exists]


def last_history_entry(paths: DatasetPaths) -> Mapping[str, Any]:
    """Return the last entry in the history of a dataset; an empty one if it is not stored, or not preprocessed."""
    from datasets_rl.format.manifest import Manifest

    with suppress(NotADatasetError, ManifestError):  # a damaged dataset is not the result of any run
        return next(reversed(Manifest.read(paths.folder).history), {})
    return {}


def versions(paths: DatasetPaths) -> list[Version]:
    """Return the earlier versions of a dataset, the oldest first."""
    earlier = []
    for path in paths.versions.glob("*-*"):
        number = path.name.partition("-")[0]
        if number.isdigit() and (path / MANIFEST_FILE).is_file():
            earlier.append(Version(int(number), path))
    return sorted(earlier, key=lambda version: version.number)


def undo(folder: Path) -> Path:
    """Restore the previous version of a dataset, and delete the current one.

    Each call goes back by one version, down to the download. If a call was killed after it had made the change,
    repeating it changes nothing.

    Raises:
        InvalidArgumentError: If there is no earlier version.
        LockedError: If another process is changing the dataset.
    """
    paths = paths_of(folder)
    with transaction(paths, str(folder), ["undo"], wait=SHORT_WAIT, repeatable=False) as change:
        if change.finished:
            return paths.folder
        earlier = versions(paths)
        if not earlier:
            raise InvalidArgumentError(
                f"{folder} has no earlier version: it was not preprocessed in place, or every preprocessing was undone",
                hint=Remedy("{} shows its versions", Call("info", folder)),
            )
        check_own_files(paths.folder)
        change.restore(earlier[-1])
    return paths.folder


def remove(dataset_id: str, *, root: Path | str | None = None, settings: Settings | None = None) -> int:
    """Delete a dataset with its earlier versions and its raw and unfinished files.

    The datasets derived from it stay.

    Returns:
        Bytes freed; 0 if the dataset does not exist.

    Raises:
        UnknownIdError: If there is no such id.
        LockedError: If another process is changing the dataset.
    """
    return _remove(dataset_paths(dataset_id, root=root, settings=settings), dataset_id)


def remove_folder(folder: Path) -> int:
    """Delete a dataset given by its folder; see `remove`."""
    return _remove(paths_of(folder), str(folder))


def _remove(paths: DatasetPaths, name: str) -> int:
    try:
        with transaction(paths, name, ["remove"], wait=SHORT_WAIT) as change:
            if change.finished:
                return change.freed
            freed = sum(map(disk.tree_bytes, paths.folders))
            if paths.exists:
                check_own_files(paths.folder)
            change.remove(freed)
    except DiskFullError:
        # The disk has no room for a lock or a record. Deleting the manifest first means that a kill leaves no dataset.
        freed = sum(map(disk.tree_bytes, paths.folders))
        folders = paths.folders
        (paths.folder / MANIFEST_FILE).unlink(missing_ok=True)
        for path in folders:
            disk.remove_tree(path)
            disk.remove_empty_parents(path, paths.root)
    return freed


def prune(paths: DatasetPaths, *, dry_run: bool = False) -> int:
    """Delete the earlier versions of a dataset; they cannot be restored afterwards.

    Args:
        paths: The dataset.
        dry_run: Only count the bytes.

    Returns:
        Bytes freed.

    Raises:
        LockedError: If another process is changing the dataset.
    """
    freed = sum(disk.tree_bytes(version.folder) for version in versions(paths))
    if freed and not dry_run:
        with transaction(paths, str(paths.folder), ["prune"], wait=SHORT_WAIT):
            disk.discard(paths.versions, paths.root)
    return freed


def prune_raw(paths: DatasetPaths, *, dry_run: bool = False) -> int:
    """Delete the upstream files of a dataset, complete and partial ones; a later download fetches them again.

    Args:
        paths: The dataset.
        dry_run: Only count the bytes.

    Returns:
        Bytes freed.

    Raises:
        LockedError: If another process is changing the dataset.
    """
    freed = disk.tree_bytes(paths.raw) if paths.raw.exists() else 0
    if freed and not dry_run:
        with transaction(paths, str(paths.folder), ["prune raw"], wait=SHORT_WAIT):
            disk.discard(paths.raw, paths.root)
    return freed


def check_own_files(folder: Path) -> None:
    """Check that the folder of a dataset holds only the files of the dataset, before it is deleted.

    Raises:
        InvalidArgumentError: If there are other files; the error names them.
    """
    from datasets_rl.format.manifest import Manifest

    try:
        own = {entry.path for entry in Manifest.read(folder).files}
    except ManifestError:
        own = {path.relative_to(folder).as_posix() for path in folder.rglob("*.npy")}
    existing = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    foreign = sorted(existing - own - {MANIFEST_FILE})
    if foreign:
        more = f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else ""
        raise InvalidArgumentError(
            f"{folder} holds files that are not the dataset's: {', '.join(foreign[:3])}{more}",
            hint="move them: the folder is about to be replaced or deleted",
        )


def check_folder(paths: DatasetPaths) -> None:
    """Check that the folder of a dataset is a place for one.

    Raises:
        InvalidArgumentError: If it holds files that are not a dataset, is inside another dataset, or contains one.
    """
    disk.check_nesting(paths.folder)
    if paths.folder.exists() and not paths.exists and (not paths.folder.is_dir() or any(paths.folder.iterdir())):
        raise InvalidArgumentError(
            f"{paths.folder} already exists: it holds files that are not a dataset",
            hint="move it, or choose another place",
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """A change from one version to another, as recorded before anything is renamed."""

    name: str
    """The dataset's name below the root."""
    request: str
    """The request of the command, as JSON text."""
    process: list[str]
    """The process that makes the change: its boot id, PID namespace, PID and start time."""
    old: str | None
    """The identity of the dataset before the change; None if there was none."""
    new: str | None
    """The identity of the dataset after the change; None if it is removed."""
    inode: int
    """The inode of the new version's folder, or of the removed one; renames keep it, and copies have another one."""
    staged: str
    """The path of the new version, relative to the root; after the exchange, that of the old one."""
    kept: str
    """The path to which the old version is moved; empty if it is moved to the trash."""
    drop: tuple[str, ...]
    """Further paths that are moved to the trash."""
    freed: int = 0
    """The bytes that a removal frees."""

    @classmethod
    def read(cls, path: Path) -> _Change | None:
        """Read a record; None if it is gone or damaged."""
        with suppress(OSError, ValueError, TypeError):
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**document, "drop": tuple(document["drop"])})
        return None

    @property
    def of_this_process(self) -> bool:
        """Whether this process recorded it, in any thread."""
        return self.process[:3] == [*disk.machine_identity(), str(os.getpid())]

    @property
    def abandoned(self) -> bool:
        """Whether the process that recorded it is dead; valid only while the caller holds the lock."""
        *machine, pid, start_time = self.process
        return machine != disk.machine_identity() or disk.process_start_time(int(pid)) != start_time


@dataclass
class Transaction:
    """The change that a command makes to a dataset while it holds the lock of the dataset."""

    paths: DatasetPaths
    request: str
    finished: bool = False
    """Whether a process with the same request has already made the change, and was killed afterwards."""
    freed: int = 0
    """The bytes that this earlier process freed, if it removed the dataset."""
    records: list[Path] = field(default_factory=list)

    def publish(self, *, keep: bool = False, drop: Sequence[Path] = ()) -> None:
        """Replace the dataset by the finished build.

        Args:
            keep: Whether the replaced version becomes the last of the earlier versions; else it is deleted.
            drop: Paths that are deleted afterwards, in addition to the work folder.
        """
        paths = self.paths
        disk.sync_tree(paths.build)
        old = disk.folder_identity(paths.folder)
        kept = ""
        if keep and old is not None:
            number = max((version.number for version in versions(paths)), default=0) + 1
            kept = self._relative(paths.versions / f"{number:04}-{old[:12]}")
        self._apply_change(old, disk.folder_identity(paths.build), paths.build, kept, (paths.work, *drop))

    def restore(self, version: Version) -> None:
        """Replace the dataset by an earlier version, and delete the replaced one."""
        paths = self.paths
        self._apply_change(
            disk.folder_identity(paths.folder), disk.folder_identity(version.folder), version.folder, "", (paths.work,)
        )

    def remove(self, freed: int) -> None:
        """Delete the dataset with its earlier versions and its raw and unfinished files: `freed` bytes in total."""
        paths = self.paths
        drop = (paths.versions, paths.raw, paths.work, paths.recorded)
        self._apply_change(disk.folder_identity(paths.folder), None, paths.build, "", drop, freed)

    def _apply_change(
        self, old: str | None, new: str | None, staged: Path, kept: str, drop: Sequence[Path], freed: int = 0
    ) -> None:
        paths = self.paths
        change = _Change(
            name=paths.name,
            request=self.request,
            process=[*disk.machine_identity(), str(os.getpid()), str(disk.process_start_time(os.getpid()))],
            old=old,
            new=new,
            inode=_inode(staged if new is not None else paths.folder),
            staged=self._relative(staged),
            kept=kept,
            drop=tuple(map(self._relative, drop)),
            freed=freed,
        )
        record = paths.lock.with_name(f"{paths.lock.stem}{_RECORD}{uuid4().hex[:12]}")
        self.records.append(record)
        _LIVE.add(record)
        disk.write_json(record, asdict(change))
        _complete_change(paths, change)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.paths.root).as_posix()


@contextmanager
def transaction(
    paths: DatasetPaths,
    name: str,
    request: Any,
    *,
    wait: float = 3600.0,
    waiting: Callable[[str], None] | None = None,
    repeatable: bool = True,
) -> Iterator[Transaction]:
    """Lock a dataset for a change, after completing the change of a process that died.

    Args:
        paths: The paths of the dataset.
        name: The name of the dataset in messages.
        request: The request of the change, a JSON value: equal when the same command is run again.
        wait: Seconds to wait for another process that changes the dataset.
        waiting: Called once with the name of that process.
        repeatable: Whether making the same request twice results in the same version as making it once.

    Raises:
        LockedError: If the other process did not finish in time.
    """
    text = json.dumps(request, sort_keys=True, default=str)
    change = Transaction(paths, text)
    try:
        with disk.lock(paths.lock, name, wait=wait, waiting=waiting):
            done = _settle_changes(paths)
            same = {path: earlier for path, earlier in done.items() if earlier.request == text}
            change.finished, change.freed = bool(same), sum(earlier.freed for earlier in same.values())
            change.records += same
            for path in done.keys() - same.keys():
                path.unlink(missing_ok=True)
            yield change
            _sweep_dataset(paths, keep=change.records)
        # The record is deleted last: until then the same command, run again, finds that its work is done.
        for record in change.records:
            record.unlink(missing_ok=True)
    finally:
        _LIVE.difference_update(change.records)
    if repeatable:
        _remove_empty_hidden(paths.root)


def _sweep_dataset(paths: DatasetPaths, keep: Sequence[Path] = ()) -> None:
    """Delete the leftovers of dead processes for one dataset; the caller holds its lock."""
    is_resumable = paths.journal.exists() or bool(set(_change_records(paths)) - set(keep))
    disk.empty_trash(paths.trash)
    with suppress(OSError):
        disk.free_temporary_files(paths.lock.parent, f"{paths.lock.stem}*")
        for folder in (paths.work, paths.build):
            disk.free_temporary_files(folder)
        if not is_resumable:
            disk.discard(paths.build, paths.root)


def _remove_empty_hidden(root: Path) -> None:
    for folder in (WORK_FOLDER, TRASH_FOLDER, VERSIONS_FOLDER, RAW_FOLDER, RECORDED_FOLDER):
        with suppress(OSError):
            (root / folder).rmdir()


_LIVE: set[Path] = set()
"""The records of the changes that are running in this process, in any thread."""


def has_unfinished_change(paths: DatasetPaths) -> bool:
    """Return whether a change of a dataset is recorded that may be incomplete."""
    return any(_change_records(paths))


def has_change_records(root: Path) -> bool:
    """Return whether changes are recorded below the folder of a source."""
    return any((root / WORK_FOLDER).glob(f"*{_RECORD}*"))


def _change_records(paths: DatasetPaths) -> Iterator[Path]:
    """Yield the files that record the changes of a dataset, by name."""
    prefix = f"{paths.lock.stem}{_RECORD}"
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(paths.lock.parent.iterdir()):
            if path.name.startswith(prefix):
                yield path


def _settle_changes(paths: DatasetPaths) -> dict[Path, _Change]:
    """Complete every recorded change; return the applied ones of dead processes, whose records the caller deletes."""
    changes = {path: _Change.read(path) for path in _change_records(paths)}
    done = {}
    for path, change in changes.items():
        if change is None or change.name != paths.name:
            continue
        applied = _complete_change(paths, change)
        if change.abandoned or (change.of_this_process and path not in _LIVE):
            if applied:
                done[path] = change
            else:
                path.unlink(missing_ok=True)
    return done


def _complete_change(paths: DatasetPaths, change: _Change) -> bool:
    """Complete a change, from whichever of its operations it was interrupted at.

    Returns False if the folder holds another dataset by now, which the change does not concern.

    old, new    identities      dataset  staged
                                old      new       -> exchange
                                new      old       -> move or trash the old one
                                new      -         -> trash the rest
                                -        new       -> move the new one to the dataset's folder
    """
    staged = paths.root / change.staged
    current = disk.folder_identity(paths.folder)
    if change.new is None:
        if current is not None and (current != change.old or _inode(paths.folder) != change.inode):
            return False  # the earlier versions may belong to the dataset that the user has stored here
        if current is not None:
            disk.discard(paths.folder, paths.root)
    elif current != change.new or (change.old == change.new and _inode(paths.folder) != change.inode):
        if disk.folder_identity(staged) != change.new or current not in {change.old, None}:
            return False  # the user has stored another dataset here
        former = paths.root / change.kept if change.kept else paths.trash / uuid4().hex
        disk.replace_folder(staged, paths.folder, former)
        disk.remove_empty_parents(staged, paths.root)
    if change.new is not None and (remaining := disk.folder_identity(staged)) is not None:
        if remaining == change.old and change.kept and not (paths.root / change.kept).exists():
            disk.move_path(staged, paths.root / change.kept)
        elif remaining in {change.old, change.new}:
            disk.discard(staged, paths.root)
    for path in change.drop:
        disk.discard(paths.root / path, paths.root)
    return True


def _inode(folder: Path) -> int:
    return folder.stat().st_ino if folder.exists() else 0


def discard_work(paths: DatasetPaths) -> None:
    """Delete the work folder of a dataset: an unfinished build that no command will complete."""
    disk.discard(paths.work, paths.root)


def sweep(root: Path, *, spare: Callable[[str], bool] = lambda _: False) -> None:
    """Delete the leftovers of dead processes below the folder of a source, and complete their recorded changes.

    Builds that a command could resume are kept, and so are the files of live processes. Folders without write
    permission are skipped.

    Args:
        root: The folder of the source; its hidden folders belong to this package.
        spare: Given the name of a dataset, returns whether to leave its recorded changes to the command that follows:
            if that repeats the recorded request, it must see the record. By default no changes are left.
    """
    work = root / WORK_FOLDER
    with suppress(OSError):
        if work.is_dir():
            held = {path.stem for path in disk.free_owner_files(work)}
            disk.free_temporary_files(work)
            _sweep_records(work, spare)
            for folder in _unlocked_work_folders(work, held):
                disk.free_temporary_files(folder)
                disk.free_temporary_files(folder / "build")
                # Without a journal the build cannot be resumed.
                if (folder / "build").exists() and not (folder / "journal.jsonl").exists():
                    _discard_unless_held(folder / "build", folder, resumable=False)
    for recordings in (root / RECORDED_FOLDER).glob("*"):
        with suppress(OSError):
            disk.free_owner_files(recordings)
            for folder in recordings.iterdir():
                disk.free_temporary_files(folder)
            recordings.rmdir()
    disk.empty_trash(root / TRASH_FOLDER)
    _remove_empty_hidden(root)


def sweep_folder(folder: Path) -> None:
    """Delete the leftovers of dead processes for a dataset given by its folder, and complete their recorded changes."""
    paths = paths_of(folder)
    if not any((paths.root / hidden).exists() for hidden in (WORK_FOLDER, TRASH_FOLDER)):
        return
    with suppress(DiskFullError, LockedError, OSError):
        with disk.lock(paths.lock, paths.name, wait=0):
            for path in _settle_changes(paths):
                path.unlink(missing_ok=True)
            _sweep_dataset(paths)
        _remove_empty_hidden(paths.root)


def _sweep_records(work: Path, spare: Callable[[str], bool]) -> None:
    for record in sorted(work.glob(f"*{_RECORD}*")):
        change = _Change.read(record)
        if change is None or not change.abandoned or spare(change.name):
            continue
        paths = DatasetPaths(work.parent, change.name)
        with suppress(DiskFullError, LockedError), disk.lock(paths.lock, paths.name, wait=0):
            for path in _settle_changes(paths):
                path.unlink(missing_ok=True)


def sweep_builds(root: Path, *, dry_run: bool = False) -> int:
    """Delete the unfinished builds below the folder of a source, which their commands could resume.

    Args:
        root: The folder of the source.
        dry_run: Only count the bytes.

    Returns:
        Bytes freed.
    """
    work, freed = root / WORK_FOLDER, 0
    if work.is_dir():
        for folder in _unlocked_work_folders(work, {path.stem for path in disk.free_owner_files(work)}):
            freed += disk.tree_bytes(folder)
            if not dry_run:
                _discard_unless_held(folder, folder, resumable=True)
    return freed


def prune_streams(root: Path, *, dry_run: bool = False) -> int:
    """Delete the shards that streams left for later ones; those of open streams remain.

    Args:
        root: The folder of a source, or of all sources.
        dry_run: Only count the bytes.

    Returns:
        Bytes freed.
    """
    freed = 0
    inside = (path for name in ("shards", "raw") for path in (root / STREAM_FOLDER).rglob(name))
    for folder in sorted({path.parent for path in inside if path.parent.name.isdigit()}):
        with suppress(LockedError), disk.lock(folder.with_name(f"{folder.name}.lock"), str(folder), wait=0):
            freed += disk.tree_bytes(folder)
            if not dry_run:
                disk.discard(folder, root)
    return freed


def _unlocked_work_folders(work: Path, held: set[str]) -> list[Path]:
    """Return the work folders without a lock or a recorded change: with one, the old version may be in the folder."""
    paths = list(work.iterdir())
    changing = {path.name.rpartition(_RECORD)[0] for path in paths if _RECORD in path.name}
    return [path for path in paths if path.is_dir() and path.name not in held | changing]


def _discard_unless_held(path: Path, folder: Path, *, resumable: bool) -> None:
    with suppress(DiskFullError, LockedError), disk.lock(folder.with_name(f"{folder.name}.lock"), folder.name, wait=0):
        # Another process may have started, or died, since the folder was listed.
        is_recorded = any(path.name.startswith(f"{folder.name}{_RECORD}") for path in folder.parent.iterdir())
        if not is_recorded and (resumable or not (folder / "journal.jsonl").exists()):
            disk.discard(path, folder.parents[1])


def upgrade(folder: Path, *, wait: float = 3600.0) -> bool:
    """Rewrite the manifest of a stored dataset in the current version of the format.

    The other files are not copied: both versions share them. An open reader keeps the manifest that it has read.

    Args:
        folder: The folder of the dataset.
        wait: Seconds to wait for another process that changes the dataset.

    Returns:
        Whether the manifest had an earlier version of the format.

    Raises:
        ManifestError: If the manifest cannot be read.
        InvalidArgumentError: If the folder holds files that are not the dataset's.
        LockedError: If the other process did not finish in time.
    """
    from datasets_rl.format.manifest import FORMAT_VERSION, Manifest, read_document

    paths = paths_of(folder)
    with transaction(paths, str(folder), ["upgrade"], wait=wait) as change:
        if change.finished or read_document(paths.folder).get("format_version") == FORMAT_VERSION:
            return change.finished
        manifest = Manifest.read(paths.folder)
        check_own_files(paths.folder)
        disk.remove_tree(paths.build)
        for entry in manifest.files:
            disk.link_or_copy(paths.folder / entry.path, paths.build / entry.path)
        manifest.write(paths.build)
        change.publish(keep=False)
    return True
