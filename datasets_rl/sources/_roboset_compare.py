"""A converted dataset against its raw files, with h5py alone: none of the code that converted it takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionFailed, UnknownKey
from datasets_rl.ted.keys import Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["compare"]

_Column = Callable[[Key, int, int], Any]
_NAMES = {"observations": "observation", "actions": "action", "env_infos": "info"}


def compare(files: Mapping[str, Path], column: _Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number of every trial.

    Args:
        files: The raw files by path.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        episodes: The converted episodes: "seed" says which one of the files, "source" which trial.

    Returns:
        For each column that differs, its first difference and how many rows differ.

    Raises:
        ConversionFailed: If a raw file is damaged.
    """
    found: dict[str, tuple[str, int]] = {}
    seeds, numbers = episodes["seed"].tolist(), episodes["source"].tolist()
    # Where some files were left out, the numbers of the others stay.
    paths = dict(zip(sorted(set(seeds)), sorted(files), strict=True))
    groups: dict[int, dict[int, list[int]]] = {}
    for row, (seed, number) in enumerate(zip(seeds, numbers, strict=True)):
        groups.setdefault(seed, {}).setdefault(number, []).append(row)
    try:
        for seed, trials in groups.items():
            with h5py.File(files[paths[seed]], "r", locking=False) as file:
                for number, rows in trials.items():
                    start, stop = int(episodes.starts[rows[0]]), int(episodes.stops[rows[-1]])
                    _compare_trial(found, file[f"Trial{number}"], column, start, stop)
    except (OSError, KeyError) as error:
        raise ConversionFailed("the raw files", [f"they cannot be read: {error}"]) from error
    return [f"{text} ({count:,} such rows)" for text, count in found.values()]


def _compare_trial(
    found: dict[str, tuple[str, int]], group: h5py.Group, column: _Column, start: int, stop: int
) -> None:
    late = int(np.isnan(np.asarray(group["actions"][-1], np.float64)).all())
    steps = len(group["actions"]) - late
    if steps != stop - start:
        found.setdefault("length", (f"{group.name} has {stop - start} rows, in the file {steps}", 1))
        return
    for key, wanted in _columns(group, steps, late):
        try:
            got = np.asarray(column(key, start, stop))[: len(wanted)]
        except UnknownKey:
            continue  # a field that was left out on request
        same = got.reshape(len(got), -1) == wanted.reshape(len(got), -1)
        wrong = np.flatnonzero(~same.all(axis=1))
        if len(wrong):
            row = int(wrong[0])
            name = dotted(key)
            text = f"{name} at row {start + row:,} is {got[row]!s:.80}, in {group.name} {wanted[row]!s:.80}"
            before = found.get(name, (text, 0))
            found[name] = (before[0], before[1] + len(wrong))


def _columns(group: h5py.Group, steps: int, late: int) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Yield what each column must hold in the rows of a trial, or in the first ones of them."""
    names: list[str] = []
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        values = group[name][()]
        root, *rest = name.replace(".", "_").split("/")
        key = (_NAMES.get(root, root), *rest)
        if root == "rewards":
            yield ("next", "reward"), values[late : steps + late]
        elif root == "done":
            yield ("next", "terminated"), values[late : steps + late] == 1
        else:
            yield key, values[:steps]
            if root in {"observations", "env_infos"}:
                yield ("next", *key), values[1 : steps + 1]
