"""Versions of a dataset: which version is current, and the deletion of what is no longer needed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import disk, sources
from datasets_rl.errors import (
    Call,
    DiskFullError,
    InvalidArgumentError,
    LockedError,
    ManifestError,
    NotADatasetError,
    Remedy,
    join_names,
)
from datasets_rl.settings import Settings
from datasets_rl.store.find import dataset_paths, find_paths, id_or_path, missing_error, paths_of
from datasets_rl.store.layout import (
    AUDIT_FOLDER,
    INDEX_FILE,
    INDEX_FOLDER,
    MARK_FILE,
    RECORDING_FILE,
    STREAM_FOLDER,
    DatasetPaths,
    is_marked,
)
from datasets_rl.store.publish import (
    SHORT_WAIT,
    Version,
    check_entries,
    current_version,
    foreign_files,
    leftovers,
    locked,
    parent_of,
    point_to,
    remove_if_empty,
    versions_of,
)

if TYPE_CHECKING:
    from datasets_rl.format.manifest import RawFile


def restore(dataset: Path | str, version: str | int = "parent") -> Path:
    """Make any version of a dataset the current version, by default the version before the last preprocessing.

    No version is deleted, so that another call goes forward again.

    Args:
        dataset: The id or the folder of the dataset.
        version: The number or the name of a version. "parent" is the version that the current version was made of.

    Returns:
        The folder of the dataset.

    Raises:
        NotADatasetError: If the dataset is not stored.
        InvalidArgumentError: If there is no such version, or several have the number.
        ManifestError: If the manifest of the version is damaged. Nothing is changed then.
        LockedError: If another process is changing the dataset.
    """
    dataset = id_or_path(dataset)
    paths = find_paths(dataset)
    paths.check_changeable()
    with locked(paths, str(dataset), wait=SHORT_WAIT):
        if not versions_of(paths):
            raise missing_error(dataset, paths)
        found = _parent(paths, dataset) if version == "parent" else named_version(paths, str(version))
        _point_to_existing(paths, found)
    return paths.folder


def _parent(paths: DatasetPaths, dataset: Path | str) -> Version:
    current = current_version(paths)
    if current is None:
        raise missing_error(dataset, paths)
    if (parent := parent_of(paths, current)) is None:
        raise InvalidArgumentError(
            f"{dataset} has no earlier version: the current version was made of no other, or the other version was pruned",
            hint=Remedy("{} lists the versions", Call("info", dataset)),
        )
    return parent


def named_version(paths: DatasetPaths, text: str) -> Version:
    """Return the version of a dataset with a number or a name.

    Raises:
        InvalidArgumentError: If there is no such version, or several have the number.
    """
    existing = versions_of(paths)
    found = [
        version for version in existing if text == version.name or (text.isdigit() and int(text) == version.number)
    ]
    if len(found) == 1:
        return found[0]
    if not existing:
        raise InvalidArgumentError(
            f"{paths.folder} has no version {text}: the folder is a single version",
            hint="give the folder without a version",
        )
    names = ", ".join(version.name for version in found or existing)
    problem = f"{len(found)} versions {text}: " if found else f"no version {text}, "
    raise InvalidArgumentError(
        f"{paths.folder} has {problem}expected one of {names}",
        hint=Remedy("{} lists the versions", Call("info", paths.folder)),
    )


def _point_to_existing(paths: DatasetPaths, version: Version) -> None:
    _ = version.manifest  # a damaged version replaces nothing
    former = current_version(paths, replaces=True)
    if former == version:
        return
    point_to(paths, version)
    if not version.folder.is_dir() and former is not None:  # a process without the lock has pruned the version
        point_to(paths, former)
        raise LockedError(str(paths.folder), "a process that deleted the version", paths.lock)


def remove(dataset_id: str, *, root: Path | str | None = None, settings: Settings | None = None) -> int:
    """Delete a dataset with all versions, recordings, raw and unfinished files.

    Datasets that are derived from this dataset stay, and so do files that others put into the folder. Of a link to
    another dataset of the same home, only the link is deleted.

    Returns:
        Bytes freed, or 0 if the dataset does not exist.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the folder is certainly not of a dataset, a version has files that are not the
            dataset's, or the folder ``raw`` may have the only copy of the user's files. Nothing is deleted then.
        LockedError: If another process is changing the dataset, or records episodes for the dataset.
    """
    return remove_dataset(dataset_paths(dataset_id, root=root, settings=settings), dataset_id)


def remove_folder(folder: Path) -> int:
    """Delete a dataset given by the folder, see `remove`."""
    return remove_dataset(paths_of(folder), str(folder))


def remove_dataset(paths: DatasetPaths, name: str) -> int:
    """Delete a dataset given by the paths, see `remove`."""
    if is_link_alone(paths):
        disk.remove_file(paths.folder)
        return 0
    _check_removable(paths)
    if not paths.is_own:
        remove_if_empty(paths)
        return 0
    freed = paths.bytes()
    with ExitStack() as held:
        with suppress(DiskFullError):  # the disk has no room for a lock
            held.enter_context(locked(paths, name, wait=SHORT_WAIT))
        check_entries(paths)
        check_unused(paths, name)
        if paths.has_no_pointer:
            disk.discard(paths.folder, paths.folder.parent)
            return freed
        with suppress(DiskFullError):
            paths.mark()
        entries = paths.entries()
        # Without this file there is no dataset, whenever the deletion ends.
        disk.remove_file(paths.current)
        for path in entries:
            if path not in {paths.lock, paths.mark_file, paths.recorded} and disk.is_abandoned(path):
                disk.discard(path, paths.folder)
        for path in filter(disk.is_abandoned, sorted(paths.recorded.glob("*"))):
            disk.discard(path, paths.folder)
    remove_if_empty(paths)
    if paths.folder.is_symlink() and disk.remove_empty(paths.folder.resolve()):
        disk.remove_file(paths.folder)
    return freed


def _check_removable(paths: DatasetPaths) -> None:
    """Check that nothing of others is in what the removal of a dataset deletes.

    Raises:
        InvalidArgumentError: If there is.
    """
    if has_only_copy(paths):
        raise _only_copy_error(paths)
    if not paths.is_own:
        if first := paths.first_foreign():
            raise InvalidArgumentError(
                f"{paths.folder} is not removed: the folder holds files that are not a dataset, such as {first.name}",
                hint="delete these files yourself if you do not need the files",
            )
        return
    for folder in [paths.folder] if paths.has_no_pointer else [version.folder for version in versions_of(paths)]:
        check_own_files(folder)
    _check_own_recordings(paths.recorded)


def is_link_alone(paths: DatasetPaths) -> bool:
    """Return whether removing a dataset deletes a link, and not the data to which it leads.

    The link is a second name of a dataset of the same home, or leads to a single version, which may be a version of
    another dataset.
    """
    home, place = paths.root.resolve().parent, paths.folder.resolve()
    is_second_name = place.is_relative_to(home) and place.relative_to(home).parts[:1] in {
        (name,) for name in sources.source_names()
    }
    return paths.folder.is_symlink() and paths.is_own and (is_second_name or paths.has_no_pointer)


def check_unused(paths: DatasetPaths, name: str) -> None:
    """Check that no process is recording or making a part of a dataset that is about to be deleted or moved.

    Raises:
        LockedError: If any is locked.
    """
    for path in (*paths.entries(), *disk.plain_folders(paths.recorded, paths.folder)):
        if not disk.is_abandoned(path):
            error = LockedError(name, f"the process that works on {path}", path)
            error.hint = "end that process, or wait for the process"
            raise error


def check_own_files(folder: Path) -> None:
    """Check that the folder of a version holds only the files of the version, before it is deleted.

    Raises:
        InvalidArgumentError: If there are other files. The error names the files.
    """
    if foreign := foreign_files(folder):
        raise InvalidArgumentError(
            f"{folder} holds files that are not the dataset's: {join_names(foreign)}",
            hint="move these files: the folder is about to be deleted",
        )


def _check_own_recordings(folder: Path) -> None:
    """Check that a folder of recordings, which is about to be deleted, holds no plain file or folder of others.

    Raises:
        InvalidArgumentError: If there are such files. The error names the files.
    """
    if folder.is_symlink():  # refused elsewhere
        return
    foreign = [
        str(path)
        for path in sorted(folder.glob("*"))
        if disk.is_plain_file(path) or not (_RECORDING.fullmatch(path.name) or _has_any(path, _RECORDING_FILES))
    ]
    if foreign:
        raise InvalidArgumentError(
            f"{folder} holds files that are not the dataset's: {join_names(foreign)}",
            hint="move these files: the folder is about to be deleted",
        )


def _has_any(folder: Path, names: Iterable[str]) -> bool:
    return any(os.path.lexists(folder / name) for name in names)


_RECORDING = re.compile("[0-9a-f]{32}(@.*)?")
_AUDIT_NAME = re.compile("[0-9a-f]{32}")
_RECORDING_FILES = (RECORDING_FILE, "journal.jsonl")


def has_only_copy(paths: DatasetPaths, *unpublished: Version) -> bool:
    """Return whether the folder ``raw`` of a dataset may have the only copy of files of the user.

    A download records each file that it fetches, and leaves a version that states the address of each file. A user who
    keeps other files in this folder, or converts files from it, has the only copy there.

    Args:
        paths: The dataset.
        unpublished: Finished versions that are not in the folder of the dataset yet.
    """
    from datasets_rl.fetch.partial_download import is_of_download
    from datasets_rl.fetch.schemes.base import path_of_url

    folders = [folder for folder in disk.claims_of(paths.raw) if not folder.is_symlink()]  # a link is refused elsewhere
    files = [(folder, path) for folder in folders for path in disk.files_below(folder)]
    if not files:
        return False
    stated: list[RawFile] = []
    for version in (*versions_of(paths), *unpublished):
        with suppress(ManifestError, NotADatasetError):
            stated += version.manifest.raw
    inside = paths.raw.resolve()
    if any(path_of_url(one.url).resolve().is_relative_to(inside) for one in stated if one.url.startswith("file:/")):
        return True
    names = {one.path for one in stated}
    return not all(path.relative_to(folder).as_posix() in names or is_of_download(path) for folder, path in files)


def _only_copy_error(paths: DatasetPaths) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{paths.raw} may have the only copy of your files: no version of the dataset states another place of these files",
        hint="move your files: the folder of the dataset is about to be deleted",
    )


def prune(paths: DatasetPaths, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete all versions of a dataset but the current version.

    Args:
        paths: The dataset.
        dry_run: Only return what would be deleted.

    Returns:
        The paths that were deleted, each with its size in bytes.

    Raises:
        InvalidArgumentError: If a version has files that are not the dataset's. Nothing is deleted then.
        LockedError: If another process is changing the dataset.
    """
    found = _other_versions(paths)
    for version in found:
        check_own_files(version.folder)
    sizes = _sizes(version.folder for version in found)
    if sizes and not dry_run:
        with locked(paths, str(paths.folder), wait=SHORT_WAIT):
            for version in _other_versions(paths):
                version.discard()
    return sizes if dry_run else _deleted(sizes)


