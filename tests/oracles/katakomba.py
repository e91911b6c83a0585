"""Comparison of converted values with Katakomba's file, using h5py but none of the code that converted them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
from oracles.differences import Column, Differences

from datasets_rl.ted.table import EpisodeTable

_KEYS = {
    "tty_chars": ("observation", "tty_chars"),
    "tty_colors": ("observation", "tty_colors"),
    "tty_cursor": ("observation", "tty_cursor"),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "dones": ("next", "terminated"),
}


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every array of every game, and the screen after each step but the last."""
    (path,) = files.values()
    differences = Differences(column)
    start = 0
    with h5py.File(path, "r", locking=False) as file:
        names = [*file]
        for number in episodes["source"]:
            game = file[names[number]]
            rows = len(game["dones"])
            last = np.arange(rows) == rows - 1
            for name, key in _KEYS.items():
                differences.compare(key, start, game[name][()])
                if key[0] == "observation":
                    following = np.zeros_like(game[name][()])  # what is not known reads as zeros
                    following[:-1] = game[name][1:]
                    differences.compare(("next", *key), start, following)
            differences.compare(("next", "truncated"), start, last & ~game["dones"][()].astype(bool))
            differences.compare(("next", "final_known"), start, ~last)
            start += rows
    if start != episodes.steps:
        differences.add("steps", f"there are {episodes.steps:,} steps; the file has {start:,}")
    return differences.texts()
