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

A process that is killed at any of these points leaves the record, and the next process that writes the dataset completes
the change: it recognizes each version by its identity, never by its name. A command that finds a completed record of
its own request knows that its work is done. Readers change nothing: they take no lock, complete nothing and delete
nothing.

The hidden files may be those of a folder that other people made, so that they are read like any other input: what
is a link, a pipe or a device is refused, a record counts only if all its paths are hidden paths of its dataset, and
nothing outside of the root is ever deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE, RECORDED_FOLDER, TRASH_FOLDER, VERSIONS_FOLDER, WORK_FOLDER
from datasets_rl.errors import (
    DatasetsRLError,
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
_CHANGE_PAUSE = 0.01
_CHANGE_SECONDS = 10.0
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
    # Changes, locks and deletions apply to the dataset that a link leads to; the link itself stays.
    linked = paths.exists and paths.folder.resolve() != paths.root.resolve() / paths.name
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


def is_present(paths: DatasetPaths) -> bool:
    """Return whether the dataset exists; nothing is changed.

    Where the file system cannot exchange two names, a dataset that is replaced is missing for a moment. This waits for
    the process that replaces it, unless that process is dead.
    """
    deadline = time.monotonic() + _CHANGE_SECONDS
    absent = 0
    while absent < _LOOKS:
        changing = _is_changing(paths)
        # Looking again would not do: the next change may begin in between.
        if paths.exists:
            return True
        if (changing or _is_changing(paths)) and time.monotonic() < deadline:
            time.sleep(_CHANGE_PAUSE)  # a live process is between two renames
        else:
            absent += 1
    return False


def _is_changing(paths: DatasetPaths) -> bool:
    """Return whether a process that may be alive has recorded a change of a dataset."""
    return any(change.may_be_running(path) for path, change in _changes(paths).items())


def paths_of(folder: Path) -> DatasetPaths:
    """Return the paths of the dataset in a folder; the root is that of its id if the folder is named after the id.

    Raises:
        NotADatasetError: If the folder is the root of a file system.
    """
    from datasets_rl.format.manifest import Manifest

    folder = folder.expanduser().resolve()
    if folder == folder.parent:
        raise NotADatasetError(folder, "it is the root of a file system")
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
    for path in disk.plain_folders(paths.versions, paths.root):
        number, mark, _ = path.name.partition("-")
        if number.isdigit() and mark and disk.is_plain_file(path / MANIFEST_FILE):
            earlier.append(Version(int(number), path))
    return sorted(earlier, key=lambda version: version.number)


def undo(folder: Path, *, reported: ExitStack | None = None) -> Path:
    """Restore the previous version of a dataset, and delete the current one.

    Each call goes back by one version, down to the download. If a call was killed after it had made the change,
    repeating it changes nothing.

    Args:
        folder: The folder of the dataset.
        reported: A stack that the caller closes once the user knows of the change: until then, a repetition after a
            kill changes nothing.

    Raises:
        InvalidArgumentError: If there is no earlier version.
        ManifestError: If the manifest of the earlier version is damaged; nothing is changed then.
        LockedError: If another process is changing the dataset.
    """
    paths = paths_of(folder)
    with transaction(paths, str(folder), ["undo"], wait=SHORT_WAIT, repeatable=False, reported=reported) as change:
        if change.finished:
            return paths.folder
        earlier = versions(paths)
        if not earlier:
            raise InvalidArgumentError(
                f"{folder} has no earlier version: it was not preprocessed in place, or every preprocessing was undone",
                hint=Remedy("{} shows its versions", Call("info", folder)),
            )
        check_own_files(paths.folder)
        _ = earlier[-1].manifest  # a damaged version replaces nothing
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
            disk.remove_tree(path, paths.root)
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
    stamp: int
    """The time in nanoseconds at which the manifest of the new version, or of the removed one, was last changed as a
    file; renames of its folder keep it, and copies have another one."""
    staged: str
    """The path of the new version, relative to the root; after the exchange, that of the old one."""
    kept: str
    """The path to which the old version is moved; empty if it is moved to the trash."""
    drop: tuple[str, ...]
    """Further paths that are moved to the trash."""
    freed: int = 0
    """The bytes that a removal frees."""

    @classmethod
    def read(cls, path: Path, paths: DatasetPaths) -> _Change | None:
        """Read a record; None if it is gone, damaged, or not a record of this dataset."""
        with suppress(DatasetsRLError, OSError, LookupError, RecursionError, TypeError, ValueError):
            document = json.loads(disk.read_plain(path))
            change = cls(**{**document, "drop": tuple(document["drop"])})
            return change if change._has_types() and change._stays_inside(paths) else None
        return None

    def _has_types(self) -> bool:
        texts = [self.name, self.request, self.staged, self.kept, *self.drop, *self.process]
        return (
            all(isinstance(text, str) for text in texts)
            and all(type(number) is int for number in (self.stamp, self.freed))
            and all(one is None or _IDENTITY.fullmatch(one) for one in (self.old, self.new))
            and len(self.process) == 4
            and self.process[2].isdigit()
        )

    def _stays_inside(self, paths: DatasetPaths) -> bool:
        """Return whether it is a change of this dataset, and names nothing but hidden paths of this dataset."""
        staged, kept, *drop = (paths.root / path for path in (self.staged, self.kept, *self.drop))
        hidden = {paths.work, paths.versions, paths.raw, paths.recorded}
        return (
            self.name == paths.name
            and (staged == paths.build or _is_inside(staged, paths.versions))
            and (not self.kept or _is_inside(kept, paths.versions))
            and all(path in hidden or _is_inside(path, paths.recorded) for path in drop)
        )

    @property
    def of_this_process(self) -> bool:
        """Whether this process recorded it, in any thread."""
        return self.process[:3] == [*disk.machine_identity(), str(os.getpid())]

    @property
    def abandoned(self) -> bool:
        """Whether the process that recorded it is dead; valid only while the caller holds the lock."""
        *machine, pid, start_time = self.process
        return machine != disk.machine_identity() or disk.process_start_time(int(pid)) != start_time

    def may_be_running(self, record: Path) -> bool:
        """Return whether the process that recorded it may be alive; a process of another machine, for a few seconds."""
        if not self.abandoned:
            return True
        with suppress(OSError):
            is_remote = self.process[:2] != disk.machine_identity()
            return is_remote and 0 <= time.time() - record.lstat().st_mtime < _CHANGE_SECONDS
        return False


_IDENTITY = re.compile("[0-9a-f]{64}")


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is that of an entry of a folder."""
    return path.parent == folder and path.name not in {"", ".."}


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
            stamp=_stamp(staged if new is not None else paths.folder),
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
    reported: ExitStack | None = None,
) -> Iterator[Transaction]:
    """Lock a dataset for a change, after completing the change of a process that died.

    Args:
        paths: The paths of the dataset.
        name: The name of the dataset in messages.
        request: The request of the change, a JSON value: equal when the same command is run again.
        wait: Seconds to wait for another process that changes the dataset.
        waiting: Called once with the name of that process.
        repeatable: Whether making the same request twice results in the same version as making it once.
        reported: A stack on which the deletion of the record is put; by default the record is deleted at the end.

    Raises:
        LockedError: If the other process did not finish in time.
        IntegrityError: If a hidden path of the dataset is a link, a pipe or the like.
    """
    text = json.dumps(request, sort_keys=True, default=str)
    change = Transaction(paths, text)
    try:
        with _locked(paths, name, wait=wait, waiting=waiting):
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
            if reported is None:
                record.unlink(missing_ok=True)
            else:
                reported.callback(record.unlink, missing_ok=True)
    finally:
        _LIVE.difference_update(change.records)
    if repeatable:
        _remove_empty_hidden(paths.root)


@contextmanager
def _locked(
    paths: DatasetPaths, name: str, *, wait: float, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the lock of a dataset, all of whose hidden paths are plain files and folders."""
    check_hidden(paths)
    with disk.lock(paths.lock, name, wait=wait, waiting=waiting):
        yield


def check_hidden(paths: DatasetPaths) -> None:
    """Check that nothing hidden that a change of a dataset would use leads elsewhere, or would block it.

    Raises:
        IntegrityError: If there is a link, a pipe, a socket or a device.
    """
    _check_hidden_folders(paths.root)
    own = (paths.work, paths.versions, paths.raw, paths.recorded)
    for top in own:
        for path in (*[one for one in reversed(top.parents) if paths.root in one.parents], top):
            disk.check_kind(path, folder=True)
        # Recordings are judged one by one by what adds them: a damaged one does not block the others.
        for folder, folders, files in os.walk(top) if top != paths.recorded else ():
            for name in folders:
                disk.check_kind(Path(folder, name), folder=True)
            for name in files:
                disk.check_kind(Path(folder, name), folder=False)
    for path in (paths.lock, *_change_records(paths)):
        disk.check_kind(path, folder=False)


def _check_hidden_folders(root: Path) -> None:
    for name in _HIDDEN:
        disk.check_kind(root / name, folder=True)


_HIDDEN = (WORK_FOLDER, TRASH_FOLDER, VERSIONS_FOLDER, RAW_FOLDER, RECORDED_FOLDER)


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
    for folder in _HIDDEN:
        with suppress(OSError):
            (root / folder).rmdir()


_LIVE: set[Path] = set()
"""The records of the changes that are running in this process, in any thread."""


def has_unfinished_change(paths: DatasetPaths) -> bool:
    """Return whether a change of a dataset is recorded that may be incomplete."""
    return bool(_changes(paths))


def is_half_stored(paths: DatasetPaths) -> bool:
    """Return whether a version is recorded that was to become the dataset."""
    return any(change.new is not None for change in _changes(paths).values())


def _changes(paths: DatasetPaths) -> dict[Path, _Change]:
    """Return the recorded changes of a dataset by their files, without what is not a record of this dataset."""
    changes = {path: _Change.read(path, paths) for path in _change_records(paths)}
    return {path: change for path, change in changes.items() if change is not None}


def _change_records(paths: DatasetPaths) -> Iterator[Path]:
    """Yield the files that record the changes of a dataset, by name."""
    prefix = f"{paths.lock.stem}{_RECORD}"
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in [] if paths.lock.parent.is_symlink() else sorted(paths.lock.parent.iterdir()):
            if path.name.startswith(prefix):
                yield path


def _settle_changes(paths: DatasetPaths) -> dict[Path, _Change]:
    """Complete every recorded change; return the applied ones of dead processes, whose records the caller deletes."""
    done = {}
    for path, change in _changes(paths).items():
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
        if current is not None and (current != change.old or _stamp(paths.folder) != change.stamp):
            return False  # the earlier versions may belong to the dataset that the user has stored here
        if current is not None:
            disk.discard(paths.folder, paths.root)
    elif current != change.new or (change.old == change.new and _stamp(paths.folder) != change.stamp):
        if disk.folder_identity(staged) != change.new or current not in {change.old, None}:
            return False  # the user has stored another dataset here
        former = paths.root / change.kept if change.kept else paths.trash / uuid4().hex
        disk.replace_folder(staged, paths.folder, former)
    if change.new is not None and (remaining := disk.folder_identity(staged)) is not None:
        if remaining == change.old and change.kept and not (paths.root / change.kept).exists():
            disk.move_path(staged, paths.root / change.kept)
        elif remaining in {change.old, change.new}:
            disk.discard(staged, paths.root)
    disk.remove_empty_parents(staged, paths.root)
    for path in change.drop:
        disk.discard(paths.root / path, paths.root)
    return True


def _stamp(folder: Path) -> int:
    with suppress(FileNotFoundError, NotADirectoryError):
        return (folder / MANIFEST_FILE).stat().st_ctime_ns
    return 0


def discard_work(paths: DatasetPaths) -> None:
    """Delete the work folder of a dataset: an unfinished build that no command will complete."""
    disk.discard(paths.work, paths.root)


def complete_changes(paths: DatasetPaths) -> None:
    """Complete the changes of a dataset that dead processes recorded; only for commands that write the dataset.

    The records stay, by which the command recognizes its own change. If another process has the lock, or this one may
    not write the folder, nothing happens.

    Raises:
        IntegrityError: If a hidden path of the dataset is a link, a pipe or the like.
    """
    with suppress(DiskFullError, LockedError, OSError), _locked(paths, paths.name, wait=SHORT_WAIT):
        _settle_changes(paths)


def settle(paths: DatasetPaths) -> None:
    """Complete the changes of a dataset that dead processes recorded, and delete what they left.

    Only for commands that write the dataset. If another process has its lock, or this one may not write its folder,
    nothing happens.

    Raises:
        IntegrityError: If a hidden path of the dataset is a link, a pipe or the like.
    """
    if not any((paths.root / hidden).exists() for hidden in (WORK_FOLDER, TRASH_FOLDER)):
        return
    with suppress(DiskFullError, LockedError, OSError):
        with _locked(paths, paths.name, wait=0):
            for path in _settle_changes(paths):
                path.unlink(missing_ok=True)
            _sweep_dataset(paths)
        _remove_empty_hidden(paths.root)


def sweep(root: Path) -> None:
    """Delete the leftovers of dead processes below the folder of a source, and complete their recorded changes.

    Builds that a command could resume are kept, and so are recordings and the files of live processes. Folders without
    write permission are skipped.

    Args:
        root: The folder of the source; its hidden folders belong to this package.

    Raises:
        IntegrityError: If one of these folders is a link, a pipe or the like.
    """
    _check_hidden_folders(root)
    work = root / WORK_FOLDER
    with suppress(OSError):
        if work.is_dir():
            held = {path.stem for path in disk.free_owner_files(work)}
            disk.free_temporary_files(work)
            for name in sorted(filter(None, map(_recorded_name, work.glob(f"*{_RECORD}*")))):
                settle(DatasetPaths(root, name))
            for folder in _unlocked_work_folders(work, held):
                for place in (folder, *disk.plain_folders(folder, work)):
                    disk.free_temporary_files(place)
                # Without a journal the build cannot be resumed.
                if (folder / "build").is_dir() and not (folder / "journal.jsonl").exists():
                    _discard_unless_held(folder / "build", folder, resumable=False)
    for recordings in disk.plain_folders(root / RECORDED_FOLDER, root):
        with suppress(OSError):
            disk.free_owner_files(recordings)
            for folder in disk.plain_folders(recordings, root):
                disk.free_temporary_files(folder)
            recordings.rmdir()
    disk.empty_trash(root / TRASH_FOLDER)
    _remove_empty_hidden(root)


def _recorded_name(record: Path) -> str:
    """Return the name of the dataset whose change a file records; empty if it is not such a record."""
    with suppress(DatasetsRLError, OSError, LookupError, RecursionError, TypeError, ValueError):
        name = json.loads(disk.read_plain(record))["name"]
        paths, parts = DatasetPaths(record.parents[1], name), PurePosixPath(name).parts
        # The file is named after the dataset, so that a record cannot name another one.
        is_own = record.name.startswith(f"{paths.lock.stem}{_RECORD}")
        is_plain = "/".join(parts) == name and not any(part.startswith(".") for part in parts)
        if is_own and is_plain and paths.folder.parent.resolve() == paths.root.resolve().joinpath(*parts[:-1]):
            return str(name)
    return ""


def sweep_builds(root: Path, *, dry_run: bool = False) -> int:
    """Delete the unfinished builds below the folder of a source, which their commands could resume.

    Args:
        root: The folder of the source.
        dry_run: Only count the bytes.

    Returns:
        Bytes freed.
    """
    _check_hidden_folders(root)
    work, freed = root / WORK_FOLDER, 0
    if work.is_dir():
        held = {path.stem for path in disk.free_owner_files(work, dry_run=dry_run)}
        for folder in _unlocked_work_folders(work, held):
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
    disk.check_kind(root / STREAM_FOLDER, folder=True)
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
    changing = {path.name.rpartition(_RECORD)[0] for path in work.iterdir() if _RECORD in path.name}
    return [path for path in disk.plain_folders(work, work) if path.name not in held | changing]


def _discard_unless_held(path: Path, folder: Path, *, resumable: bool) -> None:
    with suppress(DiskFullError, LockedError), disk.lock(folder.with_name(f"{folder.name}.lock"), folder.name, wait=0):
        # Another process may have started, or died, since the folder was listed.
        is_recorded = any(path.name.startswith(f"{folder.name}{_RECORD}") for path in folder.parent.iterdir())
        if not is_recorded and (resumable or not (folder / "journal.jsonl").exists()):
            disk.discard(path, folder.parents[1])