def _other_versions(paths: DatasetPaths) -> list[Version]:
    current = current_version(paths) if paths.is_own else None
    return [version for version in versions_of(paths) if current is not None and version != current]


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: disk.tree_bytes(path) for path in paths}


def _deleted(sizes: Mapping[Path, int]) -> dict[Path, int]:
    """Return which of some paths are gone."""
    return {path: size for path, size in sizes.items() if not os.path.lexists(path)}


def prune_raw(paths: DatasetPaths, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete the upstream files of a dataset, both complete and partial. A later download fetches the files again.

    The arguments, the result and the errors are as for `prune`.
    """
    if has_only_copy(paths):
        raise _only_copy_error(paths)
    sizes = _sizes(filter(disk.is_abandoned, disk.claims_of(paths.raw) if paths.is_own else []))
    if sizes and not dry_run:
        with locked(paths, str(paths.folder), wait=SHORT_WAIT):
            for folder in filter(disk.is_abandoned, disk.claims_of(paths.raw)):
                disk.discard(folder, paths.folder)
    return sizes if dry_run else _deleted(sizes)


def prune_builds(paths: DatasetPaths, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete the unfinished builds of a dataset that commands could resume, unless another process changes it.

    The arguments and the result are as for `prune`.
    """
    sizes = _sizes(filter(disk.is_abandoned, paths.builds()))
    if sizes and not dry_run:
        with suppress(DiskFullError, LockedError), locked(paths, paths.name, wait=0):
            for folder in filter(disk.is_abandoned, paths.builds()):
                disk.discard(folder, paths.folder)
    return sizes if dry_run else _deleted(sizes)


def sweep_dataset(paths: DatasetPaths, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete what dead processes left of a dataset, except for what a command resumes.

    A dataset that another process is changing, or that this process may not write, is skipped.

    Args:
        paths: The dataset.
        dry_run: Only return what would be deleted.

    Returns:
        The paths that were deleted, each with its size in bytes.

    Raises:
        IntegrityError: If a file or folder of the dataset is a link, a pipe or the like.
    """
    check_entries(paths)
    if not _may_have_leftovers(paths):
        return {}
    locks = [paths.lock] if os.path.lexists(paths.lock) and not disk.is_locked(paths.lock) else []
    sizes = _sizes([*locks, *leftovers(paths)])
    if not dry_run:
        # The folder of a dataset that another process is deleting may have files of the dataset, and no longer the mark.
        with suppress(DiskFullError, InvalidArgumentError, LockedError, OSError), locked(paths, paths.name, wait=0):
            pass
    return sizes if dry_run else _deleted(sizes)


def _may_have_leftovers(paths: DatasetPaths) -> bool:
    names = [path.name for path in paths.entries()]
    others = any(
        disk.TRASH_NAME.fullmatch(name) or name.startswith((".", "recorded", "build-", "raw@")) for name in names
    )
    return others or len(versions_of(paths)) > 1


def prune_audits(home: Path, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete the measures of unfinished audits. An audit that is running goes on, and keeps its later measures.

    Args:
        home: The folder of all sources.
        dry_run: Only return what would be deleted.

    Returns:
        The folders of the audits that were deleted, each with its size in bytes.
    """
    folder = home / AUDIT_FOLDER
    disk.check_kind(folder, folder=True)
    found = [path for path in disk.plain_folders(folder, folder) if _AUDIT_NAME.fullmatch(path.name)]
    sizes = {path: disk.tree_bytes(path) for path in sorted(found)}
    if not dry_run:
        for path in sizes:
            disk.remove_tree(path, home)
        disk.remove_empty(folder)
    return sizes


def prune_index(home: Path, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete the index of the fingerprints of all datasets, which the next search makes again.

    The arguments and the result are as for `prune_audits`. The paths are files.
    """
    file = home / INDEX_FOLDER / INDEX_FILE
    return _without_index_files(file, [file] if disk.is_plain_file(file) else [], dry_run=dry_run)


def sweep_index(home: Path, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete what killed processes left of an index. The arguments and the result are as for `prune_index`."""
    file = home / INDEX_FOLDER / INDEX_FILE
    return _without_index_files(file, disk.temporary_files(file.parent, file.name), dry_run=dry_run)


def _without_index_files(index: Path, files: list[Path], *, dry_run: bool) -> dict[Path, int]:
    disk.check_kind(index.parent, folder=True)
    sizes = _sizes(files)
    if not dry_run:
        for path in sizes:
            disk.remove_file(path)
        disk.remove_empty(index.parent)
    return sizes


def prune_streams(root: Path, *, dry_run: bool = False) -> dict[Path, int]:
    """Delete the shards that streams left for later streams. Shards of open streams remain.

    Args:
        root: The folder of a source, or of all sources.
        dry_run: Only return what would be deleted.

    Returns:
        The folders of streams that were deleted, each with its size in bytes.
    """
    folder = root / STREAM_FOLDER
    disk.check_kind(folder, folder=True)
    folders = {
        path.parent for path in disk.files_below(folder) if path.name == MARK_FILE and path.parent.name.isdigit()
    }
    marked = filter(is_marked, folders)
    sizes: dict[Path, int] = {}
    for folder in sorted(marked):
        with suppress(LockedError), disk.lock(folder.with_name(f"{folder.name}.lock"), str(folder), wait=0):
            sizes[folder] = disk.tree_bytes(folder)
            if not dry_run:
                disk.discard(folder, root)
    return sizes
