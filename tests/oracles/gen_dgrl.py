"""Comparison of a converted dataset with its archive, using tarfile and numpy but none of the code that converted it.

The exception is the safe pickle reader, because no other code may open pickles.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from oracles.differences import Column, Differences

from datasets_rl import sources
from datasets_rl.errors import UnknownKeyError
from datasets_rl.read.pickles import load_npy
from datasets_rl.ted.keys import OBSERVATION
from datasets_rl.ted.table import EpisodeTable


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every episode, and the metadata in the file names."""
    (path,) = files.values()
    game = dataset_id.partition("/")[2].partition("-")[0]
    other_games = {name.partition("-")[0] for name in sources.get_source("gen_dgrl").ids()} - {game}
    differences = Differences(column)
    rows = {int(number): row for row, number in enumerate(episodes["source"])}
    seen = 0
    for number, (name, arrays) in enumerate(_read_episodes(path, other_games)):
        if number not in rows:
            continue
        seen += 1
        row = rows[number]
        date, episode, length, seed, total = name.rpartition(".")[0].split("_")
        stated = {
            "saved": int(date.replace("T", "")),
            "number": int(episode),
            "length": int(length),
            "level_seed": int(seed),
            "stated_return": float(total),
        }
        for name_part, value in stated.items():
            if episodes[name_part][row] != value:
                text = f"{name_part} of episode {row} is {episodes[name_part][row]}; its file {name}"
                differences.add(name_part, text)
        _compare_episode(differences, arrays, int(episodes.starts[row]), int(episodes.lengths[row]))
        if seen == len(rows):
            break
    texts = differences.texts()
    if len(rows) != len(episodes):
        texts.append(f"source of the episodes has {len(rows):,} different numbers for {len(episodes):,} episodes")
    # If no observation is stored, final_known is True.
    if episodes["final_known"].any() and _stores_observations(column):
        texts.append("final_known is True, but the archive has no observation after the last step of an episode")
    if seen != len(rows):
        texts.append(f"there are {len(rows):,} episodes; the archive has {seen:,} of them")
    return texts


def _stores_observations(column: Column) -> bool:
    try:
        column(OBSERVATION, 0, 1)
    except UnknownKeyError:
        return False
    return True


def _read_episodes(path: Path, other_games: Collection[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            *folders, name = member.name.split("/")
            if not member.isfile() or name.startswith(".") or set(folders) & set(other_games):
                continue
            if name.split("_")[2:3] == ["0"]:  # an episode without a step
                continue
            stream = archive.extractfile(member)
            data = stream.read() if stream is not None else b""
            if data.startswith(b"PK"):
                with np.load(io.BytesIO(data), allow_pickle=False) as file:
                    yield name, {array: file[array] for array in file.files}
            else:
                yield name, load_npy(io.BytesIO(data), name)


def _compare_episode(differences: Differences, arrays: Mapping[str, Any], start: int, length: int) -> None:
    frames = arrays["observations"]
    following = frames[1 : length + 1].copy()
    following[-1:] = 0  # the first frame of the next level
    differences.compare(("observation",), start, frames[:length])
    differences.compare(("next", "observation"), start, following)
    differences.compare(("action",), start, arrays["actions"])
    differences.compare(("next", "reward"), start, arrays["rewards"])
    differences.compare(("next", "terminated"), start, arrays["dones"])
