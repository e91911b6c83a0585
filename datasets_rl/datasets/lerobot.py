"""Replay buffers of LeRobot datasets, without the lerobot package."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class LeRobotExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a LeRobot dataset, of version 2.0, 2.1 or 3.0.

        >>> dataset = LeRobotExperienceReplay("lerobot/pusht", batch_size=256)
        >>> dataset.sample()["observation", "image"]        # [256, 96, 96, 3], uint8

    ``observation.images.top`` has the key ``("observation", "image", "top")``, and the task is ``language_instruction``,
    integer codes that `texts` maps to the tasks. The observation after the last action of an episode is not known:
    batches have the mask ``("next", "final_known")``.

    The arguments and errors are those of `BaseDatasetExperienceReplay`.

    Raises:
        MissingDependencyError: If videos are selected, and PyAV is not installed.
    """

    source = "lerobot"
