"""Opening: from the id of a dataset to the folder on this disk, after a download if the dataset is not stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from datasets_rl import downloading
from datasets_rl.datasets.options import Download
from datasets_rl.downloading import DownloadOptions, stored_selection
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.current import version_folder
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.store.find import locate

_ATTEMPTS = 20
"""The maximum number of attempts to open a dataset that other processes replace."""
_Opened = TypeVar("_Opened")


def find_folder(
    dataset_id: str,
    selection: Selection,
    *,
    root: Path | str | None,
    download: Download,
    from_local: Path | None,
    settings: Settings,
) -> Path:
    """Return the folder of a dataset that has a selection, after a download if `download` is not False.

    Args:
        dataset_id: The id with the name of the source.
        selection: The requested selection. What this selection leaves open, the stored selection decides.
        root: The folder of the source, ``<RLDS_HOME>/<source>`` by default.
        download: As for `BaseDatasetExperienceReplay`.
        from_local: A local copy of the upstream files to read instead of a download.
        settings: The settings of the download.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored and `download` is False.
        InvalidArgumentError: If a choice contradicts the stored choice, or `download` has another value than the three.
    """
    if download not in {True, False, "force"}:
        raise InvalidArgumentError(f"download is {download!r}, expected True, False or 'force'")
    if not download:
        return folder_with(locate(dataset_id, root=root, settings=settings), selection)
    options = DownloadOptions(
        root=root,
        force=download == "force",
        from_local=from_local,
        selection=selection,
        as_stored=True,
        settings=settings,
    )
    return downloading.ensure_stored(dataset_id, options).folder


def folder_with(folder: Path, selection: Selection) -> Path:
    """Return the folder of a stored dataset, which must have a selection.

    Raises:
        InvalidArgumentError: If the dataset lacks a part of the selection. The error names both selections.
    """
    stored_selection.check_contains(Manifest.read(folder), folder, selection)
    return folder


def open_current(folder: Path, show: Callable[[StoredDataset], _Opened]) -> _Opened:
    """Return what a function makes of the current version of a dataset, also if another process replaces the version.

    Args:
        folder: The folder of the dataset.
        show: Opens files of the version.

    Raises:
        IntegrityError: If a file is missing or damaged.
    """
    attempt = 0
    while True:
        attempt += 1
        stored = StoredDataset(folder)
        try:
            return show(stored)
        except IntegrityError:
            if attempt == _ATTEMPTS or version_folder(folder.resolve()) == stored.folder:
                raise
