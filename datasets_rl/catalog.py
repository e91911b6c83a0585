"""The catalog of datasets, without a network: the ids of all sources, and the stored datasets."""

from __future__ import annotations

import fnmatch
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import locating, sources, store
from datasets_rl.errors import NotADatasetError, UnknownIdError
from datasets_rl.settings import Settings

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources import Entry


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a dataset, stored or not."""

    id: str
    entry: Entry | None
    """The entry of its source's catalog; None for a dataset that no catalog has."""
    folder: Path | None
    """The folder of the stored dataset; None if it is not stored."""
    manifest: Manifest | None
    """The manifest of the stored dataset."""
    versions: tuple[Path, ...] = ()
    """The folders of its earlier versions, oldest first."""


def list_datasets(
    pattern: str = "", *, source: str = "", downloaded: bool = False, settings: Settings | None = None
) -> list[str]:
    """Return the sorted ids of datasets, without network access.

        >>> list_datasets("hopper-*-v2", source="d4rl")

    Args:
        pattern: A substring of an id, or a glob; by default all ids match.
        source: The name of a source; by default all sources.
        downloaded: Whether to list only stored datasets, including derived ones.
        settings: The settings; by default those of the environment.

    Raises:
        UnknownIdError: If there is no such source.
    """
    origins, errors = ((sources.get_source(source),), ()) if source else sources.importable_sources()
    for error in errors:
        warnings.warn(f"left out: {error.message}", stacklevel=2)
    if downloaded:
        home = (settings or Settings.from_env()).home
        names = (source,) if source else sources.source_names()
        ids = {folder.relative_to(home).as_posix() for folder in store.stored_folders(home)}
        ids = {dataset_id for dataset_id in ids if dataset_id.partition("/")[0] in names}
    else:
        ids = {one.entry(name).id for one in origins for name in one.ids()}
    return sorted(dataset_id for dataset_id in ids if matches(dataset_id, pattern))


def matches(dataset_id: str, pattern: str) -> bool:
    """Return whether an id, or its name after the source, matches a glob; or contains a pattern without wildcards."""
    dataset_id, pattern = dataset_id.lower(), pattern.lower()
    if not any(wildcard in pattern for wildcard in "*?["):
        return pattern in dataset_id
    return any(fnmatch.fnmatchcase(text, pattern) for text in (dataset_id, dataset_id.partition("/")[2]))


def info(dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None) -> DatasetInfo:
    """Return the description of a dataset, stored or not; no network.

        >>> info("d4rl/hopper-medium-v2").entry.license

    Args:
        dataset: An id or a folder.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        settings: The settings; by default those of the environment.

    Raises:
        UnknownIdError: If no catalog has the id and no dataset is stored under it.
        ManifestError: If the stored dataset has a manifest that cannot be read.
    """
    from datasets_rl.format.manifest import Manifest

    dataset = store.id_or_path(dataset)
    entry = None
    if isinstance(dataset, str):
        try:
            entry = sources.find(dataset)
        except UnknownIdError:
            entry = None
    try:
        folder = locating.locate(dataset, root=root, settings=settings)
    except NotADatasetError:
        if entry is None:
            raise
        return DatasetInfo(str(dataset), entry, None, None)
    manifest = Manifest.read(folder)
    versions = tuple(version.folder for version in store.versions(store.paths_of(folder)))
    return DatasetInfo(manifest.id, entry, folder, manifest, versions)
