"""A converted dataset against its archive, with tarfile and numpy: none of the code that converted it takes part.

Pickles are read by the allow-list machine all the same: nothing else may open them.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl.errors import ConversionError, UnknownKeyError
from datasets_rl.read.pickles import load_npy
from datasets_rl.read.streams import DAMAGED
from datasets_rl.ted.keys import OBSERVATION, Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["compare"]

_Column = Callable[[Key, int, int], Any]


def compare(place: Path, others: Collection[str], column: _Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every episode, and what the names of the files say.

    Args:
        place: The archive.
        others: The games whose files are not the dataset's.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        episodes: The converted episodes.

    Returns:
        For each column that differs, its first difference.

    Raises:
        ConversionError: If the archive is damaged.
    """
    differences: dict[str, str] = {}
    rows = {int(number): row for row, number in enumerate(episodes["source"])}
    seen = 0
    try:
        for number, (name, arrays) in enumerate(_files(place, others)):
            if number not in rows:
                continue
            seen += 1
            row = rows[number]
            date, episode, length, seed, total = name.rpartition(".")[0].split("_")
            said = {
                "saved": int(date.replace("T", "")),
                "number": int(episode),
                "length": int(length),
                "level_seed": int(seed),
                "stated_return": float(total),
            }
            for fact, value in said.items():
                if episodes[fact][row] != value:
                    differences.setdefault(fact, f"{fact} of episode {row} is {episodes[fact][row]}; its file {name}")
            _one(differences, column, arrays, int(episodes.starts[row]), int(episodes.lengths[row]))
            if seen == len(rows):
                break
    except DAMAGED as error:
        raise ConversionError(place.name, [f"it cannot be read: {error}"]) from error
    found = [*differences.values()]
    if len(rows) != len(episodes):
        found.append(f"source of the episodes has {len(rows):,} different numbers for {len(episodes):,} episodes")
    # Where no observation is stored, none is unknown.
    if episodes["final_known"].any() and _stores_observations(column):
        found.append("final_known is True; the archive has no observation after the last step of an episode")
    if seen != len(rows):
        found.append(f"there are {len(rows):,} episodes; the archive has {seen:,} of them")
    return found


def _stores_observations(column: _Column) -> bool:
    try:
        column(OBSERVATION, 0, 1)
    except UnknownKeyError:
        return False
    return True


def _files(place: Path, others: Collection[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with tarfile.open(place, "r|*") as archive:
        for member in archive:
            *folders, name = member.name.split("/")
            if not member.isfile() or name.startswith(".") or set(folders) & set(others):
                continue
            if name.split("_")[2:3] == ["0"]:  # an episode without a step
                continue
            stream = archive.extractfile(member)
            data = stream.read() if stream is not None else b""
            if data.startswith(b"PK"):
                with np.load(io.BytesIO(data), allow_pickle=False) as file:
                    yield name, {one: file[one] for one in file.files}
            else:
                yield name, load_npy(io.BytesIO(data), name)


def _one(differences: dict[str, str], column: _Column, arrays: Mapping[str, Any], start: int, length: int) -> None:
    frames = arrays["observations"]
    following = frames[1 : length + 1].copy()
    following[-1:] = 0  # the first frame of the next level
    wanted: dict[Key, Any] = {
        ("observation",): frames[:length],
        ("next", "observation"): following,
        ("action",): arrays["actions"],
        ("next", "reward"): arrays["rewards"],
        ("next", "terminated"): arrays["dones"],
    }
    for key, values in wanted.items():
        try:
            got = np.asarray(column(key, start, start + length))
        except UnknownKeyError:
            continue  # a field that was left out on request
        wrong = np.flatnonzero((got != values.reshape(got.shape)).reshape(length, -1).any(axis=1))
        if len(wrong):
            row = int(wrong[0])
            text = f"{dotted(key)} at row {start + row:,} is {got[row]!s:.80}, in the file {values[row]!s:.80}"
            differences.setdefault(dotted(key), text)
