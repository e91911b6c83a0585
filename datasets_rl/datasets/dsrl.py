"""Replay buffers of DSRL datasets."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class DSRLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a DSRL dataset: safe reinforcement learning, with the cost of each step. No simulator is needed.

        >>> dataset = DSRLExperienceReplay("OfflineCarCircle-v0", batch_size=256)
        >>> dataset.sample()["next", "cost"]        # [256, 1]

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The id of the task in DSRL, ``"OfflineCarButton1Gymnasium-v0"``.
    """

    source = "dsrl"
