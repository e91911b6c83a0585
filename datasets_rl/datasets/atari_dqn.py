"""Replay buffers of Atari DQN Replay, with the constructor of TorchRL's class."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import Unpack

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import DatasetOptions
from datasets_rl.samplers import SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement
from datasets_rl.settings import Settings


class AtariDQNExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a run of Atari DQN Replay: about 50 million steps of a DQN agent.

        >>> dataset = AtariDQNExperienceReplay("Pong/1", batch_size=32, selection=Selection(options={"checkpoints": "0:5"}))
        >>> dataset.append_transform(CatFrames(4, -3, in_keys=["observation", ("next", "observation")], padding="zeros"))

    Each frame is stored once, ``"observation"`` uint8 [N, 84, 84]. `CatFrames` reads stacks of frames that never cross
    episodes. Episodes continue across checkpoints, and ``episodes`` has the checkpoint in which each episode ends. The
    frame after the last action of an episode is not known and reads as zeros.

    Since 2025 the bucket of the dataset denies access to everyone. ``Selection(options={"upstream": "rlu"})`` takes the
    run from RL Unplugged, which has 46 of the 60 games. ``download("atari_dqn/Pong/1", from_local=path)``
    converts files that were downloaded before.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: The game and the run, 1 to 5: ``"Pong/1"``.
        sampler: Sampler of the steps, which overrides `num_slices`, `slice_len`, `strict_len` and `replacement`.
        num_procs: Number of checkpoints read at once, each by a process. 0 for the number in the settings.
        num_slices: Number of slices of consecutive steps in a batch, instead of single steps.
        slice_len: Number of steps of each slice. `num_slices` and `slice_len` are mutually exclusive.
        strict_len: Whether to exclude episodes that are shorter than a slice.
        replacement: Whether a step or slice may repeat before all others were sampled.
        mp_start_method: Accepted for compatibility with TorchRL and ignored.

    Raises:
        FetchError: If no upstream has the run. The error names the alternatives.
    """

    source = "atari_dqn"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        num_procs: int = 0,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_len: bool = True,
        replacement: bool = True,
        mp_start_method: str = "fork",
        **options: Unpack[DatasetOptions],
    ) -> None:
        del mp_start_method
        self._num_procs = num_procs
        if options.get("sampler") is None and (num_slices is not None or slice_len is not None):
            kind = SliceSampler if replacement else SliceSamplerWithoutReplacement
            options["sampler"] = kind(num_slices=num_slices, slice_len=slice_len, strict_length=strict_len)
        elif options.get("sampler") is None and not replacement:
            options["sampler"] = SamplerWithoutReplacement()
        super().__init__(dataset_id, batch_size, **options)

    def _settings(self) -> Settings:
        settings = super()._settings()
        return replace(settings, jobs=self._num_procs) if self._num_procs else settings
