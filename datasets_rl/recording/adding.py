"""Adding recordings to their dataset. Only a recording that was read as a whole, and that the dataset holds, is deleted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from datasets_rl import disk
from datasets_rl.build.recordings import write_joined
from datasets_rl.build.saved_recording import DESCRIPTION_FILE, JOURNAL_FILE, SavedRecording
from datasets_rl.errors import DatasetsRLError, DiskFullError, IntegrityError, LockedError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.store import SHORT_WAIT, DatasetPaths, Transaction, transaction
from datasets_rl.store.locating import owner_file

__all__ = ["Kept", "add_abandoned_recordings", "add_recordings", "held_ids", "remove_empty_folders"]

_Reasons: TypeAlias = "dict[Path, DatasetsRLError | OSError]"
Kept: TypeAlias = "Mapping[Path, DatasetsRLError | OSError]"
"""The folders of recordings that stay on the disk, each with the reason."""
_OWNER_FILES = (".lock", ".claim")
_OWN_FILE = re.compile(
    rf"{re.escape(DESCRIPTION_FILE)}|{re.escape(JOURNAL_FILE)}|.+\.npy"
    rf"|\.({re.escape(DESCRIPTION_FILE)}|{re.escape(JOURNAL_FILE)})\..+\.tmp"
)


def add_recordings(paths: DatasetPaths, dataset_id: str, folders: Sequence[Path], *, wait: float = 3600.0) -> Kept:
    """Add the episodes of recordings to a dataset, by a new version that replaces it, and delete the recordings.

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
    _add(paths, [recording for recording in saved.values() if recording is not None], wait, kept)
    held = held_ids(paths)
    for folder in saved.keys() - kept.keys():
        if problem := _reason_to_keep(folder, saved[folder], held):
            kept[folder] = IntegrityError(str(folder), [problem], hint="move the folder away, or delete it")
        else:
            disk.discard(folder, paths.root)
    return kept


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


def _add(
    paths: DatasetPaths,
    recordings: Sequence[SavedRecording],
    wait: float,
    kept: _Reasons,
) -> None:
    """Add recordings in one version; if that fails because of one of them, in versions of fewer recordings."""
    if not recordings:
        return
    request = ["append", *sorted(recording.id for recording in recordings)]
    with transaction(paths, paths.name, request, wait=wait) as change:
        held = {entry.partition(":")[0] for entry in held_ids(paths)}
        new = [recording for recording in recordings if recording.id not in held]
        stored = StoredDataset(paths.folder) if paths.exists and new else None
        error = _publish(change, stored, new)
    if error is None:
        return
    if len(recordings) == 1:
        kept[recordings[0].folder] = error
        return
    middle = len(recordings) // 2
    _add(paths, recordings[:middle], wait, kept)
    _add(paths, recordings[middle:], wait, kept)


def _publish(
    change: Transaction, stored: StoredDataset | None, recordings: Sequence[SavedRecording]
) -> DatasetsRLError | OSError | None:
    """Replace a dataset by one with the episodes of recordings; return the error if one of these cannot be added."""
    if not recordings:
        return None
    build = change.paths.build
    disk.remove_tree(change.paths.work, change.paths.root)
    build.mkdir(parents=True)
    try:
        write_joined(build, stored, recordings)
    except DiskFullError:
        disk.remove_tree(change.paths.work, change.paths.root)
        raise
    except (DatasetsRLError, OSError) as error:
        disk.remove_tree(change.paths.work, change.paths.root)
        return error
    change.publish()
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
    for folder in (paths.recorded.parent, paths.recorded):
        disk.check_kind(folder, folder=True)
    if not paths.recorded.exists():
        return {}
    disk.free_owner_files(paths.recorded)
    unlockable: _Reasons = {}
    with ExitStack() as held:
        abandoned = []
        for folder in sorted(path for path in paths.recorded.iterdir() if not path.name.endswith(_OWNER_FILES)):
            try:
                held.enter_context(disk.lock(owner_file(folder), folder.name, wait=0))
                abandoned.append(folder)
            except LockedError:  # a process is recording
                continue
            except (IntegrityError, OSError) as error:
                unlockable[folder] = error
        kept = add_recordings(paths, dataset_id, abandoned, wait=SHORT_WAIT) if abandoned else {}
    remove_empty_folders(paths)
    return {**unlockable, **kept}


def remove_empty_folders(paths: DatasetPaths) -> None:
    """Delete the folder of the recordings of a dataset, if no process uses it."""
    disk.remove_empty_parents(paths.recorded / "recording", paths.root)
