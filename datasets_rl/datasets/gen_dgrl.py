"""Replay buffers of Gen-DGRL datasets, with the constructor of TorchRL's class."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class GenDGRLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a Gen-DGRL dataset: games of Procgen, played by various policies.

        >>> dataset = GenDGRLExperienceReplay("bigfish-1M_E", batch_size=32)
        >>> dataset.sample()["observation"]       # uint8 [32, 3, 64, 64]
        >>> dataset.episodes["level_seed"]        # one per episode; "stated_return" is the return in the file name

    The number of steps is that of the archive, which differs slightly from the round number in its name. The state
    after the last step of an episode is not known: the next observation reads as zeros there, and
    ``dataset.episodes["final_known"]`` is False.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The game and the category, ``"bigfish-1M_E"``.
    """

    source = "gen_dgrl"
