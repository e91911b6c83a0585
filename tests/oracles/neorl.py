"""Comparison of converted values with NeoRL's files, using numpy but none of the code that converted them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from oracles.differences import Column, Differences

from datasets_rl.ted.table import EpisodeTable

_KEYS = {
    "obs": ("observation",),
    "next_obs": ("next", "observation"),
    "action": ("action",),
    "reward": ("next", "reward"),
    "done": ("next", "terminated"),
}


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every row of every array: the selected episodes are the first rows, or all."""
    (path,) = files.values()
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    rows = len(arrays["obs"])
    # NeoRL's own loader inserts a 0 in front of the index, and slices from one entry to the next.
    starts = np.unique(np.append(np.insert(arrays.get("index", [0]), 0, 0).astype(int), rows))
    last = np.isin(np.arange(1, rows + 1), starts)
    flags = arrays["done"].reshape(-1).astype(bool)
    limits = arrays.get("truncated", np.zeros(rows)).reshape(-1).astype(bool)
    # A reset between two rows is seen from the state: it is not the one that the last action led to.
    last[:-1] |= ~np.isclose(arrays["next_obs"][:-1], arrays["obs"][1:], rtol=1e-4, atol=1e-4).all(axis=1)
    ends = last | flags | limits
    numbers = np.cumsum(ends) - ends
    chosen = np.isin(numbers, episodes["source"])
    differences = Differences(column)
    for name, key in _KEYS.items():
        differences.compare(key, 0, arrays[name][chosen])
    differences.compare(("next", "truncated"), 0, (limits | (ends & ~flags))[chosen])
    if chosen.sum() != episodes.steps:
        differences.add("steps", f"there are {episodes.steps:,} steps; the file has {chosen.sum():,}")
    return differences.texts()
