"""Minari's datasets as replay buffers: the constructor of the reference, without minari."""

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
    """A dataset of Minari as a replay buffer. Neither minari, gymnasium nor any environment is needed.

        >>> dataset = MinariExperienceReplay("D4RL/door/human-v2", batch_size=256)
        >>> dataset.sample()["observation"], dataset.metadata["env_spec"]

    HDF5, Arrow and Parquet files of all versions are read. The members of Dict spaces are nested fields, those of Tuple
    spaces are called ``_index_0``, ``_index_1``; images are arrays, whether they are stored as JPEG or raw; texts are
    numbers, whose texts `texts` gives. The observation after the last step is that of the file.

    Args:
        dataset_id: Names joined by slashes, with the version: ``"D4RL/door/human-v2"``.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        root: The source's folder; by default ``<RLDS_HOME>/minari``.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        sampler: Chooses the steps; uniform with replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        load_from_local_minari: Read the files that lie in Minari's own cache (MINARI_DATASETS_PATH, or
            ``~/.minari/datasets``), in their place, and not those of the remote.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If it is no id of Minari's.
        InvalidArgumentError: If the selection contradicts the stored one, or asks for more and `download` is False.
        FetchError: If no remote has it.
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
