"""The built-in data."""

from __future__ import annotations

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay

__all__ = ["DemoExperienceReplay"]


class DemoExperienceReplay(BaseDatasetExperienceReplay):
    """The datasets that come with the package: they need no network."""

    source = "demo"


CLASS = DemoExperienceReplay
