"""Atari DQN Replay as a replay buffer: the constructor of the reference."""

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
    """A run of the Atari DQN Replay dataset as a replay buffer: what a DQN agent saw in some 50 million steps.

        >>> dataset = AtariDQNExperienceReplay("Pong/1", batch_size=32, selection=Selection(options={"checkpoints": "0:5"}))
        >>> dataset.append_transform(CatFrames(4, -3, in_keys=["observation", ("next", "observation")], padding="zeros"))

    Frames are stored once, ``"observation"`` uint8 [N, 84, 84]; `CatFrames` reads stacks of them that never reach into
    another episode. Episodes go on over the checkpoints, and ``episodes`` has the checkpoint in which each one ends.
    What is not known, the frame after the last action of an episode, is zeros.

    The bucket of the dataset refuses every reader since 2025. ``Selection(options={"upstream": "rlu"})`` takes the run
    from RL Unplugged, which has 46 of the 60 games; files that are here already become a dataset with
    ``rlds download atari_dqn/Pong/1 --from-local PATH``.

    Args:
        dataset_id: The game and the run, 1 to 5: ``"Pong/1"``.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        root: The source's folder; by default ``<RLDS_HOME>/atari_dqn``.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        sampler: Chooses the steps; uniform with replacement by default. The four arguments about slices then count for
            nothing.
        writer: Refuses writes by default; a dataset cannot be written to.
        transform: Applied to every batch.
        num_procs: Checkpoints read at once, each by a process; 0 leaves it to the settings.
        num_slices: Runs of consecutive steps in a batch, instead of single steps.
        slice_len: Steps of each run; one of both is given.
        strict_len: Leave out episodes that are shorter than a run.
        replacement: Whether a step, or a run, may come again before all others have come.
        mp_start_method: Accepted for the reference's sake; processes are started as programs.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If there is no such run, or it is not there and `download` is False.
        InvalidArgumentError: If the selection contradicts the stored one, or asks for more and `download` is False.
        FetchError: If no upstream has it; the error names the ways that are left.
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
