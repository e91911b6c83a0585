"""Replay buffers of custom datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay

__all__ = ["LocalExperienceReplay"]


class LocalExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a folder of npz, HDF5 or Parquet files with a ``dataset.toml``.

        >>> dataset = LocalExperienceReplay("gripper", 256, folder="~/data/gripper")
        >>> dataset.sample()

    The files are converted once and are not moved.

    Args:
        dataset_id: Any name, under which the dataset is stored.
        *args: Positional arguments of `BaseDatasetExperienceReplay`.
        folder: Folder of the files; required until the dataset is stored.
        **options: Keyword arguments of `BaseDatasetExperienceReplay`.

    Raises:
        UnknownIdError: If the name has characters that are not allowed.
        ConversionError: If the files do not match their description.
        FetchError: If the dataset is not stored, and no folder was given.
    """

    source = "local"

    def __init__(self, dataset_id: str, *args: Any, folder: Path | str | None = None, **options: Any) -> None:
        self.folder = None if folder is None else Path(folder).expanduser()
        super().__init__(dataset_id, *args, **options)

    def _local_copy(self) -> Path | None:
        return self.folder


CLASS = LocalExperienceReplay
