"""One's own files as a replay buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay

__all__ = ["LocalExperienceReplay"]


class LocalExperienceReplay(BaseDatasetExperienceReplay):
    """A folder of npz, HDF5 or Parquet files with a ``dataset.toml`` as a replay buffer.

        >>> dataset = LocalExperienceReplay("gripper", 256, folder="~/data/gripper")
        >>> dataset.sample()

    The files are converted once, and stay where they are.

    Args:
        dataset_id: Any name; it is stored under it.
        *args: Those of `BaseDatasetExperienceReplay`, in its order.
        folder: Where the files lie; needed until the dataset is stored.
        **options: Those of `BaseDatasetExperienceReplay`.

    Raises:
        UnknownIdError: If it is no name.
        ConversionError: If the files are not what their description says.
        FetchError: If nothing is stored, and no folder was given.
    """

    source = "local"

    def __init__(self, dataset_id: str, *args: Any, folder: Path | str | None = None, **options: Any) -> None:
        self.folder = None if folder is None else Path(folder).expanduser()
        super().__init__(dataset_id, *args, **options)

    def _local_copy(self) -> Path | None:
        return self.folder


CLASS = LocalExperienceReplay
