"""Replay buffers of RL Unplugged datasets."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class RLUnpluggedExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of an RL Unplugged dataset: the control suite, locomotion or real-world RL. No simulator is needed.

        >>> dataset = RLUnpluggedExperienceReplay("control_suite/cheetah_run", batch_size=256)
        >>> dataset.sample()["observation", "position"]        # [256, 8]

    Rewards and discounts, which the files store with the observation that they led to, are in the row of their action.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The part of the suite and the task: ``"locomotion/rodent_gaps"``,
            ``"rwrl/cartpole_swingup_easy_20_percent"``.
    """

    source = "rl_unplugged"
