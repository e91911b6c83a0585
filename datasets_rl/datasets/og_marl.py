"""Replay buffers of OG-MARL datasets."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class OGMARLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a multi-agent dataset of OG-MARL. It needs the extra ``vault``, and neither JAX nor flashbax.

        >>> dataset = OGMARLExperienceReplay("core/smac_v1/3m/Good", batch_size=256)
        >>> dataset.sample()["agents", "observation"]        # [256, 3, 30]

    Entries of agents have TorchRL's layout: ``("agents", "observation")``, ``("agents", "action")``,
    ``("agents", "action_mask")`` and ``("next", "agents", "reward")``, with the agents as an axis after that of the batch.
    The observation after the last step of an episode is unknown: ``("next", "final_known")`` masks it.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: The collection, the environment, the scenario and the quality: ``"core/smac_v1/3m/Good"``.

    Raises:
        MissingDependencyError: If tensorstore is not installed, and the dataset is not stored.
    """

    source = "og_marl"
