"""Reader of trials of RoboHive's logger. There are two layouts, which are distinguished for each trial.

By state, if the last action is NaN: row t has the state s_t, the reward for reaching the state, and the action taken in
the state.

    row             0     1     2    ...    h
    observations   s_0   s_1   s_2   ...   s_h        h steps, and the state after the last one
    actions        a_0   a_1   a_2   ...   NaN
    rewards, done  (r_0)  r_1   r_2   ...   r_h        r_t+1 is the reward for a_t

By step, if the last action is a number: row t has the state, the action taken in the state, and the reward for that action.

    row             0     1     2    ...   h-1
    observations   s_0   s_1   s_2   ...  s_h-1       h steps. The state after the last one is not known
    actions        a_0   a_1   a_2   ...  a_h-1
    rewards, done  r_0   r_1   r_2   ...  r_h-1       r_t is the reward for a_t
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.hdf5 import Hdf5Array, Hdf5File
from datasets_rl.read.streams import first_problems, refuse
from datasets_rl.sources.base import NO_TRANSITION, EpisodeReader
from datasets_rl.sources.rows import end_flags, split_episode
from datasets_rl.sources.values import as_column
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import (
    ACTION,
    EPISODE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
)

_TRIAL = re.compile(r"Trial(\d+)", re.ASCII)
_SEED: Key = ("seed",)
_ROOTS: Mapping[str, Key] = {
    "observations": OBSERVATION,
    "env_infos": ("info",),
    "actions": ACTION,
    "rewards": NEXT_REWARD,
    "done": NEXT_TERMINATED,
}
_STATES = (OBSERVATION[0], "info")
_MANDATORY = (OBSERVATION, ACTION, NEXT_REWARD)
_RESERVED = frozenset({"next", "mask", "terminated", "truncated", *EPISODE, *_SEED})
_WIDER: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
_STORABLE = frozenset(np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f4", "f8"))
_TEXTS = {
    "rows-are-states": "trials end with an action of NaN: the rows are states, and the reward and the end flag of a row "
    "belong to the action of the previous row",
    "rows-are-steps": "trials end with an action: the rows are steps, and the state after the last step is not known",
    "end-without-flag": "trials end without an end flag: the last step of such a trial was marked truncated",
    "flag-inside-trial": "steps inside a trial have an end flag: the trajectory ends there, and another trajectory begins",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of the array",
    **NO_TRANSITION,
    "widened": "numbers of 16 bits and unsigned integers were widened without loss",
    "flags-cast": "trials store end flags as numbers, 0 or 1, which were converted to booleans",
}


class _TrialError(Exception):
    """Problems of a trial. The arguments are a sentence for each problem."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Trial of an open file."""

    file: Hdf5File
    number: int
    arrays: Mapping[Key, Hdf5Array]
    """Arrays of the group of the trial, by key."""

    @property
    def rows(self) -> int:
        """Number of rows, or 0 if the trial has no action."""
        return self.arrays[ACTION].shape[0] if ACTION in self.arrays else 0


