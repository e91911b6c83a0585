"""Replay buffers of Minari datasets, with the constructor of TorchRL's class, without the minari package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.samplers.base import Sampler
from datasets_rl.sources import Selection
from datasets_rl.sources.minari import own_cache
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.writers.base import Writer

__all__ = ["MinariExperienceReplay"]


class MinariExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a Minari dataset. Neither minari, gymnasium nor any environment is needed.

        >>> dataset = MinariExperienceReplay("D4RL/door/human-v2", batch_size=256)
        >>> dataset.sample()["observation"], dataset.metadata["env_spec"]

    HDF5, Arrow and Parquet files of all versions are supported. The members of Dict spaces are nested fields; the
    members of Tuple spaces have the names ``_index_0``, ``_index_1``. Images are arrays, whether they are stored as
    JPEG or raw. Strings are integer codes, which `texts` maps to the strings. The observation after the last step is
    the one in the file.

    Args:
        dataset_id: Names joined by slashes, with the version: ``"D4RL/door/human-v2"``.
        batch_size: Number of steps (with `split_trajs`, of episodes) in a batch, unless `sample` gets another number.
        root: Folder of the source; by default ``<RLDS_HOME>/minari``.
        download: True creates the dataset if it is missing, False requires it to exist, "force" creates it again.
        sampler: Sampler of the steps; uniform with replacement by default.
        writer: Writer of the buffer; by default one that raises, because a dataset is read-only.
        collate_fn: Function applied to the output of the storage.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Number of batches prepared in advance, by as many threads.
        transform: Transform applied to every batch.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        load_from_local_minari: Whether to read the files in the cache of the minari package (MINARI_DATASETS_PATH, or
            ``~/.minari/datasets``) in place, instead of those of the remote.
        selection: Part of the dataset; by default the stored part, or the whole dataset if nothing is stored.
        final_unknown: Treatment of transitions whose next observation is unknown; see the base class.

    Raises:
        UnknownIdError: If the id is not of Minari's form.
        InvalidArgumentError: If the selection contradicts the stored one, or exceeds it although `download` is False.
        FetchError: If no remote has the dataset.
    """

    source = "minari"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: Path | str | None = None,
        download: Download = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        split_trajs: bool = False,
        load_from_local_minari: bool = False,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
    ) -> None:
        self.load_from_local_minari = load_from_local_minari
        super().__init__(
            dataset_id,
            batch_size,
            sampler,
            writer,
            collate_fn,
            pin_memory,
            prefetch,
            transform,
            split_trajs,
            root=root,
            download=download,
            selection=selection,
            final_unknown=final_unknown,
        )

    def _local_copy(self) -> Path | None:
        return own_cache() / self.dataset_id if self.load_from_local_minari else None


CLASS = MinariExperienceReplay
