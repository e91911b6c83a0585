"""Trials of RoboHive's logger as trajectories. There are two layouts, told apart trial by trial.

By state, where the last action is NaN: row t holds the state s_t, what that state is worth, and the action taken in it.

    row             0     1     2    ...    h
    observations   s_0   s_1   s_2   ...   s_h        h steps, and the state after the last one
    actions        a_0   a_1   a_2   ...   NaN
    rewards, done  (r_0)  r_1   r_2   ...   r_h        r_t+1 is what a_t led to

By step, where it is a number: row t holds the state, the action taken in it, and what that led to.

    row             0     1     2    ...   h-1
    observations   s_0   s_1   s_2   ...  s_h-1       h steps; the state after the last one is not known
    actions        a_0   a_1   a_2   ...  a_h-1
    rewards, done  r_0   r_1   r_2   ...  r_h-1       r_t is what a_t led to
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Block, Hdf5Array, Hdf5File
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader, Selection
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, EPISODE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RoboSetReader"]

_BLOCK_BYTES = 8 << 20
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
_LATE = (NEXT_REWARD, NEXT_TERMINATED)
"""What stands one row later where rows are states."""
_MANDATORY = (OBSERVATION, ACTION, NEXT_REWARD)
_RESERVED = frozenset({"next", "mask", "terminated", "truncated", *EPISODE, *_SEED})
_WIDER: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
_STORABLE = frozenset(np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f4", "f8"))
_SHOWN_MOST = 20
_TEXTS = {
    "rows-are-states": "trials end with an action of NaN: their rows are states, and reward and end mark of a row belong "
    "to the action of the row before",
    "rows-are-steps": "trials end with an action: their rows are steps, and the state after the last one is not known",
    "end-without-flag": "trials end without an end mark: their last step was marked truncated",
    "flag-inside-trial": "steps inside a trial have an end mark: the trajectory ends there and goes on as another",
    "unwritten-chunks": "chunks that the file never wrote have the fill value of their array",
    **NO_TRANSITION,
    "widened": "trials have numbers of 16 bits, or unsigned ones, which were widened without loss",
    "flags-cast": "trials store their end marks as numbers, 0 or 1, which were turned into booleans",
}


class _Faults(Exception):
    """What is wrong with a trial; the arguments say it, a sentence each."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trial of an open file."""

    file: Hdf5File
    number: int
    arrays: Mapping[Key, Hdf5Array]
    """What lies below its group, by key."""

    @property
    def rows(self) -> int:
        """How many rows it has; 0 where it has no action."""
        return self.arrays[ACTION].shape[0] if ACTION in self.arrays else 0


