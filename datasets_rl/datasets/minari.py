"""Replay buffers of Minari datasets, with the constructor of TorchRL's class, without the minari package."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Unpack

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import DatasetOptions
from datasets_rl.sources.minari import minari_cache_folder


class MinariExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a Minari dataset. Neither minari, gymnasium nor any environment is needed.

        >>> dataset = MinariExperienceReplay("D4RL/door/human-v2", batch_size=256)
        >>> dataset.sample()["observation"], dataset.metadata["env_spec"]

    HDF5, Arrow and Parquet files of all versions are supported. The members of Dict spaces are nested fields. The
    members of Tuple spaces have the names ``_index_0``, ``_index_1``. Images are arrays, whether they are stored as
    JPEG or raw. Strings are integer codes, which `texts` maps to the strings. The observation after the last step is
    from the file.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: Names joined by slashes, with the version: ``"D4RL/door/human-v2"``.
        load_from_local_minari: Whether to read the files in the cache of the minari package (MINARI_DATASETS_PATH, or
            ``~/.minari/datasets``) in place, instead of the files of the remote.
    """

    source = "minari"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        load_from_local_minari: bool = False,
        **options: Unpack[DatasetOptions],
    ) -> None:
        self.load_from_local_minari = load_from_local_minari
        super().__init__(dataset_id, batch_size, **options)

    def _local_copy(self) -> Path | None:
        return minari_cache_folder() / self.dataset_id if self.load_from_local_minari else None
