"""Datasets in D4RL's layout that are part of this package and need no network."""

from datasets_rl.sources.d4rl import D4RL

__all__ = ["SOURCE", "Demo"]


class Demo(D4RL):
    """Source of the datasets that are part of this package."""

    name = "demo"


SOURCE = Demo()
