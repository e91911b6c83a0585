"""Adding recordings to their dataset. Only a recording that was read as a whole, and that the dataset holds, is deleted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from datasets_rl import disk
from datasets_rl.build.recordings import write_joined
from datasets_rl.build.saved_recording import DESCRIPTION_FILE, JOURNAL_FILE, SavedRecording
from datasets_rl.errors import DatasetsRLError, DiskFullError, IntegrityError, LockedError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.store import DatasetPaths, Version, current_version, versions_of
from datasets_rl.store.publish import SHORT_WAIT, Build, building, canonical, locked, publish, remove_if_empty

__all__ = ["Kept", "add_abandoned_recordings", "add_recordings", "held_ids"]

_Reasons: TypeAlias = "dict[Path, DatasetsRLError | OSError]"
Kept: TypeAlias = "Mapping[Path, DatasetsRLError | OSError]"
"""The folders of recordings that stay on the disk, each with the reason."""
_MAX_ATTEMPTS = 20
_OWN_FILE = re.compile(
    rf"{re.escape(DESCRIPTION_FILE)}|{re.escape(JOURNAL_FILE)}|.+\.npy"
    rf"|\.({re.escape(DESCRIPTION_FILE)}|{re.escape(JOURNAL_FILE)})@.+\.tmp"
)


def add_recordings(paths: DatasetPaths, dataset_id: str, folders: Sequence[Path], *, wait: float = 3600.0) -> Kept:
    """Add the episodes of recordings to a dataset, by a new version of it, and delete the recordings.

    A recording that cannot be read or does not fit stays, and the others are added. Of one that is partly damaged, the
    episodes before the damage are added, and the recording stays. What the dataset holds is not added again.

    Args:
        paths: The dataset, which need not exist yet.
        dataset_id: Its id.
        folders: The folders of the recordings, which no other process may be writing.
        wait: Seconds to wait for another process that changes the dataset.

    Returns:
        The recordings that stay, with the reasons.

    Raises:
        IntegrityError: If the dataset itself cannot be read.
        DiskFullError: If the new version does not fit on the disk; the recordings stay.
        LockedError: If another process is changing the dataset.
    """
    kept: _Reasons = {}
    saved: dict[Path, SavedRecording | None] = {}
    for folder in filter(os.path.lexists, folders):
        try:
            saved[folder] = _read(folder, dataset_id)
        except (DatasetsRLError, OSError) as error:
            kept[folder] = error
    readable = [recording for recording in saved.values() if recording is not None]
    held, is_safe = held_ids(paths), False
    for _ in range(_MAX_ATTEMPTS):
        _add(paths, [recording for recording in readable if recording.folder not in kept], wait, kept)
        held = held_ids(paths)
        is_safe = _is_certainly_current(paths)
        begun = {entry.partition(":")[0] for entry in held}
        if all(recording.id in begun or recording.folder in kept for recording in readable):
            break  # else a process without the lock has published a version of an earlier one
    for folder in saved.keys() - kept.keys():
        if problem := _reason_to_keep(folder, saved[folder], held):
            kept[folder] = IntegrityError(str(folder), [problem], hint="move the folder away, or delete it")
        elif is_safe or saved[folder] is None:
            disk.discard(folder, paths.folder)
    return kept


def _is_certainly_current(paths: DatasetPaths) -> bool:
    """Return whether no other process can publish a version without the episodes of the current one.

    One that works without the lock, made of an earlier version, would have a build or a version beside this one. Then
    the recordings stay; the next command that adds recordings finds their ids in the manifest, or adds them again.
    """
    current = current_version(paths)
    is_last = current is None or paths.has_no_pointer or versions_of(paths)[-1:] == [current]
    return is_last and all(map(disk.is_abandoned, paths.builds()))


def _reason_to_keep(folder: Path, recording: SavedRecording | None, held: Collection[str]) -> str:
    """Return why a recording whose episodes were added, or that has none, must not be deleted; empty if it may be."""
    if recording is not None and recording.damage:
        return f"{recording.damage}; the {recording.episodes:,} episodes before it are a part of the dataset"
    if recording is not None and recording.id not in held:
        return "a part of its episodes was added when the others were damaged; it is whole now"
    if foreign := _foreign_file(folder):
        return f"it has {foreign}, which no recording has"
    return ""


def _read(folder: Path, dataset_id: str) -> SavedRecording | None:
    recording = SavedRecording.read(folder)
    if recording is not None and recording.dataset_id != dataset_id:
        raise IntegrityError(
            str(folder), [f"it was recorded for {recording.dataset_id}, not for {dataset_id}"], hint="move it away"
        )
    return recording


def held_ids(paths: DatasetPaths) -> frozenset[str]:
    """Return the ids of the recordings that a dataset holds."""
    return frozenset(Manifest.read(paths.folder).recordings if paths.exists else ())


def _add(paths: DatasetPaths, recordings: Sequence[SavedRecording], wait: float, kept: _Reasons) -> None:
    """Add recordings in one version; if that fails because of one of them, in versions of fewer recordings."""
    if not recordings:
        return
    paths.check_changeable()
    with locked(paths, paths.name, wait=wait):
        for _ in range(_MAX_ATTEMPTS):
            parent = current_version(paths)
            try:
                error = _add_to(paths, parent, recordings)
            except (DatasetsRLError, FileNotFoundError):
                if current_version(paths) == parent:
                    raise
            else:
                if error is None or current_version(paths) == parent:
                    break
        else:
            raise LockedError(paths.name, "processes that change it without its lock", paths.lock)
    if error is None:
        return
    if len(recordings) == 1:
        kept[recordings[0].folder] = error
        return
    middle = len(recordings) // 2
    _add(paths, recordings[:middle], wait, kept)
    _add(paths, recordings[middle:], wait, kept)


def _add_to(
    paths: DatasetPaths, parent: Version | None, recordings: Sequence[SavedRecording]
) -> DatasetsRLError | OSError | None:
    """Add the recordings that a version lacks; return the error if one of these cannot be added.

    Raises:
        LockedError: If another version is current in the meantime.
    """
    held = set() if parent is None else {entry.partition(":")[0] for entry in parent.manifest.recordings}
    new = [recording for recording in recordings if recording.id not in held]
    if not new:
        return None
    request = canonical({"append": [recording.entry for recording in new]})
    with building(paths, request, parent) as build:
        # A process without the lock that publishes after this line sees this build, and keeps its recordings.
        if current_version(paths) != parent:
            raise LockedError(paths.name, "a process that changes it without its lock", paths.lock)
        disk.remove_tree(build.version, paths.folder)
        return _publish(build, None if parent is None else StoredDataset(parent.folder), new)


def _publish(
    build: Build, stored: StoredDataset | None, recordings: Sequence[SavedRecording]
) -> DatasetsRLError | OSError | None:
    """Publish a dataset with the episodes of recordings; return the error if one of these cannot be added."""
    build.version.mkdir()
    try:
        write_joined(build.version, stored, recordings)
    except DiskFullError:
        disk.remove_tree(build.work, build.paths.folder)
        raise
    except (DatasetsRLError, OSError) as error:
        disk.remove_tree(build.work, build.paths.folder)
        return error
    publish(build)
    return None


def _foreign_file(folder: Path) -> str:
    """Return the name of a file that is not one of a recording; an empty text if there are no others."""
    for path in sorted(folder.iterdir()):
        if not (_OWN_FILE.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode)):
            return path.name
    return ""


def add_abandoned_recordings(paths: DatasetPaths, dataset_id: str) -> Kept:
    """Add the episodes that processes recorded for a dataset before they died.

    Returns:
        The recordings that stay, with the reasons.

    Raises:
        IntegrityError: If the dataset itself cannot be read, or the folder of its recordings is not a folder.
        DiskFullError: If the new version does not fit on the disk; the recordings stay.
        LockedError: If another process is changing the dataset.
        OSError: If the folder of the recordings cannot be read.
    """
    disk.check_kind(paths.recorded, folder=True)
    if not paths.recorded.exists():
        return {}
    abandoned = [folder for folder in sorted(paths.recorded.iterdir()) if disk.is_abandoned(folder)]
    kept = add_recordings(paths, dataset_id, abandoned, wait=SHORT_WAIT) if abandoned else {}
    remove_if_empty(paths)
    return kept
