"""Comparison of converted values with OGBench's files, using numpy but none of the code that converted them.

The transitions are made as OGBench's own loader makes them: every row but the last of an episode, and the row after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from oracles.differences import Column, Differences

from datasets_rl.ted.table import EpisodeTable

_NAMES = {"observations": ("observation",), "actions": ("action",)}


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every transition."""
    differences = Differences(column)
    start = count = 0
    for path in sorted(files):
        with np.load(files[path], allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        last = arrays.pop("terminals").astype(bool)
        firsts = np.concatenate([[True], last[:-1]])
        numbers = count - 1 + np.cumsum(firsts & ~last)  # of the episodes with a step
        count = int(numbers[-1]) + 1
        before = np.flatnonzero(~last & np.isin(numbers, episodes["source"]))
        if not len(before):
            continue
        for name, values in arrays.items():
            key = _NAMES.get(name, ("info", name))
            wanted = values.astype(np.float32) if values.dtype == np.float64 and name in _NAMES else values
            differences.compare(key, start, wanted[before])
            if name != "actions":
                differences.compare(("next", *key), start, wanted[before + 1])
        ends = last[before + 1][:, None]
        differences.compare(("next", "truncated"), start, ends)
        differences.compare(("next", "terminated"), start, np.zeros_like(ends))
        if "singletask" not in dataset_id:
            differences.compare(("next", "reward"), start, np.zeros((len(before), 1), np.float32))
        start += len(before)
    if start != episodes.steps:
        differences.add("steps", f"there are {episodes.steps:,} steps; the files have {start:,}")
    return differences.texts()
