"""From an id to a dataset: resolve, fetch, convert, open."""

from __future__ import annotations

from typing import Any

from datasets_rl import sources
from datasets_rl.datasets import BaseDatasetExperienceReplay, dataset_class

__all__ = ["load"]


def load(dataset_id: str, **options: Any) -> BaseDatasetExperienceReplay:
    """Open a dataset as a replay buffer, downloading it first where it is not there.

        >>> from datasets_rl import load
        >>> batch = load("demo/pendulum").sample(256)

    Args:
        dataset_id: With its source, ``d4rl/hopper-medium-v2``.
        **options: Those of the source's class in `datasets_rl.datasets`.

    Raises:
        UnknownId: If there is no such id.
    """
    head, name = sources.split_id(dataset_id)
    sources.find(dataset_id)
    return dataset_class(head)(name, **options)
