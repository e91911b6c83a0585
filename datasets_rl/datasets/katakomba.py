"""Replay buffers of Katakomba's games of NetHack."""

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay


class KatakombaExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of games of NetHack with one character. ``nle`` is not needed.

        >>> dataset = KatakombaExperienceReplay("mon-hum-neu", batch_size=256)
        >>> dataset.sample()["observation", "tty_chars"]        # [256, 24, 80]

    The screen after the last key press of a game is unknown: ``("next", "final_known")`` masks it.

    The arguments and errors without a description are those of `BaseDatasetExperienceReplay`.

    Args:
        dataset_id: Role, race and alignment of the character: ``"mon-hum-neu"``.
    """

    source = "katakomba"
