"""Replay buffers of demonstrations in robomimic's files: robomimic, MimicGen, LIBERO, and custom files."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class RobomimicExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of demonstrations in robomimic's files. Neither robomimic nor a simulator is needed.

        >>> dataset = RobomimicExperienceReplay("libero/libero_spatial", batch_size=32)
        >>> dataset.sample()["observation", "agentview_rgb"], dataset.texts("language_instruction")

    Every demonstration is an episode. ``dataset.episodes["demo"]`` is its number in its file, ``episodes["mask.train"]``
    whether the filter key ``train`` of the file names it. Images are stored as they are published, uint8 [rows,
    columns, 3].

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: An id of the catalog, ``"lift/ph/low_dim_v15"``, or any name for custom files.
    """

    source = "robomimic"
