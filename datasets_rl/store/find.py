"""Where datasets are on this disk: the folder of an id, the id of a folder, and all stored datasets."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl import disk, sources
from datasets_rl.disk import MANIFEST_FILE, STATE_FILE
from datasets_rl.errors import (
    Call,
    InvalidArgumentError,
    ManifestError,
    NotADatasetError,
    RecordingWarning,
    Remedy,
    UnknownIdError,
)
from datasets_rl.format.current import CURRENT_FILE, is_dataset
from datasets_rl.settings import Settings
from datasets_rl.sources import DERIVED, Entry
from datasets_rl.sources.flat.formats import ENDINGS
from datasets_rl.sources.foreign import PAGE, archive_command, foreign_file
from datasets_rl.store.layout import OWN_SOURCE, DatasetPaths, check_name, dataset_folder, is_own_name, walk
from datasets_rl.store.publish import versions_of

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources.foreign import Foreign

_TAR = ".tar"
"""End of the names of archives that are read as the folder that was packed."""
_SAVED_TABLE = "dataset_info.json"
"""File beside the state of a table that the package datasets saved, which is not the state of a checkpoint."""
_TUB = re.compile(r"catalog_\d+\.catalog")
"""Files of a tub of Donkeycar, which has another kind of manifest.json."""
_DERIVED_NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._+,=-]{0,99}")


def dataset_paths(dataset_id: str, *, root: Path | str | None = None, settings: Settings | None = None) -> DatasetPaths:
    """Return the paths of a dataset, which need not exist yet.

    Args:
        dataset_id: The id with its source, ``d4rl/hopper-medium-v2``, of a derived dataset, ``demo/pendulum@td3_bc``, or
            the address of a dataset on the hub, ``hf://user/name``.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the name of the derived dataset is not valid, the name of the dataset looks like an
            entry in the folder of another dataset, or an address names a revision, which may differ from the stored
            revision.
    """
    address = dataset_id
    dataset_id, addressed = sources.split_address(address, sources.Selection())
    if addressed.options:
        raise InvalidArgumentError(
            f"{address} names a revision, which is for downloads, expected the name of a stored dataset",
            hint=f"use the name {dataset_id}",
        )
    suffix = dataset_id.removeprefix(sources.split_derived(dataset_id)[0])
    return entry_paths(sources.find(dataset_id), suffix, root=root, settings=settings)


def entry_paths(
    entry: Entry, suffix: str = "", *, root: Path | str | None = None, settings: Settings | None = None
) -> DatasetPaths:
    """Return the paths of the dataset of a catalog entry, or of a dataset that is derived from it.

    Args:
        entry: The entry.
        suffix: The end of the id of a derived dataset, ``@td3_bc``.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        InvalidArgumentError: As `dataset_paths` does.
    """
    if suffix:
        check_derived_name(suffix[1:])
    check_name(entry.name)
    if root is None:
        root = (settings or Settings.from_env()).home / entry.source
    return DatasetPaths(disk.expand_home(root).absolute(), f"{entry.name}{suffix}")


def check_derived_name(name: str) -> None:
    """Check the name of a derived dataset: the characters after the ``@`` in the id.

    Raises:
        InvalidArgumentError: If the name cannot be part of a folder's name.
    """
    if invalid := [part for part in name.split(DERIVED) if not _DERIVED_NAME.fullmatch(part)]:
        raise InvalidArgumentError(
            f"{invalid[0]!r} cannot name a derived dataset, expected at most 100 letters, digits and any of ._+,=- , "
            "and not a number",
            hint="choose another name",
        )


def id_or_path(dataset: str | Path) -> str | Path:
    """Distinguish a path, such as the folder of a dataset, from an id.

    Args:
        dataset: An id or a path. A folder in the working directory never hides a known id.

    Returns:
        A path, the id unchanged, or the id of the raw files at a path, from which a dataset may be converted.
    """
    path = disk.expand_home(dataset)
    if not (isinstance(dataset, Path) or path.is_absolute() or dataset.startswith((".", "~"))):
        # Unlike the method of Path, this is False for a name that is too long for the file system.
        if not dataset or not os.path.exists(path):  # noqa: PTH110 - see above
            is_file = path.name.lower().endswith((*ENDINGS, _TAR))
            return (_stored_id(path) if is_file else "") or dataset
        with suppress(UnknownIdError):
            sources.find(dataset)
            return dataset
    if not _has_raw_files(path):
        return path if os.path.lexists(path) else _stored_id(path) or path
    return sources.id_of_address(path)[0]


def _stored_id(path: Path) -> str:
    """Return the id of a dataset that was converted from raw files at a path that is gone, or an empty text."""
    try:
        dataset_id = sources.id_of_address(path)[0]
        return dataset_id if dataset_paths(dataset_id).exists else ""
    except InvalidArgumentError:
        return ""


def raw_files_id(dataset: str) -> str:
    """Return the id of raw files that are named by a path. An id and an address are unchanged.

    The files are stored under this id, by which the user may name the dataset the next time.

    Raises:
        InvalidArgumentError: If the path is that of a stored dataset, does not exist, or has no raw files.
    """
    found = id_or_path(dataset)
    if isinstance(found, str):
        return found
    if not os.path.exists(found):  # noqa: PTH110 - unlike the method of Path, False for a name that is too long
        raise InvalidArgumentError(
            f"{found} cannot be read: the path does not exist", hint="correct the path, or give an id"
        )
    if os.path.lexists(found / CURRENT_FILE) or os.path.lexists(found / MANIFEST_FILE):
        raise InvalidArgumentError(
            f"{found} is a stored dataset, which is opened in place and not downloaded",
            hint=Remedy("{} describes the dataset", Call("info", str(found))),
        )
    if found.is_file():
        foreign = foreign_file(found)
        kind = f": the file is {foreign.title}" if foreign else ""
        raise InvalidArgumentError(
            f"{found} is not a dataset{kind}, expected a folder, or a file that ends with "
            + ", ".join((*ENDINGS, _TAR)),
            hint=_way_of_file(found, foreign),
        )
    raise InvalidArgumentError(
        f"{found} cannot be read: the path is neither a file nor a folder with files",
        hint="name a file, or the folder of the files",
    )


def _way_of_file(path: Path, foreign: Foreign | None) -> str:
    """Return what to do with a file that no source reads."""
    if foreign is not None:
        return foreign.way
    if command := archive_command(path.name):
        return f"unpack the archive, `{command}`, and give the folder in the archive"
    return f"give the folder of the files, or read the file and store the episodes with EpisodeWriter, see {PAGE}"


def _has_raw_files(path: Path) -> bool:
    """Return whether a path has files, and nothing of a stored dataset or a checkpoint.

    The root of a file system has no raw files.
    """
    if os.path.isfile(path):  # noqa: PTH113 - unlike the method of Path, False for a name that is too long
        return path.name.lower().endswith((*ENDINGS, _TAR))
    try:
        names = [entry.name for entry in os.scandir(path) if entry.name[0] != "."]
    except OSError:
        return False
    if (folder := path.absolute()).parent == folder or not names:
        return False
    own = {MANIFEST_FILE, STATE_FILE}
    if any(_TUB.fullmatch(name) for name in names):
        own -= {MANIFEST_FILE}
    if _SAVED_TABLE in names:
        own -= {STATE_FILE}
    return not any(name in own or is_own_name(name) for name in names)


def paths_of(folder: Path) -> DatasetPaths:
    """Return the paths of the dataset in a folder. The root is the root of the id if the folder is named after the id.

    Raises:
        NotADatasetError: If the folder is the root of a file system.
    """
    from datasets_rl.format.manifest import Manifest

    folder = disk.expand_home(folder).resolve()
    if folder == folder.parent:
        raise NotADatasetError(folder, "the path is the root of a file system")
    with suppress(NotADatasetError, ManifestError):
        return named_paths(folder, Manifest.read(folder).id)
    return DatasetPaths(folder.parent, folder.name)


def named_paths(folder: Path, dataset_id: str) -> DatasetPaths:
    """Return the paths of a dataset in a folder.

    If the path of the folder ends with the name in the id, which may contain slashes, the root is the folder above the
    whole name. Otherwise the root is the parent folder.
    """
    name = dataset_id.partition("/")[2]
    if name and folder.as_posix().endswith(f"/{name}"):
        return DatasetPaths(folder.parents[name.count("/")], name)
    return DatasetPaths(folder.parent, folder.name)


def shown_id(folder: Path, stated: str, *, settings: Settings | None = None) -> str:
    """Return the id under which a stored dataset is shown: the id of the place, by which commands find the dataset.

    A folder that was copied or renamed keeps the manifest, which states the id of the original.

    Args:
        folder: The folder of the dataset, or of a version of the dataset.
        stated: The id in the manifest, which is shown for a folder elsewhere than below the home.
        settings: The settings. By default the settings of the environment.
    """
    home = (settings or Settings.from_env()).home.absolute()
    place = dataset_folder(folder.absolute())
    # A link names a dataset as a folder does, so that the target is looked at last.
    for path, above in ((place, home), (place.resolve(), home.resolve())):
        parts = path.relative_to(above).parts if path.is_relative_to(above) else ()
        if len(parts) > 1 and parts[0] in sources.source_names():
            return "/".join(parts)
    return stated


def source_folders(home: Path) -> list[Path]:
    """Return the folders of the sources below the folder of all datasets, sorted.

    Other folders there belong to other programs, and so does a folder ``raw`` in such a folder.
    """
    return [home / name for name in sources.source_names() if (home / name).is_dir()]


def dataset_places(root: Path) -> Iterator[DatasetPaths]:
    """Yield the paths of everything below the folder of a source that has a dataset, or a part of a dataset, sorted."""
    for folder in walk(root):
        if folder != root:
            yield DatasetPaths(root, folder.relative_to(root).as_posix())


def stored_folders(home: Path) -> Iterator[Path]:
    """Yield the folder of every dataset below a home folder that has a version, sorted, also if none is current."""
    for root in source_folders(home):
        for paths in dataset_places(root):
            named = (CURRENT_FILE, MANIFEST_FILE)
            if any(os.path.lexists(paths.folder / name) for name in named) or versions_of(paths):
                yield paths.folder


def derived_paths(base: DatasetPaths) -> list[DatasetPaths]:
    """Return the paths of the datasets that were derived from a dataset, sorted."""
    parent = base.folder.parent
    prefix = f"{base.folder.name}{DERIVED}"
    names = sorted(path.name for path in parent.iterdir() if path.name.startswith(prefix)) if parent.is_dir() else []
    candidates = [DatasetPaths(base.root, f"{base.name}{name.removeprefix(base.folder.name)}") for name in names]
    return [paths for paths in candidates if paths.exists]


def stored_manifest(paths: DatasetPaths) -> Manifest | None:
    """Return the manifest of the current version of a dataset, or None if not stored.

    Raises:
        ManifestError: If the manifest is not valid.
    """
    from datasets_rl.format.manifest import Manifest

    with suppress(NotADatasetError):
        return Manifest.read(paths.folder)
    return None


def last_history_entry(paths: DatasetPaths) -> Mapping[str, Any]:
    """Return the last entry in the history of a dataset, empty if the dataset is not stored or preprocessed."""
    with suppress(ManifestError):  # a damaged dataset is not the result of any run
        if manifest := stored_manifest(paths):
            return next(reversed(manifest.history), {})
    return {}


def locate(dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None) -> Path:
    """Return the folder of a finished dataset, given by id or by folder. Nothing on the disk is changed.

    Args:
        dataset: The id or the folder.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id, or (`NotADatasetError`) the folder has no finished dataset.
        ManifestError: If the file that names the current version is damaged.
    """
    as_path = disk.expand_home(dataset)
    if isinstance(dataset, Path) or (root is None and is_dataset(as_path)):
        return _locate_folder(as_path.absolute())
    paths = dataset_paths(dataset, root=root, settings=settings)
    if not paths.exists:
        raise missing_error(dataset, paths)
    warn_of_recordings(paths)
    return paths.folder


def find_paths(
    dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None
) -> DatasetPaths:
    """Return the paths of a dataset, given by id or by folder, whether or not any version is current.

    Raises:
        UnknownIdError: If there is no such id.
        NotADatasetError: If the folder has nothing of a dataset.
    """
    if isinstance(dataset, str):
        return dataset_paths(dataset, root=root, settings=settings)
    paths = paths_of(dataset)
    # `lexists` is False for a name that is too long for the file system.
    if not os.path.lexists(dataset) or not (paths.entries() or paths.has_no_pointer):
        raise _not_a_folder_error(dataset)
    return paths


def _locate_folder(folder: Path) -> Path:
    if not is_dataset(folder):
        raise missing_error(folder, paths_of(folder))
    if (folder / "recorded").is_dir():
        warn_of_recordings(paths_of(folder))
    return folder


def missing_error(dataset: str | Path, paths: DatasetPaths) -> NotADatasetError:
    """Return the error of a dataset that is not stored, given by id or by folder.

    The error says what stores the dataset.

    Raises:
        ManifestError: If the dataset is stored, and the file with the name of the current version is damaged.
    """
    if isinstance(dataset, Path) and not os.path.lexists(dataset):
        return _not_a_folder_error(dataset)
    if os.path.lexists(paths.current):
        _ = paths.version  # raises the error about a damaged pointer
    if versions := versions_of(paths):
        number = (
            "1 version, which is not current" if len(versions) == 1 else f"{len(versions):,} versions, none current"
        )
        use = Remedy("{} makes the last version current", Call("restore", dataset, versions[-1].name))
        return NotADatasetError(paths.folder, f"there is no file {CURRENT_FILE}, and {number}", hint=use)
    if isinstance(dataset, Path):
        return _not_a_folder_error(dataset)
    base, derived = sources.split_derived(dataset)
    if derived:
        make = Call("preprocess", Call("locate", base), recipe=...)
        return NotADatasetError(paths.folder, "it was not made", hint=Remedy("{} makes derived datasets", make))
    if paths.root.name == OWN_SOURCE:
        return _no_data_error(base, paths)
    local = sources.path_of_id(base)  # a user who names the files does not know the folder of the home
    reason = f"the files at {local} are not converted yet" if local else "it is not downloaded"
    return NotADatasetError(paths.folder, reason, hint=Remedy("{}", Call("download", base)))


def _no_data_error(dataset_id: str, paths: DatasetPaths) -> NotADatasetError:
    """Return the error of a dataset of the user's own, which can be downloaded from nowhere, or has another name."""
    if pending := pending_recordings(paths):
        return NotADatasetError(paths.folder, _pending_text(pending), hint=_adding(paths))
    stored = [one.name for one in dataset_places(paths.root) if one.exists]
    near = [f", unlike {OWN_SOURCE}/{name}" for name in difflib.get_close_matches(paths.name, stored, n=1)]
    return NotADatasetError(
        paths.folder,
        f"it has no data{''.join(near)}",
        hint=Remedy(
            "{} adds the episodes of a stored dataset, {} converts files",
            Call("append_episodes", dataset_id, ...),
            Call("download", dataset_id, from_local=...),
        ),
    )


