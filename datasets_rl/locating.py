"""The folder of a dataset, by its id or path, once everything that dead processes left of it is completed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE, RECORDED_FOLDER, WORK_FOLDER
from datasets_rl.errors import DatasetsRLError, LockedError, NotADatasetError
from datasets_rl.remedy import Call, Remedy
from datasets_rl.settings import Settings
from datasets_rl.store import SHORT_WAIT, DatasetPaths, dataset_paths, is_settled, paths_of, transaction

__all__ = ["add_abandoned_recordings", "add_recordings", "locate", "owner_file", "remove_empty_folders"]


def locate(dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None) -> Path:
    """Return the folder of a finished dataset, given by its id or by its folder.

    Raises:
        UnknownIdError: If there is no such id, or (`NotADatasetError`) the folder has no finished dataset.
    """
    as_path = Path(dataset).expanduser()
    if isinstance(dataset, Path) or (root is None and _has_manifest(as_path)):
        if any((root / RECORDED_FOLDER).is_dir() for root in as_path.absolute().parents):
            add_abandoned_recordings(paths_of(as_path))
        if not _is_settled_folder(as_path):
            raise _not_a_folder_error(as_path)
        return as_path.absolute()
    base, derived = sources.split_derived(dataset)
    paths = dataset_paths(dataset, root=root, settings=settings)
    add_abandoned_recordings(paths)
    if not is_settled(paths):
        if derived:
            make = Call("preprocess", Call("locate", base), recipe=...)
            raise NotADatasetError(paths.folder, "it was not made", hint=Remedy("{} makes derived datasets", make))
        raise NotADatasetError(paths.folder, "it is not downloaded", hint=Remedy("{}", Call("download", base)))
    return paths.user_path


def add_recordings(paths: DatasetPaths, folders: Sequence[Path], *, wait: float = 3600.0) -> bool:
    """Add the episodes of recordings to a dataset, by a new version that replaces it, and delete the recordings.

    Args:
        paths: The dataset, which need not exist yet.
        folders: The folders of the recordings, which no other process may be writing.
        wait: Seconds to wait for another process that changes the dataset.

    Returns:
        Whether there were episodes to add, or a process that died has just added these recordings.

    Raises:
        InvalidArgumentError: If the episodes have other fields than the dataset.
        DiskFullError: If the new version does not fit on the disk.
        LockedError: If another process is changing the dataset.
    """
    from datasets_rl.pipeline.recordings import SavedRecording, write_joined

    with transaction(paths, paths.name, ["append", *sorted(folder.name for folder in folders)], wait=wait) as change:
        # A process that died may have published these episodes; completing its change has then deleted the recordings.
        recordings = [one for folder in folders if (one := SavedRecording.read(folder)) is not None]
        if recordings:
            disk.remove_tree(paths.work)
            paths.build.mkdir(parents=True)
            write_joined(paths.build, paths.folder if paths.exists else None, recordings)
            change.publish(drop=folders)
        added = change.finished or bool(recordings)
    for folder in folders:
        disk.discard(folder, paths.root)
    return added


def add_abandoned_recordings(paths: DatasetPaths) -> None:
    """Add the episodes that processes recorded for a dataset before they died.

    If that is not possible, for example in a folder that only others may write, a warning says so, and the recordings
    stay.
    """
    if not os.path.isdir(paths.recorded):  # noqa: PTH112 - see `_has_manifest`
        return
    try:
        disk.free_owner_files(paths.recorded)
        with ExitStack() as held:
            abandoned = []
            for folder in sorted(path for path in paths.recorded.iterdir() if path.is_dir()):
                with suppress(LockedError):
                    held.enter_context(disk.lock(owner_file(folder), folder.name, wait=0))
                    abandoned.append(folder)
            if abandoned:
                add_recordings(paths, abandoned, wait=SHORT_WAIT)
        remove_empty_folders(paths)
    except (DatasetsRLError, OSError) as error:
        warnings.warn(
            f"{paths.recorded} holds recorded episodes that are not yet a part of {paths.name}: {error}", stacklevel=3
        )


def remove_empty_folders(paths: DatasetPaths) -> None:
    """Delete the folder of the recordings of a dataset, if no process uses it."""
    disk.remove_empty_parents(paths.recorded / "recording", paths.root)


def owner_file(recording: Path) -> Path:
    """Return the owner file of the process that writes a recording."""
    return recording.with_name(f"{recording.name}.lock")


def _not_a_folder_error(path: Path) -> NotADatasetError:
    if not os.path.exists(path):  # noqa: PTH110 - see `_has_manifest`
        return NotADatasetError(path, "it does not exist")
    if path.suffix == ".toml" and path.is_file():
        return NotADatasetError(path, "it is a file, as of a mixture", hint="name one of its datasets")
    return NotADatasetError(path)


def _has_manifest(folder: Path) -> bool:
    # Unlike the method of Path, this is False for a name that is too long for the file system.
    return os.path.isfile(folder / MANIFEST_FILE)  # noqa: PTH113 - see above


def _is_settled_folder(folder: Path) -> bool:
    # Without a work folder no change was ever recorded, so the manifest need not be read.
    if not os.path.exists(folder.parent):  # noqa: PTH110 - see `_has_manifest`
        return False
    if _has_manifest(folder) and not any((root / WORK_FOLDER).is_dir() for root in folder.absolute().parents):
        return True
    try:
        return is_settled(paths_of(folder))
    except OSError:  # a name that no file can have
        return False
