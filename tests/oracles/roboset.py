"""Comparison of a converted dataset with its raw files, using h5py but none of the code that converted it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from oracles.differences import Column, Differences

from datasets_rl.ted.keys import Key
from datasets_rl.ted.table import EpisodeTable

_BLOCK = 64  # steps; camera images have 1 MB each
_NAMES = {"observations": "observation", "actions": "action", "env_infos": "info"}


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number of every trial.

    Args:
        files: The local raw files, by path.
        column: Returns converted values.
        episodes: The converted episodes: "source" is the number over all files, "trial" is the number in the file.

    """
    differences = Differences(column)
    rows = {int(number): row for row, number in enumerate(episodes["source"])}
    number = 0  # of the next trajectory
    for path in sorted(files):
        with h5py.File(files[path], "r", locking=False) as file:
            for trial in sorted(int(name.removeprefix("Trial")) for name in file):
                group = file[f"Trial{trial}"]
                for start, stop in _trajectory_ranges(group):
                    row = rows.pop(number, None)
                    number += 1
                    if row is None:
                        continue
                    if (converted := (episodes["trial"][row], episodes.lengths[row])) != (trial, stop - start):
                        text = (
                            f"episode {row} is trial {converted[0]} with {converted[1]} rows; "
                            f"in {path} it is trial {trial} with {stop - start}"
                        )
                        differences.add("trial", text)
                    else:
                        _compare_rows(differences, group, start, stop, int(episodes.starts[row]))
    if rows:
        differences.add("source", f"the files have no episode {min(rows)}", len(rows))
    return differences.texts()


def _reward_shift(group: h5py.Group) -> int:
    """Return 1 if the reward and the end flag of a step are stored one row later, else 0."""
    return int(len(group["actions"]) and np.isnan(np.asarray(group["actions"][-1], np.float64)).all())


def _trajectory_ranges(group: h5py.Group) -> list[tuple[int, int]]:
    """Return the range of steps of each trajectory of a trial."""
    shift = _reward_shift(group)
    steps = len(group["actions"]) - shift
    marks = group["done"][shift:].reshape(-1) == 1 if "done" in group else np.zeros(steps, bool)
    stops = sorted({*(np.flatnonzero(marks) + 1).tolist(), steps} - {0})
    return [*zip([0, *stops], stops, strict=False)]


def _compare_rows(differences: Differences, group: h5py.Group, start: int, stop: int, first_row: int) -> None:
    """Compare the steps [start, stop) of a trial with the rows that begin at `first_row`, a block at a time."""
    for first in range(start, stop, _BLOCK):
        for key, raw in _expected_columns(group, first, min(first + _BLOCK, stop)):
            differences.compare(key, first_row + first - start, raw)


def _expected_columns(group: h5py.Group, start: int, stop: int) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Yield the expected values of each column for a range of steps of a trial, or for the first steps of it."""
    shift = _reward_shift(group)
    names: list[str] = []
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        values = group[name][start : stop + 1]
        root, *rest = name.replace(".", "_").split("/")
        key = (_NAMES.get(root, root), *rest)
        if root == "rewards":
            yield ("next", "reward"), values[shift : stop - start + shift]
        elif root == "done":
            yield ("next", "terminated"), values[shift : stop - start + shift] == 1
        else:
            yield key, values[: stop - start]
            if root in {"observations", "env_infos"} and len(values) > 1:
                yield ("next", *key), values[1:]
