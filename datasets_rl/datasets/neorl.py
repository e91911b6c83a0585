"""Replay buffers of NeoRL and NeoRL-2 datasets."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class NeoRLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a NeoRL or NeoRL-2 dataset: tasks near the real world. No simulator is needed.

        >>> dataset = NeoRLExperienceReplay("Pipeline-train", batch_size=256)
        >>> dataset.sample()["observation"]        # [256, 52]

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The name of the file without ``-noise``: ``"HalfCheetah-v3-low-1000-train"``, ``"DMSD-val"``.
    """

    source = "neorl"
