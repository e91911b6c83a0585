"""Replay buffers of RoboSet's simulated part, with the constructor of TorchRL's class, without the robohive package."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class RobosetExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a dataset of RoboSet's simulated part.

        >>> dataset = RobosetExperienceReplay("FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4", batch_size=32)
        >>> dataset.sample()["seed"], dataset.metadata["files"]

    ``seed`` is the number of the file of a step, in the order of the file names; ``dataset.episodes["trial"]`` is the
    number of a trial in its file. ``episode`` is unique across files, unlike in TorchRL, and a
    selection numbers the episodes across all files.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: One of the 20 ids.
    """

    source = "roboset"
