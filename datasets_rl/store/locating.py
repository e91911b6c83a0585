"""The folder of a dataset, by its id or path, and the recordings that are not yet a part of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE, RECORDED_FOLDER, WORK_FOLDER
from datasets_rl.errors import NotADatasetError, RecordingWarning
from datasets_rl.remedy import Call, Remedy
from datasets_rl.settings import Settings
from datasets_rl.store import DatasetPaths, complete_changes, dataset_paths, is_half_stored, is_present, paths_of

__all__ = ["OWN_SOURCE", "locate", "owner_file", "pending_recordings", "warn_of_recordings"]

OWN_SOURCE = "local"
"""The source of the user's own datasets: only these grow by recordings."""


def locate(
    dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None, complete: bool = False
) -> Path:
    """Return the folder of a finished dataset, given by its id or by its folder; nothing on the disk is changed.

    Args:
        dataset: The id or the folder.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        settings: The settings; by default those of the environment.
        complete: For commands that write the dataset: if it is missing because a process was killed between two
            renames, the change of that process is completed.

    Raises:
        UnknownIdError: If there is no such id, or (`NotADatasetError`) the folder has no finished dataset.
    """
    as_path = Path(dataset).expanduser()
    if isinstance(dataset, Path) or (root is None and _has_manifest(as_path)):
        if not _is_present_folder(as_path, complete=complete):
            raise _not_a_folder_error(as_path)
        if any((root / RECORDED_FOLDER).is_dir() for root in as_path.absolute().parents):
            warn_of_recordings(paths_of(as_path))
        return as_path.absolute()
    base, derived = sources.split_derived(dataset)
    paths = dataset_paths(dataset, root=root, settings=settings)
    if not _is_present(paths, complete=complete):
        if derived:
            make = Call("preprocess", Call("locate", base), recipe=...)
            raise NotADatasetError(paths.folder, "it was not made", hint=Remedy("{} makes derived datasets", make))
        if pending := pending_recordings(paths):
            raise NotADatasetError(paths.folder, _pending_text(pending), hint=_adding(paths))
        raise NotADatasetError(paths.folder, "it is not downloaded", hint=Remedy("{}", Call("download", base)))
    warn_of_recordings(paths)
    return paths.user_path


def pending_recordings(paths: DatasetPaths) -> list[Path]:
    """Return the folders of the recordings of a dataset whose process is dead, sorted.

    Their episodes are not yet a part of the dataset. Only names and owner files are read, nothing is locked or changed,
    and links are ignored.
    """
    try:
        folders = disk.plain_folders(paths.recorded, paths.root)
    except OSError:
        return []
    return [folder for folder in folders if not disk.may_be_owned(owner_file(folder))]


def warn_of_recordings(paths: DatasetPaths) -> None:
    """Warn that recorded episodes are not yet a part of a dataset, and say what adds them."""
    if pending := pending_recordings(paths):
        warnings.warn(
            RecordingWarning(f"{paths.folder}: {_pending_text(pending)}", hint=_adding(paths)),
            stacklevel=3,
        )


def _pending_text(pending: Sequence[Path]) -> str:
    recordings = "1 recording" if len(pending) == 1 else f"{len(pending):,} recordings"
    return f"it lacks the episodes of {recordings} in {pending[0].parent}: a program ended before it added them"


def _adding(paths: DatasetPaths) -> Remedy:
    return Remedy("{} adds them", Call("append_episodes", f"{OWN_SOURCE}/{paths.name}"))


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


def _is_present_folder(folder: Path, *, complete: bool) -> bool:
    if _has_manifest(folder):
        return True
    # Without a work folder no change was ever recorded.
    if not any(os.path.isdir(root / WORK_FOLDER) for root in folder.absolute().parents):  # noqa: PTH112 - see above
        return False
    try:
        return _is_present(paths_of(folder), complete=complete)
    except OSError:  # a name that no file can have
        return False


def _is_present(paths: DatasetPaths, *, complete: bool) -> bool:
    if is_present(paths):
        return True
    if complete:
        complete_changes(paths)
    elif is_half_stored(paths):
        raise NotADatasetError(
            paths.folder,
            "the process that was storing it was killed before it was done",
            hint="run the command of that process again, which completes the change",
        )
    return paths.exists