class RoboSetReader(EpisodeReader):
    """Reader of the files of a shard of RoboSet.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path: the files of the shard, and the first file of the dataset: the first trial of
            that file defines the columns.
        facts: `Listing.params`: the number of each path, ``seeds``.

    Raises:
        ConversionError: If a file has anything other than trials, or the columns differ. The error names every
            problem.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._files = dict(files)
        self._seeds: Mapping[str, int] = facts.get("seeds") or {path: seed for seed, path in enumerate(sorted(files))}
        self.metadata = {f"files/{seed}": path for path, seed in self._seeds.items()}
        first = min(files, key=self._seeds.__getitem__)
        with Hdf5File(files[first], threads=1) as file:
            trials = _find_trials(file, first)
            self.columns = _columns_of_trial(
                next((trial for trial in trials if trial.rows), trials[0]), f"{dataset_id}: {first}"
            )
        self._by_key = {column.key: column for column in self.columns}

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        self.counts.clear()
        problems: list[str] = []
        for path in sorted(self._files) if part is None else part:
            with Hdf5File(self._files[path]) as file:
                self.counts["unwritten-chunks"] += file.unwritten
                for trial in _find_trials(file, self.label(path)):
                    try:
                        yield from self._split(trial, self._seeds[path])
                    except _TrialError as error:
                        problems += [f"{self.label(path)}: Trial{trial.number}: {problem}" for problem in error.args]
        refuse(self._dataset_id, first_problems(problems))

    def _split(self, trial: _Trial, seed: int) -> Iterator[Episode]:
        """Yield the trajectories of a trial: an end flag inside the trial ends a trajectory."""
        arrays = trial.arrays
        problems = list(self._array_problems(arrays))
        if problems:
            raise _TrialError(*problems)
        rows = arrays[ACTION].shape[0]
        last_action = trial.file.read(arrays[ACTION].name, max(rows - 1, 0))
        by_state = rows > 0 and bool(np.isnan(last_action.astype(np.float64)).all())
        steps = rows - by_state
        if not steps:
            self.counts["no-transition"] += 1
            return
        ends = self._read_end_flags(trial, rows)[by_state:]
        self.counts["rows-are-states" if by_state else "rows-are-steps"] += 1
        self.counts["flag-inside-trial"] += int(ends[:-1].sum())
        self.counts["end-without-flag"] += int(not ends[-1])
        self.counts["widened"] += any(array.dtype in _WIDER for array in arrays.values())
        kept = [column for column in self.columns if column.key in self.kept]
        metadata = {"trial": np.int64(trial.number), "seed": np.int64(seed)}
        for begin, stop in pairwise(sorted({0, steps, *(np.flatnonzero(ends) + 1).tolist()})):

            def read(key: Key, first: int, end: int, begin: int = begin) -> NDArray[Any]:
                if key == _SEED:
                    return np.full(end - first, seed)
                late = begin + by_state * (key == NEXT_REWARD)
                name = arrays[key].name
                values = trial.file.read(name, first + late, min(end + late, rows))
                _check_finite(name, values, first + late)
                return as_column(values, self._by_key[key])

            flags = end_flags(stop - begin, terminated=bool(ends[stop - 1]))
            yield from split_episode(flags, kept, read, metadata)

    def _read_end_flags(self, trial: _Trial, rows: int) -> NDArray[np.bool_]:
        """Read the end flags, [rows]. All are False if the trial has no flags."""
        array = trial.arrays.get(NEXT_TERMINATED)
        if array is None:
            return np.zeros(rows, np.bool_)
        values = trial.file.read(array.name).reshape(-1)
        if values.dtype != np.bool_:
            if not np.isin(values, (0, 1)).all():
                raise _TrialError("done has numbers other than 0 and 1")
            self.counts["flags-cast"] += 1
        return np.asarray(values == 1)

    def _array_problems(self, arrays: Mapping[Key, Hdf5Array]) -> Iterator[str]:
        """Yield how a trial differs from the first trial."""
        # The end flag is optional, but always a column.
        expected = [key for key in self._by_key if key not in {NEXT_TERMINATED, NEXT_TRUNCATED, _SEED}]
        yield from (f"it has no {dotted_name(key)}, unlike the first trial" for key in expected if key not in arrays)
        extra = (key for key in arrays if key not in self._by_key)
        yield from (f"it has {dotted_name(key)}, unlike the first trial" for key in extra)
        if ACTION not in arrays:
            return
        rows = arrays[ACTION].shape[:1]
        for key, array in arrays.items():
            if array.shape[:1] != rows:
                yield f"{array.name} is {list(array.shape)}, but its actions are {list(arrays[ACTION].shape)}"
            elif key == NEXT_TERMINATED and array.shape[1:] not in {(), (1,)}:
                yield f"{array.name} is {list(array.shape)}, expected one flag per row"
            elif key in expected:
                column = self._by_key[key]
                shape = (1,) if key == NEXT_REWARD and array.shape[1:] in {(), (1,)} else array.shape[1:]
                if shape != column.shape or not np.can_cast(array.dtype, column.dtype):
                    yield (
                        f"{array.name} is {array.dtype.name} {list(array.shape[1:])} per row, "
                        f"in the first trial {column.dtype.name} {list(column.shape)}"
                    )


def _check_finite(name: str, values: NDArray[Any], first: int) -> None:
    """Check that all values of an array are finite, from row `first` on."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
        raise _TrialError(f"{name} is not finite in row {first + int(wrong[0]):,} ({len(wrong):,} such rows)")


def _find_trials(file: Hdf5File, path: str) -> list[_Trial]:
    """Return the trials of a file in numeric order: by name, Trial10 would precede Trial2."""
    by_number: dict[int, dict[Key, Hdf5Array]] = {}
    foreign: dict[str, None] = {}
    problems: list[str] = []
    for name, array in file.arrays.items():
        group, _, rest = name.partition("/")
        number = _TRIAL.fullmatch(group)
        if number is None or not rest:
            foreign[group] = None
            continue
        key = _key_of_array(rest)
        if not array.numeric or not array.shape:
            kind = "a single value" if array.numeric else f"of type {array.dtype}"
            problems.append(f"{name} is {kind}, expected numbers, one row per step")
        if key[0] in _RESERVED and key not in {NEXT_REWARD, NEXT_TERMINATED}:
            problems.append(f"{name} maps to the key {dotted_name(key)}, which is reserved for another field")
        if by_number.setdefault(int(number[1]), {}).setdefault(key, array) is not array:
            problems.append(f"{name} and {by_number[int(number[1])][key].name} both map to the key {dotted_name(key)}")
    if foreign:
        problems.append(f"it has {', '.join([*foreign][:5])}, expected groups named Trial0, Trial1 and so on")
    if not by_number and not problems:
        problems.append("it has no trial")
    refuse(path, first_problems(problems))
    return [_Trial(file, number, by_number[number]) for number in sorted(by_number)]


def _key_of_array(path: str) -> Key:
    root, *rest = (name.replace(".", "_").replace("\\", "_") for name in path.split("/"))
    return (*_ROOTS.get(root, (root,)), *rest)


def _columns_of_trial(trial: _Trial, where: str) -> list[Column]:
    arrays = trial.arrays
    missing = [dotted_name(key) for key in _MANDATORY if key not in arrays]
    problems = [f"Trial{trial.number} has no {name}" for name in missing]
    columns = []
    for key, array in arrays.items():
        dtype = _WIDER.get(array.dtype, array.dtype)
        if dtype not in _STORABLE:
            problems.append(f"{array.name} has dtype {array.dtype.name}, which cannot be stored")
        if key == NEXT_REWARD and array.shape[1:] not in {(), (1,)}:
            problems.append(f"{array.name} is {list(array.shape)}, expected one number per step")
        if key != NEXT_TERMINATED:
            shape = (1,) if key == NEXT_REWARD else array.shape[1:]
            columns.append(Column(key, dtype, shape, shared=key[0] in _STATES))
    refuse(where, problems)
    return [*columns, *END_COLUMNS, Column(_SEED, np.dtype(np.int64), ())]
