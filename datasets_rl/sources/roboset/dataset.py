"""RoboSet's simulated part as replay buffers: the constructor of the reference, without robohive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.samplers.base import Sampler
from datasets_rl.sources import Selection
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.writers.base import Writer

__all__ = ["RobosetExperienceReplay"]


class RobosetExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of RoboSet's simulated part as a replay buffer.

        >>> dataset = RobosetExperienceReplay("FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4", batch_size=32)
        >>> dataset.sample()["seed"], dataset.metadata["files"]

    ``seed`` is the number of the file that a step is from, in the order of their names; ``dataset.episodes["trial"]``
    is the number that a trial has in its file. ``episode`` is unique over all files, which it is not in TorchRL.

    Args:
        dataset_id: One of the 20 ids.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        root: The source's folder; by default ``<RLDS_HOME>/roboset``.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        sampler: Chooses the steps; uniform with replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
            Episodes are counted over all files.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the selection contradicts the stored one, or asks for more and `download` is False.
        FetchError: If the hub does not give the files.
    """

    source = "roboset"

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
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
    ) -> None:
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


CLASS = RobosetExperienceReplay
