"""The stored datasets that are searched. A dataset is opened if it has an episode that is looked up, or if the index is made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from datasets_rl.errors import DatasetsRLError, ManifestError, NotADatasetError
from datasets_rl.fingerprints.fingerprint import FINGERPRINTS_FILE, SKETCHES_FILE, Fingerprints
from datasets_rl.format.current import version_folder
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.store.find import shown_id, stored_folders


class KnownDataset:
    """A stored dataset that is searched.

    Args:
        shown: The id under which the dataset is shown.
        folder: The folder of the current version, or of the dataset if the current version is not known.
    """

    def __init__(self, shown: str, folder: Path) -> None:
        self.id = shown
        self.folder = folder

    @cached_property
    def stored(self) -> StoredDataset:
        """The opened dataset.

        Raises:
            DatasetsRLError: If the dataset cannot be opened.
        """
        return StoredDataset(self.folder)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints of the episodes. The errors are those of `stored`."""
        return self.stored.fingerprints

    @cached_property
    def problem(self) -> str:
        """Why the dataset cannot be opened. Empty if the dataset can be opened."""
        try:
            _ = self.fingerprints
        except (DatasetsRLError, OSError) as error:
            return f"{self.folder}: {error}"
        return ""

    def state(self) -> str:
        """Return a text that is another one for another version, from names, sizes and times, without opening a file."""
        try:
            files = [(self.folder / name).stat() for name in (FINGERPRINTS_FILE, SKETCHES_FILE)]
        except OSError as error:
            return f"{self.folder}\0{error.errno}"
        return "\0".join([str(self.folder), *(f"{file.st_size} {file.st_mtime_ns}" for file in files)])


def known_datasets(settings: Settings) -> Iterator[KnownDataset]:
    """Yield the datasets in the home folder that have a current version, each once, although links lead to it, too."""
    found = set()
    for folder in stored_folders(settings.home):
        place = folder.resolve()
        if place in found:
            continue
        found.add(place)
        version = place
        try:
            version = version_folder(place)
        except NotADatasetError:
            continue
        except ManifestError:
            pass  # the problem is reported when the dataset is opened
        yield KnownDataset(shown_id(folder, "", settings=settings), version)
