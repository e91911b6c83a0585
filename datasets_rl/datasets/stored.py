"""Stored datasets that are opened by their folder, of any source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from datasets_rl import store
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.opening import folder_with
from datasets_rl.datasets.options import Download
from datasets_rl.store.find import locate


class StoredExperienceReplay(BaseDatasetExperienceReplay):
    """A stored dataset that is opened by its folder. The `dataset_id` is the path."""

    source = ""

    def _folder(self, dataset_id: str, root: Path | str | None, download: Download) -> Path:
        del root, download
        return folder_with(locate(Path(dataset_id)), self._asked)

    @property
    def root(self) -> Path:
        """The parent folder of the dataset."""
        return self._path.parent

    @override
    def delete(self) -> None:
        store.remove_folder(self._path)

    def _derived(self, folder: Path, options: dict[str, Any]) -> BaseDatasetExperienceReplay:
        return type(self)(str(folder), **options)
