"""Replay buffers of ExORL datasets."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class ExORLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of an ExORL dataset: the steps of an agent that explored without a reward. No simulator is needed.

        >>> dataset = ExORLExperienceReplay("walker/rnd", batch_size=256)
        >>> dataset.sample()["info", "physics"]        # [256, 18], float64

    Rewards are those of the exploration run. The rewards of a task are computed from the physics: docs/sources/exorl.md.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The domain and the algorithm that explored it: ``"quadruped/proto"``.
    """

    source = "exorl"
