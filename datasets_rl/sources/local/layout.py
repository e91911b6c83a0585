"""What the arrays of a file become, and where in each of them an episode lies.

              states                          steps
same-row      s_0 s_1 s_2     | s_0' s_1'     a_0 a_1 a_2 | a_0' a_1'     s_3 is in next_observation, or nowhere
one-more      s_0 s_1 s_2 s_3 | s_0' s_1'     a_0 a_1 a_2 | a_0'          or as many rows of steps, the last one idle
action-before s_0 s_1 s_2 s_3 | s_0' s_1'      -  a_0 a_1 a_2 |  -  a_0'  a row has what led to its state
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import listed
from datasets_rl.sources.local.description import Description, Field
from datasets_rl.sources.local.files import Array, ArrayFile
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted,
)

__all__ = ["Bounds", "ColumnSlice", "Plan", "bounds", "is_empty", "plan"]

_WIDENED: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
_HELD = tuple(np.dtype(name) for name in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8"))
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
_STATES = (OBSERVATION[0], "info")
_TURNS: Mapping[str, tuple[int, ...]] = {"": (), "HWC to CHW": (2, 0, 1), "CHW to HWC": (1, 2, 0)}

_Flags = NDArray[np.bool_]
_Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """An array and the column that it becomes."""

    array: str
    column: Column
    turn: tuple[int, ...] = ()
    """The axes of a row in their new order; empty where they stay."""
    constant: float | None = None

    @property
    def state(self) -> bool:
        """Whether it is there before and after every step."""
        return self.column.key[0] in _STATES


@dataclass(frozen=True, slots=True)
class Plan:
    """What the arrays of a file become."""

    parts: tuple[ColumnSlice, ...]
    following: Mapping[Key, str]
    """By the key of an observation, the array of the observations after the steps."""
    flags: Mapping[Key, str]
    by: str
    marks: str
    alignment: str
    left_out: tuple[str, ...]
    widened: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column, flags included."""
        flag = np.dtype(np.bool_)
        flags = (Column(NEXT_TERMINATED, flag, (1,)), Column(NEXT_TRUNCATED, flag, (1,)))
        return (*(part.column for part in self.parts), *flags)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the E episodes of a file lie in its arrays."""

    lengths: _Index
    """Steps of each, [E], adding up to N; 0 where an episode has a state and no step."""
    numbers: _Index
    """The upstream's own number of each, [E]."""
    lead: int
    """Rows of an episode in front of its first step."""
    extra: int
    """Rows of an episode beyond its steps, in the arrays of steps."""
    extras: Mapping[str, int]
    """The same for each array of states."""
    terminated: _Flags
    truncated: _Flags
    """[N]; the last step of every episode has one of the two."""
    found: Counter[str]
    """How often each rule was applied."""


def is_empty(file: ArrayFile, said: Description) -> bool:
    """Say whether a file has no step at all: arrays of steps without a row, and at most the state before the first."""
    rows = {one.key: file.arrays[one.array].rows for one in said.of(file.arrays) if one.array in file.arrays}
    states = [count for key, count in rows.items() if key[0] in _STATES]
    steps = [count for key, count in rows.items() if key[0] not in _STATES]
    return bool(rows) and not any(steps) and max(states, default=0) <= (1 if steps else 0)


def plan(file: ArrayFile, said: Description, known: Sequence[Column] | None = None) -> Plan:
    """Say what the arrays of a file become.

    Args:
        file: The file.
        said: What its description says.
        known: The columns of the first file, which this one must have too.

    Raises:
        ConversionError: With everything that is wrong.
    """
    fields = said.of(file.arrays)
    problems = list(_lacking(file, fields))
    by, marks = said.told(file.arrays, fields)
    if marks and marks not in file.arrays:
        problems.append(f"it has no array {marks}, which tells its episodes")
    usable = [one for one in fields if one.array in file.arrays]
    problems.extend(fault for one in usable for fault in _array_faults(one, file.arrays[one.array]))
    if problems:
        raise ConversionError(file.name, problems)
    parts = tuple(
        _part(one, file.arrays.get(one.array)) for one in fields if one.key not in _FLAGS and one.key[:2] != _AFTER
    )
    made = Plan(
        parts,
        {one.key[1:]: one.array for one in fields if one.key[:2] == _AFTER},
        {one.key: one.array for one in fields if one.key in _FLAGS},
        by,
        marks,
        said.alignment,
        tuple(sorted(set(file.arrays) - {one.array for one in fields} - {marks})),
        sum(file.arrays[one.array].dtype in _WIDENED for one in fields if one.array),
    )
    problems.extend(_following_faults(made, file))
    problems.extend(_unlike(made.columns, known or made.columns))
    if problems:
        raise ConversionError(file.name, problems)
    return made


