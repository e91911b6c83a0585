"""Datasets as replay buffers, a source a file. The folder is the registry, as in `datasets_rl.sources`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from datasets_rl.datasets.atari_dqn import AtariDQNExperienceReplay
from datasets_rl.datasets.d4rl import D4RLExperienceReplay
from datasets_rl.datasets.demo import DemoExperienceReplay
from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.gen_dgrl import GenDGRLExperienceReplay
from datasets_rl.datasets.local import LocalExperienceReplay
from datasets_rl.datasets.minari import MinariExperienceReplay
from datasets_rl.datasets.openml import OpenMLExperienceReplay
from datasets_rl.datasets.openx import OpenXExperienceReplay
from datasets_rl.datasets.roboset import RobosetExperienceReplay
from datasets_rl.datasets.stored import StoredExperienceReplay
from datasets_rl.datasets.vd4rl import VD4RLExperienceReplay

__all__ = [
    "AtariDQNExperienceReplay",
    "BaseDatasetExperienceReplay",
    "D4RLExperienceReplay",
    "DemoExperienceReplay",
    "GenDGRLExperienceReplay",
    "LocalExperienceReplay",
    "MinariExperienceReplay",
    "OpenMLExperienceReplay",
    "OpenXExperienceReplay",
    "RobosetExperienceReplay",
    "StoredExperienceReplay",
    "VD4RLExperienceReplay",
    "dataset_class",
    "open_dataset",
]


def dataset_class(source: str) -> type[BaseDatasetExperienceReplay]:
    """Return the class for the datasets of a source."""
    made: type[BaseDatasetExperienceReplay] = importlib.import_module(f"{__name__}.{source}").CLASS
    return made


def open_dataset(path: Path | str, **options: Any) -> StoredExperienceReplay:
    """Open the folder of any stored dataset as a replay buffer, wherever it lies.

    Args:
        path: The folder.
        **options: Those of `BaseDatasetExperienceReplay`.

    Raises:
        NotADatasetError: If the folder holds no finished dataset.
    """
    return StoredExperienceReplay(str(path), **options)