def pending_recordings(paths: DatasetPaths) -> list[Path]:
    """Return the folders of the recordings of a dataset with dead processes, sorted.

    The episodes of such recordings are not yet a part of the dataset. Only names are read, nothing is changed, and
    links are ignored.
    """
    with suppress(OSError):
        folders = disk.plain_folders(paths.recorded, paths.folder) if paths.is_own else []
        return [folder for folder in folders if disk.is_abandoned(folder)]
    return []


def warn_of_recordings(paths: DatasetPaths) -> None:
    """Warn that recorded episodes are not yet a part of a dataset, and say what adds these episodes."""
    if pending := pending_recordings(paths):
        warnings.warn(RecordingWarning(f"{paths.folder}: {_pending_text(pending)}", hint=_adding(paths)), stacklevel=3)


def _pending_text(pending: Sequence[Path]) -> str:
    recordings = "1 recording" if len(pending) == 1 else f"{len(pending):,} recordings"
    return (
        f"the episodes of {recordings} in {pending[0].parent} are missing: a program ended before adding these episodes"
    )


def _adding(paths: DatasetPaths) -> Remedy:
    return Remedy("{} adds them", Call("append_episodes", f"{OWN_SOURCE}/{paths.name}"))


def _not_a_folder_error(path: Path) -> NotADatasetError:
    if not os.path.exists(path):  # noqa: PTH110 - unlike the method of Path, False for a name that is too long
        return NotADatasetError(path, "the path does not exist")
    if path.suffix == ".toml" and path.is_file():
        return NotADatasetError(path, "the path is a file, as of a mixture", hint="name a dataset of the mixture")
    if path.is_file():
        foreign = foreign_file(path)
        kind = foreign.title if foreign else "a file"
        return NotADatasetError(
            path, f"the path is {kind}, expected the folder of a dataset", hint=_way_of_file(path, foreign)
        )
    return NotADatasetError(path)
