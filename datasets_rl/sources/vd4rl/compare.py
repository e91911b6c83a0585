"""A converted dataset against its raw files, with numpy and h5py alone: none of the code that converted it takes part.

Every raw row that is no reset is one converted row, in the same order: what stands in it is what stands under "next",
and the action, there. What stands in the raw row before it stands at the root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, UnknownKeyError
from datasets_rl.read.streams import DAMAGED
from datasets_rl.ted.keys import Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["compare"]

_Column = Callable[[Key, int, int], Any]
_NAMES = {"image": ("pixels",), "observation": ("pixels",), "action": ("action",), "reward": ("next", "reward")}
_MARKS = {"is_first", "is_last", "is_terminal", "step_type"}
_BLOCK = 512


def compare(files: Mapping[str, Path], column: _Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every row.

    Args:
        files: The raw files by path.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        episodes: The converted episodes.

    Returns:
        For each column that differs, its first difference.

    Raises:
        ConversionError: If a raw file is damaged.
    """
    differences: dict[Key, str] = {}
    done = 0
    number = -1  # of the episode at hand
    before: dict[str, NDArray[Any]] = {}
    try:
        for path in sorted(files, key=lambda one: [int(word) if word.isdecimal() else word for word in _words(one)]):
            for rows in _blocks(files[path]):
                resets = _resets(rows)
                if path.endswith(".hdf5"):
                    number += int(number < 0 and not resets[0])  # files left out at the front: it begins inside one
                    numbers = number + np.cumsum(resets)
                    number = int(numbers[-1])
                    resets |= ~np.isin(numbers, episodes["source"])  # those of episodes that were not wanted
                joined = {name: np.concatenate([before[name], one]) if before else one for name, one in rows.items()}
                first = 0 if before else 1
                steps = np.flatnonzero(~resets[first:]) + 1
                if len(taken := steps[: max(0, episodes.steps - done)]):
                    _one(differences, column, joined, taken, done)
                done += len(steps)
                before = {name: one[-1:] for name, one in rows.items()}
            if path.endswith(".npz"):
                before = {}
    except DAMAGED as error:
        raise ConversionError("the raw files", [f"they cannot be read: {error}"]) from error
    found = [*differences.values()]
    if done != episodes.steps:
        found.append(f"there are {episodes.steps:,} steps; the files have {done:,}")
    return found


def _words(path: str) -> list[str]:
    return [path] if path.endswith(".npz") else re.split(r"(\d+)", path)


def _blocks(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            rows = {name: file[name] for name in file.files}
        if len(rows["image"]):
            yield {name: one[: len(rows["image"])] for name, one in rows.items()}
        return
    with h5py.File(path, "r", locking=False) as file:
        for start in range(0, len(file["step_type"]), _BLOCK):
            yield {name: file[name][start : start + _BLOCK] for name in file}


def _resets(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Say which rows are resets, [R]: those marked, or the one without action and reward where the marks are off."""
    if "step_type" in rows:
        return np.asarray(rows["step_type"].reshape(-1) == 0)
    idle = np.flatnonzero((np.abs(rows["action"]).sum(axis=1) == 0) & (rows["reward"].reshape(-1) == 0))
    reset = np.zeros(len(rows["action"]), bool)
    reset[idle[0] if len(idle) == 1 else 0] = True
    return reset


def _one(
    differences: dict[Key, str], column: _Column, rows: Mapping[str, NDArray[Any]], steps: NDArray[np.intp], done: int
) -> None:
    for name, values in rows.items():
        if name in _MARKS:
            continue
        key = _NAMES.get(name, ("state", name.replace(".", "_").replace("/", "_")))
        places = [(key, steps)]
        if key[0] in {"pixels", "state"}:
            places = [(key, steps - 1), (("next", *key), steps)]
        for place, at in places:
            try:
                got = np.asarray(column(place, done, done + len(at)))
            except UnknownKeyError:
                continue  # a field that was left out on request
            with np.errstate(over="ignore"):
                wanted = values[at].reshape(got.shape).astype(got.dtype)
            wrong = np.flatnonzero(((got != wanted) & ~((got != got) & (wanted != wanted))).reshape(len(at), -1).any(1))  # noqa: PLR0124 -- NaN
            if len(wrong) and place not in differences:
                row = int(wrong[0])
                differences[place] = (
                    f"{dotted(place)} at row {done + row:,} is {got[row]!s:.80}, in the file {wanted[row]!s:.80}"
                )
