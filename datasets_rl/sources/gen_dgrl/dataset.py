"""Replay buffers of Gen-DGRL datasets, with the constructor of TorchRL's class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.samplers.base import Sampler
from datasets_rl.sources import Selection
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.writers.base import Writer

__all__ = ["GenDGRLExperienceReplay"]


class GenDGRLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a Gen-DGRL dataset: games of Procgen, played by various policies.

        >>> dataset = GenDGRLExperienceReplay("bigfish-1M_E", batch_size=32)
        >>> dataset.sample()["observation"]       # uint8 [32, 3, 64, 64]
        >>> dataset.episodes["level_seed"]        # one per episode; "stated_return" is the return in the file name

    The number of steps is that of the archive, which differs slightly from the round number in its name. The state
    after the last step of an episode is not known: the next observation reads as zeros there, and
    ``dataset.episodes["final_known"]`` is False.

    Args:
        dataset_id: The game and the category, ``"bigfish-1M_E"``.
        batch_size: Number of steps (with `split_trajs`, of episodes) in a batch, unless `sample` gets another number.
        download: True creates the dataset if it is missing, False requires it to exist, "force" creates it again.
        root: Folder of the source; by default ``<RLDS_HOME>/gen_dgrl``.
        sampler: Sampler of the steps; uniform with replacement by default.
        writer: Writer of the buffer; by default one that raises, because a dataset is read-only.
        collate_fn: Function applied to the output of the storage.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Number of batches prepared in advance, by as many threads.
        transform: Transform applied to every batch.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        selection: Part of the dataset; by default the stored part, or the whole dataset if nothing is stored.
        final_unknown: Treatment of transitions whose next observation is unknown; see the base class.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the selection contradicts the stored one, or exceeds it although `download` is False.
        FetchError: If no address serves the archive.
    """

    source = "gen_dgrl"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        download: Download = True,
        root: Path | str | None = None,
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


CLASS = GenDGRLExperienceReplay
