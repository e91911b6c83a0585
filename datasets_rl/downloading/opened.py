"""Opening any dataset to read it: stored ones, their versions, and what is not stored, converted into a temporary folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from datasets_rl import disk
from datasets_rl.downloading.run import download
from datasets_rl.errors import FetchError, InvalidArgumentError, NotADatasetError
from datasets_rl.format.current import VERSION_NAME
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, split_address
from datasets_rl.sources.address import is_address
from datasets_rl.store.find import dataset_paths, id_or_path, locate, paths_of
from datasets_rl.store.versions import named_version

_VERSION = re.compile(rf"(?P<dataset>.+):(?P<version>\d+|{VERSION_NAME.pattern})")


@contextmanager
def opened(
    dataset: str | Path,
    *,
    selection: Selection | None = None,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Iterator[StoredDataset]:
    """Open a dataset for the duration of the block. Nothing is stored.

    Args:
        dataset: The id of a stored dataset, the id with a version, ``demo/pendulum:0001``, a folder, an address, or a file or a
            folder of raw files. An address that is not stored, and raw files, are converted into a temporary folder.
        selection: The part of an address that is not stored, or of raw files, and the options of the source of these files. A stored
            dataset is opened as it is.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored.
        InvalidArgumentError: If there is no such version.
        FetchError: If an address does not give the files.
        ConversionError: If the files break their own format.
    """
    settings = settings or Settings.from_env()
    named = None if isinstance(dataset, Path) or is_address(dataset) else _VERSION.fullmatch(dataset)
    if named:
        paths = paths_of(locate(id_or_path(named["dataset"]), root=root, settings=settings))
        yield StoredDataset(named_version(paths, named["version"]).folder)
        return
    found = id_or_path(dataset)
    if is_converted(dataset, settings=settings):
        with disk.ScratchFolder() as folder:
            try:
                version = download(str(found), selection=selection, settings=replace(settings, home=folder))
            except FetchError as error:  # the caller has no arguments for other places
                error.hint = "check the address and the network, or name files on this machine"
                raise
            yield StoredDataset(version)
    else:
        yield StoredDataset(_located(found, root, settings))


def is_converted(dataset: str | Path, *, settings: Settings | None = None) -> bool:
    """Return whether `opened` converts a dataset: an address that is not stored, or raw files."""
    settings = settings or Settings.from_env()
    if not isinstance(dataset, Path) and not is_address(dataset) and _VERSION.fullmatch(dataset):
        return False
    found = id_or_path(dataset)
    if _is_raw(dataset, found):
        return True
    return isinstance(found, str) and is_address(found) and not _is_stored(found, settings)


def check_selection(selection: Selection | None, *datasets: str | Path, settings: Settings) -> None:
    """Check that at least one of some datasets is converted, if there is a selection for conversions.

    Raises:
        InvalidArgumentError: If all datasets are stored.
    """
    if selection not in (None, Selection()) and not any(is_converted(one, settings=settings) for one in datasets):
        shown = " and ".join(map(str, datasets))
        raise InvalidArgumentError(
            f"{shown} {'is' if len(datasets) == 1 else 'are'} stored, expected raw files for a selection or an option of a source",
            hint="name the raw files, or leave the selection out",
        )


def _located(found: str | Path, root: Path | str | None, settings: Settings) -> Path:
    """Return the folder of a stored dataset.

    Raises:
        UnknownIdError: If there is none. The error of a path says what is there, because the path may be meant for raw files.
    """
    try:
        return locate(found, root=root, settings=settings)
    except NotADatasetError as error:
        if isinstance(found, Path) and not os.path.lexists(found):
            raise NotADatasetError(found, error.reason, hint="correct the path, or name an id or an address") from None
        if isinstance(found, Path) and _is_empty_folder(found):
            raise NotADatasetError(
                found, "the folder is empty", hint="name a file, or the folder of the files"
            ) from None
        raise


def _is_empty_folder(path: Path) -> bool:
    with suppress(OSError), os.scandir(path) as entries:
        return next(entries, None) is None
    return False


def _is_raw(dataset: str | Path, found: str | Path) -> bool:
    """Return whether a path names raw files, of which `found` is the id."""
    path = disk.expand_home(dataset)
    return isinstance(found, str) and found != str(dataset) and os.path.exists(path)  # noqa: PTH110 - False for long names


def _is_stored(address: str, settings: Settings) -> bool:
    """Return whether an address names a stored dataset. The revision of a stored dataset may be another one."""
    dataset_id, selection = split_address(address, Selection())
    return not selection.options and dataset_paths(dataset_id, settings=settings).exists