class RoboSetReader(EpisodeReader):
    """Opened files of a shard.

    Args:
        what: The dataset, for messages.
        files: The files by path: those of the shard, and the first one of all, whose first trial says what the columns
            are.
        metadata: The number of each path, and what is wanted.

    Raises:
        ConversionError: If a file holds anything else than trials, or they differ in what a step is; every fault.
    """

    def __init__(self, what: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._what = what
        self._files = dict(files)
        self._seeds: Mapping[str, int] = metadata.get("seeds") or {
            path: seed for seed, path in enumerate(sorted(files))
        }
        self.steps = None
        self.metadata = {f"files/{seed}": path for path, seed in self._seeds.items()}
        self.decisions: list[Decision] = []
        self._found: Counter[str] = Counter()
        first = min(files, key=self._seeds.__getitem__)
        with Hdf5File(files[first], threads=1) as file:
            trials = _trials(file, first)
            self.columns = _columns(next((one for one in trials if one.rows), trials[0]), f"{what}: {first}")
        self._by_key = {column.key: column for column in self.columns}
        self._wanted = Selection(keys=tuple(metadata.get("keys", ()))).kept_keys([*self._by_key])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Files are open only while they are read."""

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the trials of these files, file by file, by their numbers."""
        self._found = Counter()
        faults: list[str] = []
        for path in sorted(self._files) if part is None else part:
            with Hdf5File(self._files[path]) as file:
                self._found["unwritten-chunks"] += file.unwritten
                for trial in _trials(file, path):
                    try:
                        yield from self._pieces(trial, self._seeds[path])
                    except _Faults as error:
                        faults += [f"{path}: Trial{trial.number}: {one}" for one in error.args]
        if faults:
            more = [f"and {len(faults) - _SHOWN_MOST:,} more"] if faults[_SHOWN_MOST:] else []
            raise ConversionError(self._what, [*faults[:_SHOWN_MOST], *more])
        self.decisions = [Decision(rule, text, self._found[rule]) for rule, text in _TEXTS.items() if self._found[rule]]

    def _pieces(self, trial: _Trial, seed: int) -> Iterator[Episode]:
        """Yield the trajectories of a trial: several where an end mark stands inside it."""
        arrays = trial.arrays
        faults = list(self._misfits(arrays))
        if faults:
            raise _Faults(*faults)
        rows = arrays[ACTION].shape[0]
        last_action = trial.file.read(arrays[ACTION].name, max(rows - 1, 0))
        by_state = rows > 0 and bool(np.isnan(last_action.astype(np.float64)).all())
        steps = rows - by_state
        if not steps:
            self._found["no-transition"] += 1
            return
        ends = self._ends(trial, rows)[by_state:]
        self._found["rows-are-states" if by_state else "rows-are-steps"] += 1
        self._found["flag-inside-trial"] += int(ends[:-1].sum())
        self._found["end-without-flag"] += int(not ends[-1])
        self._found["widened"] += any(one.dtype in _WIDER for one in arrays.values())
        names = {key: arrays[key].name for key in arrays if key in self._wanted or key == ACTION}
        row_bytes = sum(arrays[key].row_bytes for key in names)
        size = max(1, _BLOCK_BYTES // max(row_bytes, 1))
        metadata = {"trial": np.int64(trial.number), "seed": np.int64(seed)}
        for block in trial.file.blocks([*names.values()], rows=size, overlap={*names.values()}):
            self._check_no_holes(block, names, last=rows - 1 if by_state else rows)
            for start, stop in _cut(ends, block.start, min(block.stop, steps)):
                goes_on = stop < steps and not ends[stop - 1]
                yield self._piece(block, names, ends, start, stop, metadata, shift=by_state, goes_on=goes_on)

    def _piece(
        self,
        block: Block,
        names: Mapping[Key, str],
        ends: NDArray[np.bool_],
        start: int,
        stop: int,
        metadata: Mapping[str, Any],
        *,
        shift: bool,
        goes_on: bool,
    ) -> Episode:
        first, last = start - block.start, stop - block.start
        terminated = ends[start:stop, None]
        truncated = np.zeros_like(terminated)
        truncated[-1] = not goes_on and not terminated[-1]
        given: dict[Key, Any] = {NEXT_TERMINATED: terminated, NEXT_TRUNCATED: truncated}
        given[_SEED] = np.full(stop - start, metadata["seed"])
        states: dict[Key, Any] = {}
        for key, name in names.items():
            values = block.columns[name]
            dtype = self._by_key[key].dtype
            if key == NEXT_TERMINATED:
                continue
            if key[0] in _STATES:
                # Where the trial ends by step there is no further row, and the state is not known.
                states[key] = values[first : last if goes_on else last + 1].astype(dtype, copy=False)
            elif key == NEXT_REWARD:
                given[key] = values[first + shift : last + shift].reshape(-1, 1).astype(dtype, copy=False)
            else:
                given[key] = values[first:last].astype(dtype, copy=False)
        keep = self._wanted
        return Episode(
            {key: values for key, values in given.items() if key in keep}, states, continues=goes_on, metadata=metadata
        )

    def _ends(self, trial: _Trial, rows: int) -> NDArray[np.bool_]:
        """Read the end marks, [rows]; none stand where the trial has none."""
        array = trial.arrays.get(NEXT_TERMINATED)
        if array is None:
            return np.zeros(rows, np.bool_)
        values = trial.file.read(array.name).reshape(-1)
        if values.dtype != np.bool_:
            if not np.isin(values, (0, 1)).all():
                raise _Faults("done holds other numbers than 0 and 1")
            self._found["flags-cast"] += 1
        return np.asarray(values == 1)

    def _misfits(self, arrays: Mapping[Key, Hdf5Array]) -> Iterator[str]:
        """Yield how a trial differs from the first one."""
        # The end mark may be there or not; it is a column in any case.
        wanted = [key for key in self._by_key if key not in {NEXT_TERMINATED, NEXT_TRUNCATED, _SEED}]
        yield from (f"it has no {dotted(key)}, as the first trial has" for key in wanted if key not in arrays)
        more = (key for key in arrays if key not in self._by_key)
        yield from (f"it has {dotted(key)}, which the first trial has not" for key in more)
        if ACTION not in arrays:
            return
        rows = arrays[ACTION].shape[:1]
        for key, array in arrays.items():
            if array.shape[:1] != rows:
                yield f"{array.name} is {list(array.shape)}; its actions are {list(arrays[ACTION].shape)}"
            elif key == NEXT_TERMINATED and array.shape[1:] not in {(), (1,)}:
                yield f"{array.name} is {list(array.shape)}; expected one mark a row"
            elif key in wanted:
                column = self._by_key[key]
                shape = (1,) if key == NEXT_REWARD and array.shape[1:] in {(), (1,)} else array.shape[1:]
                if shape != column.shape or not np.can_cast(array.dtype, column.dtype):
                    yield (
                        f"{array.name} is {array.dtype.name} {list(array.shape[1:])} a row; "
                        f"in the first trial {column.dtype.name} {list(column.shape)}"
                    )

    @staticmethod
    def _check_no_holes(block: Block, names: Mapping[Key, str], *, last: int) -> None:
        """Refuse what is no number, but for the last action where rows are states."""
        faults = []
        for key, name in names.items():
            values = block.columns[name]
            values = values[: max(last - block.start, 0)] if key == ACTION else values
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
                faults.append(f"{name} is not finite in row {block.start + int(wrong[0]):,} ({len(wrong):,} such rows)")
        if faults:
            raise _Faults(*faults)


def _trials(file: Hdf5File, path: str) -> list[_Trial]:
    """Return the trials of a file by number: by name, Trial10 would come before Trial2.

    Raises:
        ConversionError: If it holds anything else.
    """
    found: dict[int, dict[Key, Hdf5Array]] = {}
    foreign: dict[str, None] = {}
    faults: list[str] = []
    for name, array in file.arrays.items():
        group, _, rest = name.partition("/")
        number = _TRIAL.fullmatch(group)
        if number is None or not rest:
            foreign[group] = None
            continue
        key = _key(rest)
        if not array.numeric or not array.shape:
            kind = "a single value" if array.numeric else f"of type {array.dtype}"
            faults.append(f"{name} is {kind}; expected numbers, a row for each step")
        if key[0] in _RESERVED and key not in {NEXT_REWARD, NEXT_TERMINATED}:
            faults.append(f"{name} would become {dotted(key)}, which is another field")
        if found.setdefault(int(number[1]), {}).setdefault(key, array) is not array:
            faults.append(f"{name} and {found[int(number[1])][key].name} would both become {dotted(key)}")
    if foreign:
        faults.append(f"it has {', '.join([*foreign][:5])}; expected groups called Trial0, Trial1 and so on")
    if not found and not faults:
        faults.append("it has no trial")
    if faults:
        raise ConversionError(path, faults[:_SHOWN_MOST])
    return [_Trial(file, number, found[number]) for number in sorted(found)]


def _key(path: str) -> Key:
    root, *rest = (name.replace(".", "_").replace("\\", "_") for name in path.split("/"))
    return (*_ROOTS.get(root, (root,)), *rest)


def _columns(trial: _Trial, where: str) -> list[Column]:
    arrays = trial.arrays
    lacking = [dotted(key) for key in _MANDATORY if key not in arrays]
    faults = [f"Trial{trial.number} has no {name}" for name in lacking]
    columns = []
    for key, array in arrays.items():
        dtype = _WIDER.get(array.dtype, array.dtype)
        if dtype not in _STORABLE:
            faults.append(f"{array.name} has numbers of type {array.dtype.name}")
        if key == NEXT_REWARD and array.shape[1:] not in {(), (1,)}:
            faults.append(f"{array.name} is {list(array.shape)}; expected one number a step")
        if key != NEXT_TERMINATED:
            shape = (1,) if key == NEXT_REWARD else array.shape[1:]
            columns.append(Column(key, dtype, shape, shared=key[0] in _STATES))
    if faults:
        raise ConversionError(where, faults)
    flag = np.dtype(np.bool_)
    own = [
        Column(NEXT_TERMINATED, flag, (1,)),
        Column(NEXT_TRUNCATED, flag, (1,)),
        Column(_SEED, np.dtype(np.int64), ()),
    ]
    return [*columns, *own]


def _cut(ends: NDArray[np.bool_], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut the steps [start, stop) behind every end mark."""
    stops = [*(np.flatnonzero(ends[start:stop]) + start + 1).tolist(), stop]
    for last in stops:
        if last > start:
            yield start, last
            start = last
