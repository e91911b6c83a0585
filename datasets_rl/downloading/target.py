"""What an id, an address, a selection and a root mean on this disk: worked out once per command, and handed on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import sources
from datasets_rl.downloading.stored_selection import grown_selection
from datasets_rl.errors import Call, InvalidArgumentError, NotADatasetError, Remedy
from datasets_rl.settings import Settings
from datasets_rl.sources import Entry, Selection
from datasets_rl.store import DatasetPaths, dataset_paths

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A dataset to download, or to find on the disk."""

    id: str
    """The id with its source; that of the repository for an address."""
    entry: Entry
    """The catalog entry, of the original dataset for a derived one."""
    paths: DatasetPaths
    selection: Selection
    """The requested selection, with the revision of an address."""
    stored: Manifest | None
    """The manifest of the current version; None if there is none, or if it is to be replaced whatever it is."""
    is_derived: bool = False

    @classmethod
    def find(
        cls,
        dataset_id: str,
        selection: Selection | None,
        *,
        root: Path | str | None = None,
        settings: Settings,
        replaces: bool = False,
    ) -> Target:
        """Return the target of an id or an address.

        Args:
            dataset_id: The id with its source, or an address ``hf://user/name@revision``.
            selection: The requested selection; by default the whole dataset.
            root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
            settings: The settings.
            replaces: Whether a stored version is replaced whatever it is, so that nothing of it is read.

        Raises:
            UnknownIdError: If there is no such id.
            InvalidArgumentError: If its source does not support the selection, or a derived dataset is to be replaced.
            ManifestError: If the stored version is damaged.
        """
        dataset_id, selection = sources.split_address(dataset_id, selection or Selection())
        is_derived = bool(sources.split_derived(dataset_id)[1])
        if is_derived and replaces:
            raise InvalidArgumentError(
                f"{dataset_id} was derived from another dataset, and cannot be downloaded",
                hint=Remedy("`{}` makes it again", Call("preprocess", ..., force=True)),
            )
        paths = dataset_paths(dataset_id, root=root, settings=settings)
        stored = None if replaces else _read_stored(paths)
        # Episodes of a stored dataset are chosen from its own table, also where the upstream has one file for all.
        checked = replace(selection, episodes="") if stored is not None else selection
        entry = sources.find(dataset_id) if is_derived else sources.checked_entry(dataset_id, checked)
        return cls(dataset_id, entry, paths, selection, stored, is_derived)

    def missing(self, *, as_stored: bool = False) -> Selection | None:
        """Return the selection to download, which has the stored one; None if the stored dataset has the requested one.

        Args:
            as_stored: Whether the stored selection decides everything that the requested one leaves open.

        Raises:
            InvalidArgumentError: As `grown_selection` does.
        """
        if self.stored is None:
            return self.selection
        return grown_selection(self.stored, self.paths.folder, self.selection, as_stored=as_stored)

    def read_again(self) -> Target:
        """Return the target with the version that is current now."""
        return replace(self, stored=_read_stored(self.paths))


def _read_stored(paths: DatasetPaths) -> Manifest | None:
    from datasets_rl.format.manifest import Manifest

    try:
        return Manifest.read(paths.folder)
    except NotADatasetError:
        return None
