"""Episodes that several datasets have: parts of a mixture that are drawn twice, and validation data that were trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from datasets_rl.fingerprints.copies import find_copies
from datasets_rl.format.reader import StoredDataset


@dataclass(frozen=True, slots=True)
class Shared:
    """Episodes that two datasets have, by exact copies."""

    first: int
    """Number of the first dataset."""
    second: int
    """Number of the second dataset."""
    episodes: int
    """Number of episodes of the first dataset that the second has, with equal values in a field that is evidence of a copy."""


def shared_episodes(folders: Sequence[Path]) -> tuple[Shared, ...]:
    """Return the pairs of datasets that have the same episodes, with the number of these episodes.

    Args:
        folders: The folders of stored datasets.
    """
    prints = [StoredDataset(folder).fingerprints for folder in folders]
    pairs = combinations(range(len(prints)), 2)
    found = (
        Shared(first, second, int(find_copies(prints[first], prints[second]).found.sum())) for first, second in pairs
    )
    return tuple(one for one in found if one.episodes)
