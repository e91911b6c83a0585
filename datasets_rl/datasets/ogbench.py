"""Replay buffers of OGBench datasets."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class OGBenchExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of an OGBench dataset. Neither ``ogbench`` nor a simulator is needed.

        >>> from datasets_rl import GoalSampler, OGBenchExperienceReplay
        >>> dataset = OGBenchExperienceReplay("antmaze-large-navigate-v0", 1024, sampler=GoalSampler(geometric=0.99))
        >>> dataset.sample()["value_goal"]        # [1024, 29]

    Episodes end when the recording ends: every one is truncated, and its final observation is known. The files have no
    rewards. A single-task id, ``"antmaze-large-navigate-singletask-task2-v0"``, has those of a task in
    ``("next", "reward")``, and in ``("next", "mask")`` 0 where the task is solved.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: An id of the catalog; with ``-val`` at its end, the validation file.
    """

    source = "ogbench"
