"""Replay buffers of Atari DQN Replay, with the constructor of TorchRL's class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.samplers import SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement
from datasets_rl.samplers.base import Sampler
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.writers.base import Writer

__all__ = ["AtariDQNExperienceReplay"]


class AtariDQNExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a run of Atari DQN Replay: about 50 million steps of a DQN agent.

        >>> dataset = AtariDQNExperienceReplay("Pong/1", batch_size=32, selection=Selection(options={"checkpoints": "0:5"}))
        >>> dataset.append_transform(CatFrames(4, -3, in_keys=["observation", ("next", "observation")], padding="zeros"))

    Each frame is stored once, ``"observation"`` uint8 [N, 84, 84]; `CatFrames` reads stacks of frames that never cross
    episodes. Episodes continue across checkpoints, and ``episodes`` has the checkpoint in which each episode ends. The
    frame after the last action of an episode is not known and reads as zeros.

    Since 2025 the bucket of the dataset denies access to everyone. ``Selection(options={"upstream": "rlu"})`` takes the
    run from RL Unplugged, which has 46 of the 60 games; ``download("atari_dqn/Pong/1", from_local=path)``
    converts files that were downloaded before.

    Args:
        dataset_id: The game and the run, 1 to 5: ``"Pong/1"``.
        batch_size: Number of steps (with `split_trajs`, of episodes) in a batch, unless `sample` gets another number.
        root: Folder of the source; by default ``<RLDS_HOME>/atari_dqn``.
        download: True creates the dataset if it is missing, False requires it to exist, "force" creates it again.
        sampler: Sampler of the steps; uniform with replacement by default. It overrides `num_slices`, `slice_len`,
            `strict_len` and `replacement`.
        writer: Writer of the buffer; by default one that raises, because a dataset is read-only.
        transform: Transform applied to every batch.
        num_procs: Number of checkpoints read at once, each by a process; 0 takes it from the settings.
        num_slices: Number of slices of consecutive steps in a batch, instead of single steps.
        slice_len: Number of steps of each slice; only one of `num_slices` and `slice_len` may be given.
        strict_len: Whether to exclude episodes that are shorter than a slice.
        replacement: Whether a step or slice may repeat before all others were sampled.
        mp_start_method: Accepted for compatibility with TorchRL and ignored.
        collate_fn: Function applied to the output of the storage.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Number of batches prepared in advance, by as many threads.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        selection: Part of the dataset; by default the stored part, or the whole dataset if nothing is stored.
        final_unknown: Treatment of transitions whose next observation is unknown; see the base class.

    Raises:
        UnknownIdError: If there is no such run, or it is not stored and `download` is False.
        InvalidArgumentError: If the selection contradicts the stored one, or exceeds it although `download` is False.
        FetchError: If no upstream has the run; the error names the alternatives.
    """

    source = "atari_dqn"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: Path | str | None = None,
        download: Download = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        num_procs: int = 0,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_len: bool = True,
        replacement: bool = True,
        mp_start_method: str = "fork",
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        split_trajs: bool = False,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
    ) -> None:
        del mp_start_method
        self._num_procs = num_procs
        if sampler is None and (num_slices is not None or slice_len is not None):
            kind = SliceSampler if replacement else SliceSamplerWithoutReplacement
            sampler = kind(num_slices=num_slices, slice_len=slice_len, strict_length=strict_len)
        elif sampler is None and not replacement:
            sampler = SamplerWithoutReplacement()
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

    def _settings(self) -> Settings:
        settings = super()._settings()
        return replace(settings, jobs=self._num_procs) if self._num_procs else settings


CLASS = AtariDQNExperienceReplay
