"""Comparison of a converted dataset with its raw file, as of D4RL's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oracles.d4rl import file_differences
from oracles.differences import Column

from datasets_rl.ted.table import EpisodeTable


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every row of every column, and the episode ends that the file does not mark."""
    (path,) = files.values()
    return file_differences(path, column, None, episodes)
