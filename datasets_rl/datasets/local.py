"""Replay buffers of custom datasets."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Unpack

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import DatasetOptions
from datasets_rl.disk import expand_home


class LocalExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a folder of your own files, which have common names or a ``dataset.toml``.

        >>> dataset = LocalExperienceReplay("gripper", 256, folder="~/data/gripper")
        >>> dataset.sample()

    The files are converted once and are not moved.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: Any name, under which the dataset is stored.
        folder: Folder of the files, required until the dataset is stored.

    Raises:
        UnknownIdError: If the name has characters that are not allowed.
        ConversionError: If the files do not match the description.
        FetchError: If the dataset is not stored, and no folder was given.
    """

    source = "local"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        folder: Path | str | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        self.folder = None if folder is None else expand_home(folder)
        super().__init__(dataset_id, batch_size, **options)

    def _local_copy(self) -> Path | None:
        return self.folder