_AFTER = (NEXT, *OBSERVATION)


def _lacking(file: ArrayFile, fields: Sequence[Field]) -> Iterator[str]:
    there = listed([f"{name} {array}" for name, array in file.arrays.items()]) or "none"
    for one in fields:
        if one.array and one.array not in file.arrays:
            yield f"it has no array {one.array}, which is {dotted(one.key)}; it has {there}"
    for key in (OBSERVATION, ACTION, NEXT_REWARD):
        if not any(one.key[: len(key)] == key for one in fields):
            yield f"no array of it is known to be {dotted(key)}; it has {there}"


def _array_faults(one: Field, array: Array) -> Iterator[str]:
    name, shape = one.array, [array.rows, *array.shape]
    single = one.key in _FLAGS or one.key == NEXT_REWARD
    if array.text and (single or one.key[:2] == _AFTER):
        yield f"{name} holds texts; expected numbers"
    elif not array.text and array.dtype not in _HELD:
        objects = "Python objects" if array.dtype.hasobject else str(array.dtype)
        yield f"{name} holds {objects}; expected booleans, integers up to 64 bits with a sign, or floats"
    if single and math.prod(array.shape) != 1:
        yield f"{name} has shape {shape}; expected one number a row"
    if one.layout and (len(array.shape) != 3 or array.text):
        yield f"{name} has shape {shape}; expected pictures, three axes a row, to be turned from {one.layout}"
    if not array.rows:
        yield f"{name} has no row"
    if 0 in array.shape:
        yield f"{name} has shape {shape}, which is no value"
    for bound in (one.low, one.high):
        axes = np.shape(bound) if bound is not None and not array.text else ()
        if not _spreads(axes, array.shape):
            yield f"{name} has rows of {list(array.shape)}; its bounds have {list(axes)}"


