"""Gen-DGRL's datasets as replay buffers: the constructor of the reference."""

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
    """A dataset of Gen-DGRL as a replay buffer: games of Procgen, played by policies of several kinds.

        >>> dataset = GenDGRLExperienceReplay("bigfish-1M_E", batch_size=32)
        >>> dataset.sample()["observation"]       # [32, 3, 64, 64], bytes
        >>> dataset.episodes["level_seed"]        # of each episode; "stated_return" is that of its file's name

    It has as many steps as the archive has, which is not quite the round number of its name. The state after the last step
    of an episode is not known: the next observation is zeros there, and `episodes` says so, ``"final_known"``.

    Args:
        dataset_id: The game and the category, ``"bigfish-1M_E"``.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        root: The source's folder; by default ``<RLDS_HOME>/gen_dgrl``.
        sampler: Chooses the steps; uniform with replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the selection contradicts the stored one, or asks for more and `download` is False.
        FetchError: If no address gives the archive.
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
