"""Comparison of converted values with ExORL's zip files, using zipfile and numpy but none of the code that converted them.

The transitions are those that ExORL's own `OfflineReplayBuffer` samples: for a row i from 1,
(observation[i - 1], action[i], reward[i], discount[i], observation[i]).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from oracles.differences import Column, Differences

from datasets_rl.ted.table import EpisodeTable

_STATES = {"observation": ("observation",), "physics": ("info", "physics")}


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every transition."""
    differences = Differences(column)
    (path,) = files.values()
    start = number = 0
    with zipfile.ZipFile(path) as archive:
        names = [name.split("/")[-1].removesuffix(".npz").split("_") for name in archive.namelist()]
        found = sorted(
            (int(parts[-2]), name)
            for name, parts in zip(archive.namelist(), names, strict=True)
            if name.endswith(".npz") and parts[0] == "episode"
        )
        for _, name in found:
            with np.load(io.BytesIO(archive.read(name)), allow_pickle=False) as file:
                arrays = dict(file)
            steps = len(arrays["observation"]) - 1
            if not steps:
                continue
            number += 1
            if number - 1 in episodes["source"]:
                _compare_episode(differences, start, arrays)
                start += steps
    if start != episodes.steps:
        differences.add("steps", f"there are {episodes.steps:,} steps; the file has {start:,}")
    return differences.texts()


def _compare_episode(differences: Differences, start: int, arrays: dict[str, np.ndarray]) -> None:
    idx = np.arange(1, len(arrays["observation"]))
    for name, key in _STATES.items():
        differences.compare(key, start, arrays[name][idx - 1])
        differences.compare(("next", *key), start, arrays[name][idx])
    differences.compare(("action",), start, arrays["action"][idx])
    differences.compare(("next", "discount"), start, arrays["discount"][idx])
    rewards = arrays["reward"][idx]
    differences.compare(("next", "reward"), start, rewards[:, 0])
    if rewards.shape[1] > 1:
        differences.compare(("next", "task_reward"), start, rewards)
        differences.compare(("meta", "task"), start, arrays["task"][idx])
    is_last = idx == len(idx)
    differences.compare(("next", "terminated"), start, is_last & (arrays["discount"][-1] == 0))
    differences.compare(("next", "truncated"), start, is_last & (arrays["discount"][-1] != 0))