def _spreads(axes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(axes, shape) == shape
    except ValueError:
        return False


def _part(one: Field, array: Array | None) -> ColumnSlice:
    if array is None:
        return ColumnSlice("", Column(one.key, np.dtype(np.float32), (1,)), constant=one.constant)
    turn = _TURNS[one.layout]
    shape = (1,) if one.key == NEXT_REWARD else tuple(array.shape[axis] for axis in turn) or array.shape
    dtype = _WIDENED.get(array.dtype, array.dtype)
    return ColumnSlice(one.array, Column(one.key, dtype, shape, shared=one.key[0] in _STATES, text=array.text), turn)


def _following_faults(made: Plan, file: ArrayFile) -> Iterator[str]:
    by_key = {part.column.key: part for part in made.parts}
    for key, name in made.following.items():
        part, array = by_key.get(key), file.arrays[name]
        if part is None:
            yield f"{name} is the {dotted(key)} after each step, and there is no {dotted(key)}"
        elif array.shape != file.arrays[part.array].shape or array.dtype != file.arrays[part.array].dtype:
            yield f"{name} is {array}; {part.array} is {file.arrays[part.array]}"
    lacking = [dotted(key) for key in by_key if key[0] == OBSERVATION[0] and key not in made.following]
    if made.following and lacking:
        yield f"{', '.join(lacking)} has no observation after each step, as {dotted(next(iter(made.following)))} has"


def _unlike(columns: Sequence[Column], known: Sequence[Column]) -> Iterator[str]:
    here, there = ({one.key: one for one in some} for some in (columns, known))
    for key in there.keys() - here.keys():
        yield f"it has no {dotted(key)}, as the first file has"
    for key in here.keys() - there.keys():
        yield f"it has {dotted(key)}, which the first file has not"
    for key in here.keys() & there.keys():
        one, first = here[key], there[key]
        if (one.dtype, one.shape, one.text) != (first.dtype, first.shape, first.text):
            shapes = f"{one.dtype.name} {list(one.shape)}; in the first file {first.dtype.name} {list(first.shape)}"
            yield f"{dotted(key)} is {shapes}"


def bounds(file: ArrayFile, made: Plan) -> Bounds:
    """Find the episodes of a file; only flags and what tells episodes is read, a few bytes a row.

    Raises:
        ConversionError: If the numbers of rows contradict each other, or flags stand where no episode ends; with
            everything that is wrong.
    """
    rows, states = _row_counts(file, made)
    flags = {key: _flag(file, name) for key, name in made.flags.items()}
    held, numbers = _held(file, made, rows, flags)
    count = len(held)
    alignment = made.alignment or ("one-more" if states == rows + count else "same-row")
    extra = int(alignment != "same-row" and states == rows)
    wanted = {"same-row": (rows,), "one-more": (rows, rows + count), "action-before": (rows,)}[alignment]
    if states not in wanted:
        expected = " or ".join(f"{one:,}" for one in wanted)
        problem = f"the observations have {states:,} rows, for {rows:,} rows of rewards in {count:,} episodes"
        raise ConversionError(file.name, [f"{problem}; expected {expected} ({alignment})"])
    if made.by in {"lengths", "ends"} and extra and held.sum() + count == rows:
        held = held + 1  # they count steps, not rows
    if held.sum() != rows:
        raise ConversionError(file.name, [f"{made.marks} tells of {held.sum():,} rows; there are {rows:,}"])
    if made.by == "flags" and extra and alignment == "one-more":
        problem = "the last row of an episode has no step, so its flags tell no end"
        raise ConversionError(file.name, [problem], hint="tell the episodes by file, column, lengths or ends")
    if made.following and alignment == "action-before":
        problem = f"{', '.join(made.following.values())}: what a row led to is the observation of the row itself"
        raise ConversionError(file.name, [problem], hint="leave next.observation out, or the alignment")
    rowless = extra * int((held == 0).sum())
    if rowless:  # without a row there is none beyond the steps either
        held, numbers = held[held > 0], numbers[held > 0]
    lengths = held - extra
    extras = _extras(file, made, lengths, extra)
    lead = int(alignment == "action-before")
    kept = np.ones(rows, np.bool_)
    if extra:
        kept[np.cumsum(held) - (held if lead else 1)] = False
    found = Counter({alignment: rows, "widened": made.widened, "left-out": len(made.left_out)})
    found["no-transition"] = rowless + int((lengths == 0).sum())
    terminated, truncated = _ends(file, made, {key: one[kept] for key, one in flags.items()}, lengths, found)
    return Bounds(lengths, numbers, lead, extra, extras, terminated, truncated, found)


def _row_counts(file: ArrayFile, made: Plan) -> tuple[int, int]:
    """Return how many rows the steps have, and how many the observations."""
    steps = [part.array for part in made.parts if part.array and not part.state]
    steps += [*made.flags.values(), *made.following.values()]
    if made.marks and made.by == "column":
        steps.append(made.marks)
    states = [part.array for part in made.parts if part.column.key[0] == OBSERVATION[0]]
    problems = []
    counts = []
    for names in (steps, states):
        rows = {name: file.arrays[name].rows for name in names}
        if len(set(rows.values())) > 1:
            problems.append(
                f"{', '.join(f'{name} has {count:,} rows' for name, count in rows.items())}; expected one number"
            )
        counts.append(next(iter(rows.values())))
    if problems:
        raise ConversionError(file.name, problems)
    return counts[0], counts[1]


def _flag(file: ArrayFile, name: str) -> _Flags:
    """Read a flag, [rows]."""
    raw = np.asarray(file.whole(name)).reshape(-1)
    wrong = np.flatnonzero((raw != 0) & (raw != 1))
    if len(wrong):
        problem = f"{name} is {raw[wrong[0]]} at row {wrong[0]:,}; expected 0 or 1 ({len(wrong):,} such rows)"
        raise ConversionError(file.name, [problem])
    return np.asarray(raw == 1)


def _held(file: ArrayFile, made: Plan, rows: int, flags: Mapping[Key, _Flags]) -> tuple[_Index, _Index]:
    """Return how many rows each episode has, [E], as far as the file tells, and its own number, [E]."""
    if made.by == "file":
        return np.array([rows], np.int64), np.zeros(1, np.int64)
    if made.by == "flags":
        if not flags:
            raise ConversionError(file.name, ["it has no flag, which would tell where episodes end"])
        stops = np.flatnonzero(np.logical_or.reduce([*flags.values()])) + 1
        stops = stops if len(stops) and stops[-1] == rows else np.append(stops, rows)
    elif made.by == "column":
        return _runs(file, made.marks)
    else:
        raw = np.asarray(file.whole(made.marks)).reshape(-1)
        if raw.dtype.kind not in "iu" or not len(raw):
            raise ConversionError(file.name, [f"{made.marks} is {file.arrays[made.marks]}; expected whole numbers"])
        stops = raw.astype(np.int64) if made.by == "ends" else np.cumsum(raw, dtype=np.int64)
    held = np.diff(stops, prepend=0)
    if (held < 0).any():
        wrong = int(np.argmax(held < 0))
        raise ConversionError(file.name, [f"{made.marks} gives episode {wrong} of it {held[wrong]:,} rows"])
    return held, np.arange(len(held), dtype=np.int64)


def _runs(file: ArrayFile, name: str) -> tuple[_Index, _Index]:
    """Find the runs of equal values of a column."""
    values = np.asarray(file.whole(name)).reshape(file.arrays[name].rows, -1)[:, 0]
    starts = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    names, counts = np.unique(values[starts], return_counts=True)
    if (counts > 1).any():
        again = names[counts > 1][0]
        problem = f"{name} is {again} in {counts.max():,} places that do not touch; expected each episode in one piece"
        raise ConversionError(file.name, [problem])
    numbers = values[starts].astype(np.int64) if values.dtype.kind in "iu" else np.arange(len(starts))
    return np.diff(np.append(starts, len(values))), numbers


def _extras(file: ArrayFile, made: Plan, lengths: _Index, extra: int) -> dict[str, int]:
    """Return how many rows of an episode each array of states has beyond its steps."""
    steps, count = int(lengths.sum()), len(lengths)
    extras: dict[str, int] = {}
    problems = []
    for part in made.parts:
        if not part.state:
            continue
        rows = file.arrays[part.array].rows
        if rows not in {steps * (not extra), steps + count}:
            problems.append(f"{part.array} has {rows:,} rows, for {steps:,} steps in {count:,} episodes")
        extras[part.array] = int(rows == steps + count)
    if problems:
        raise ConversionError(file.name, problems)
    return extras


def _ends(
    file: ArrayFile, made: Plan, flags: Mapping[Key, _Flags], lengths: _Index, found: Counter[str]
) -> tuple[_Flags, _Flags]:
    """Return terminated and truncated, [N]."""
    never = np.zeros(int(lengths.sum()), np.bool_)
    last = never.copy()
    last[np.cumsum(lengths[lengths > 0]) - 1] = True
    terminated = flags.get(NEXT_TERMINATED, flags.get(NEXT_DONE, never))
    truncated = flags.get(NEXT_TRUNCATED, never).copy()
    wrong = np.flatnonzero((terminated | truncated) & ~last)
    if len(wrong):
        problem = f"a flag stands at step {wrong[0]:,}, within an episode ({len(wrong):,} such steps)"
        raise ConversionError(file.name, [problem], hint=f"it is told by {made.by} where episodes end")
    found["no-terminated"] = int(not {NEXT_TERMINATED, NEXT_DONE} & set(flags))
    found["done-as-terminated"] = int(terminated.sum()) if NEXT_DONE in flags and NEXT_TERMINATED not in flags else 0
    found["both-flags"] = int((terminated & truncated).sum())
    open_ends = last & ~(terminated | truncated)
    found["end-without-flag"] = int(open_ends.sum())
    truncated |= open_ends
    return terminated, truncated
