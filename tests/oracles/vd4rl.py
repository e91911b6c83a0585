"""Comparison of a converted dataset with its raw files, using numpy and h5py but none of the code that converted it.

Every raw row that is not a reset corresponds to one converted row, in the same order: its values are those under "next"
and the action. The values of the previous raw row are those at the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from oracles.differences import Column, Differences

from datasets_rl.errors import UnknownKeyError
from datasets_rl.ted.table import EpisodeTable

_NAMES = {"image": ("pixels",), "observation": ("pixels",), "action": ("action",), "reward": ("next", "reward")}
_MARKS = {"is_first", "is_last", "is_terminal", "step_type"}
_BLOCK = 512


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every row."""
    differences = Differences(column)
    done = 0
    number = -1  # of the current episode
    before: dict[str, NDArray[Any]] = {}
    for path in sorted(files, key=lambda path: [int(part) if part.isdecimal() else part for part in _name_parts(path)]):
        for rows in _read_blocks(files[path]):
            resets = _reset_rows(rows)
            if path.endswith(".hdf5"):
                number += int(
                    number < 0 and not resets[0]
                )  # the first files are excluded: the data begins inside an episode
                numbers = number + np.cumsum(resets)
                number = int(numbers[-1])
                resets |= ~np.isin(numbers, episodes["source"])  # rows of episodes that are not selected
            joined = {
                name: np.concatenate([before[name], values]) if before else values for name, values in rows.items()
            }
            first = 0 if before else 1
            steps = np.flatnonzero(~resets[first:]) + 1
            if len(taken := steps[: max(0, episodes.steps - done)]):
                _compare_rows(differences, column, joined, taken, done)
            done += len(steps)
            before = {name: values[-1:] for name, values in rows.items()}
        if path.endswith(".npz"):
            before = {}
    texts = differences.texts()
    if done != episodes.steps:
        texts.append(f"there are {episodes.steps:,} steps; the files have {done:,}")
    return texts


def _name_parts(path: str) -> list[str]:
    return [path] if path.endswith(".npz") else re.split(r"(\d+)", path)


def _read_blocks(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            rows = {name: file[name] for name in file.files}
        if len(rows["image"]):
            yield {name: values[: len(rows["image"])] for name, values in rows.items()}
        return
    with h5py.File(path, "r", locking=False) as file:
        for start in range(0, len(file["step_type"]), _BLOCK):
            yield {name: file[name][start : start + _BLOCK] for name in file}


def _reset_rows(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return the mask of resets, [R]: the marked rows, or the only row without action and reward if marks are wrong."""
    if "step_type" in rows:
        return np.asarray(rows["step_type"].reshape(-1) == 0)
    idle = np.flatnonzero((np.abs(rows["action"]).sum(axis=1) == 0) & (rows["reward"].reshape(-1) == 0))
    reset = np.zeros(len(rows["action"]), bool)
    reset[idle[0] if len(idle) == 1 else 0] = True
    return reset


def _compare_rows(
    differences: Differences, column: Column, rows: Mapping[str, NDArray[Any]], steps: NDArray[np.intp], done: int
) -> None:
    for name, values in rows.items():
        if name in _MARKS:
            continue
        key = _NAMES.get(name, ("state", name.replace(".", "_").replace("/", "_")))
        raw_rows = [(key, steps)]
        if key[0] in {"pixels", "state"}:
            raw_rows = [(key, steps - 1), (("next", *key), steps)]
        for stored, at in raw_rows:
            try:
                converted = np.asarray(column(stored, done, done + len(at)))
            except UnknownKeyError:
                continue  # a field that the selection excludes
            with np.errstate(over="ignore"):
                raw = values[at].astype(converted.dtype)
            differences.compare_values(stored, done, raw, converted)
