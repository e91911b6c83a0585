"""Any dataset's folder, whatever made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets_rl import growth, store
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download

__all__ = ["StoredExperienceReplay"]


class StoredExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset that is opened by its folder; its "id" is the path."""

    source = ""

    def _folder(self, dataset_id: str, root: Path | str | None, download: Download) -> Path:
        del root, download
        folder = store.locate(Path(dataset_id))
        growth.require_part(folder, self._asked)
        return folder

    @property
    def root(self) -> Path:
        """The folder above the dataset's."""
        return self._path.parent

    def delete(self) -> None:
        """Remove the dataset from the disk; this buffer must not be used afterwards."""
        store.remove_folder(self._path)

    def _derived(self, folder: Path, options: dict[str, Any]) -> BaseDatasetExperienceReplay:
        return type(self)(str(folder), **options)
