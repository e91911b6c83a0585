"""Mapping of the arrays of a file to columns, and of their rows to episodes.

              states                          steps
same-row      s_0 s_1 s_2     | s_0' s_1'     a_0 a_1 a_2 | a_0' a_1'     s_3 is in next_observation, or not stored
one-more      s_0 s_1 s_2 s_3 | s_0' s_1'     a_0 a_1 a_2 | a_0'          or equally many rows, the last one unused
action-before s_0 s_1 s_2 s_3 | s_0' s_1'      -  a_0 a_1 a_2 |  -  a_0'  a row has the action that led to its state
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.format.schema import END_COLUMNS, Column, Form
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.local.description import Description, Field
from datasets_rl.sources.local.files import Array, ArrayFile
from datasets_rl.sources.values import WIDENED, flag_problems
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
    is_observation,
)

_SUPPORTED = tuple(np.dtype(name) for name in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8"))
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
_TURNS: Mapping[str, tuple[int, ...]] = {"": (), "HWC to CHW": (2, 0, 1), "CHW to HWC": (1, 2, 0)}

_Flags = NDArray[np.bool_]
_Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """Array with the column that it is converted to."""

    array: str
    column: Column
    turn: tuple[int, ...] = ()
    """New order of the axes of a row; empty if they are not transposed."""
    constant: float | None = None

    @property
    def state(self) -> bool:
        """Whether it is a state, which exists before and after every step."""
        return self.column.shared


@dataclass(frozen=True, slots=True)
class Plan:
    """Mapping of the arrays of a file to columns and flags."""

    parts: tuple[ColumnSlice, ...]
    following: Mapping[Key, str]
    """Names of the arrays of next observations, by the key of the observation."""
    finals: Mapping[Key, str]
    """Names of the arrays of the states after the last step of each episode, by key; empty if there are none."""
    final_known: str
    """Name of the array of whether these states are known; empty if all are."""
    flags: Mapping[Key, str]
    by: str
    marks: str
    alignment: str
    left_out: tuple[str, ...]
    widened: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column, including the flags."""
        return (*(part.column for part in self.parts), *END_COLUMNS)


@dataclass(frozen=True, slots=True)
class EpisodeBounds:
    """Rows and flags of the E episodes of a file."""

    lengths: _Index
    """Number of steps of each episode, [E], with the sum N; 0 for an episode with a state but no step."""
    numbers: _Index
    """Number of each episode in the file, [E]."""
    lead: int
    """Number of rows of an episode before its first step."""
    extra: int
    """Number of rows of an episode that are not steps, in the arrays of steps."""
    extras: Mapping[str, int]
    """The same number for each array of states."""
    terminated: _Flags
    truncated: _Flags
    """End flags, [N] each; the last step of every episode has at least one."""
    known: _Flags | None
    """Whether the states after the last step are known, [E], if they have separate arrays; else None."""
    found: Counter[str]
    """How often each rule was applied."""


def is_empty(file: ArrayFile, description: Description) -> bool:
    """Return whether a file has no steps: its arrays of steps have no rows, and those of states at most one."""
    rows = [
        (field.is_state, file.arrays[field.array].rows)
        for field in description.fields_of(file.arrays)
        if field.array in file.arrays
    ]
    states = [count for is_state, count in rows if is_state]
    steps = [count for is_state, count in rows if not is_state]
    return bool(rows) and not any(steps) and max(states, default=0) <= (1 if steps else 0)


def plan_layout(file: ArrayFile, description: Description, known_columns: Sequence[Column] | None = None) -> Plan:
    """Map the arrays of a file to columns and flags.

    Args:
        file: The file.
        description: The description of the file.
        known_columns: The columns of the first file, which this file must have too.

    Raises:
        ConversionError: If the file does not match its description; the error names every problem.
    """
    fields = description.fields_of(file.arrays)
    problems = list(_missing_problems(file, fields))
    by, marks = description.end_marks(file.arrays, fields)
    if marks and marks not in file.arrays:
        problems.append(f"it has no array {marks}, which marks its episodes")
    present = [field for field in fields if field.array in file.arrays]
    problems.extend(problem for field in present for problem in _array_problems(field, file.arrays[field.array]))
    finals = {
        field.key: description.final.format(field.array) for field in present if field.is_state and description.final
    }
    problems.extend(_final_problems(file, [*finals.values(), *filter(None, [description.final_known])]))
    if problems:
        raise ConversionError(file.name, problems)
    after = _after_fields(fields)
    parts = tuple(
        _column_slice(field, file.arrays.get(field.array))
        for field in fields
        if field.key not in _FLAGS and field not in after
    )
    result = Plan(
        parts,
        {field.key[1:]: field.array for field in after},
        finals,
        description.final_known,
        {field.key: field.array for field in fields if field.key in _FLAGS},
        by,
        marks,
        description.alignment,
        tuple(sorted(_unused_arrays(file, fields) - {marks, description.final_known, *finals.values()})),
        sum(file.arrays[field.array].dtype in WIDENED for field in fields if field.array),
    )
    problems.extend(_following_problems(result, file))
    problems.extend(_column_problems(result.columns, known_columns or result.columns))
    if problems:
        raise ConversionError(file.name, problems)
    return result


_AFTER = (NEXT, *OBSERVATION)


def _after_fields(fields: Sequence[Field]) -> list[Field]:
    """Return the fields of next observations, except those of an observation that is not a state."""
    steps = {field.key for field in fields if not field.is_state}
    return [field for field in fields if field.key[:2] == _AFTER and field.key[1:] not in steps]


def _unused_arrays(file: ArrayFile, fields: Sequence[Field]) -> set[str]:
    return set(file.arrays) - {field.array for field in fields}


def _final_problems(file: ArrayFile, names: Sequence[str]) -> Iterator[str]:
    rows = {name: file.arrays[name].rows for name in names if name in file.arrays}
    yield from (f"it has no array {name}, of the states after the last steps" for name in names if name not in rows)
    if len(set(rows.values())) > 1:
        yield f"{', '.join(f'{name} has {count:,} rows' for name, count in rows.items())}; expected equal numbers"


def _missing_problems(file: ArrayFile, fields: Sequence[Field]) -> Iterator[str]:
    arrays = join_names([f"{name} {array}" for name, array in file.arrays.items()], ITEMS_MAX) or "none"
    for field in fields:
        if field.array and field.array not in file.arrays:
            yield f"it has no array {field.array}, which is {dotted_name(field.key)}; it has {arrays}"
    states = any(field.state for field in fields)
    for key in (*(() if states else (OBSERVATION,)), ACTION, NEXT_REWARD):
        # The actions of agents are in a group: ("agents", "action").
        if not any(field.key[: len(key)] == key or (key == ACTION and ACTION[0] in field.key) for field in fields):
            yield f"no array is described or named as {dotted_name(key)}; it has {arrays}"


def _array_problems(field: Field, array: Array) -> Iterator[str]:
    name, shape = field.array, [array.rows, *array.shape]
    single = field.key in _FLAGS or field.key == NEXT_REWARD
    if (array.text or array.encoded) and (single or field.key[:2] == _AFTER):
        yield f"{name} has {'strings' if array.text else 'encoded images'}; expected numbers"
    elif not array.text and array.dtype not in _SUPPORTED:
        objects = "Python objects" if array.dtype.hasobject else f"dtype {array.dtype}"
        yield f"{name} has {objects}; expected booleans, integers that fit into int64, or floats"
    if single and math.prod(array.shape) != 1:
        yield f"{name} has shape {shape}; expected one number per row"
    if field.layout and (len(array.shape) != 3 or array.text or array.encoded):
        yield f"{name} has shape {shape}; expected images, three axes per row, to convert {field.layout}"
    if not array.rows:
        yield f"{name} has no row"
    if array.encoded and not array.shape:
        yield f"{name} has no bytes in its first row; expected a PNG or JPEG image"
    if 0 in array.shape:
        yield f"{name} has shape {shape}, which has no values"
    for bound in (field.low, field.high):
        axes = np.shape(bound) if bound is not None and not array.text else ()
        if not _broadcasts(axes, array.shape):
            yield f"{name} has rows of shape {list(array.shape)}; its bounds have {list(axes)}"


def _broadcasts(axes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(axes, shape) == shape
    except ValueError:
        return False


def _column_slice(field: Field, array: Array | None) -> ColumnSlice:
    key = field.key
    if array is None:
        return ColumnSlice("", Column(key, np.dtype(np.float32), (1,)), constant=field.constant)
    turn = _TURNS[field.layout]
    shape = (1,) if key == NEXT_REWARD else tuple(array.shape[axis] for axis in turn) or array.shape
    dtype = WIDENED.get(array.dtype, array.dtype)
    form: Form = "encoded" if array.encoded else "raw"
    column = Column(key, dtype, shape, shared=field.is_state, text=array.text, form=form)
    return ColumnSlice(field.array, column, turn)


def _following_problems(plan: Plan, file: ArrayFile) -> Iterator[str]:
    by_key = {part.column.key: part for part in plan.parts}
    for key, name in plan.following.items():
        part, array = by_key.get(key), file.arrays[name]
        if part is None:
            yield f"{name} is the next {dotted_name(key)}, but there is no {dotted_name(key)}"
        elif array.shape != file.arrays[part.array].shape or array.dtype != file.arrays[part.array].dtype:
            yield f"{name} is {array}; {part.array} is {file.arrays[part.array]}"
    missing = [dotted_name(key) for key in by_key if key[0] == OBSERVATION[0] and key not in plan.following]
    if plan.following and missing:
        yield f"{', '.join(missing)} has no next observation, unlike {dotted_name(next(iter(plan.following)))}"


def _column_problems(columns: Sequence[Column], known: Sequence[Column]) -> Iterator[str]:
    own_columns, first_columns = ({column.key: column for column in group} for group in (columns, known))
    for key in first_columns.keys() - own_columns.keys():
        yield f"it has no {dotted_name(key)}, unlike the first file"
    for key in own_columns.keys() - first_columns.keys():
        yield f"it has {dotted_name(key)}, unlike the first file"
    for key in own_columns.keys() & first_columns.keys():
        own, first = own_columns[key], first_columns[key]
        if (own.dtype, own.shape, own.text) != (first.dtype, first.shape, first.text):
            shapes = f"{own.dtype.name} {list(own.shape)}; in the first file {first.dtype.name} {list(first.shape)}"
            yield f"{dotted_name(key)} is {shapes}"


def find_episodes(file: ArrayFile, plan: Plan) -> EpisodeBounds:
    """Return the episodes of a file, reading only the flags and the array of marks, a few bytes per row.

    Raises:
        ConversionError: If the numbers of rows contradict each other, or flags are set within an episode; the error
            names every problem.
    """
    rows, states = _row_counts(file, plan)
    flags = {key: _read_flag(file, name) for key, name in plan.flags.items()}
    row_counts, numbers = _episode_rows(file, plan, rows, flags)
    count = len(row_counts)
    alignment = plan.alignment or ("one-more" if states == rows + count else "same-row")
    extra = int(alignment != "same-row" and states == rows)
    allowed = {"same-row": (rows,), "one-more": (rows, rows + count), "action-before": (rows,)}[alignment]
    if states not in allowed:
        expected = " or ".join(f"{number:,}" for number in allowed)
        problem = f"the observations have {states:,} rows, for {rows:,} rows of rewards in {count:,} episodes"
        raise ConversionError(file.name, [f"{problem}; expected {expected} ({alignment})"])
    if plan.by in {"lengths", "ends"} and extra and row_counts.sum() + count == rows:
        row_counts = row_counts + 1  # the array counts steps, not rows
    if row_counts.sum() != rows:
        raise ConversionError(file.name, [f"{plan.marks} counts {row_counts.sum():,} rows; there are {rows:,}"])
    if plan.by == "flags" and extra and alignment == "one-more":
        problem = "the last row of an episode is not a step, so its flags cannot mark the end"
        raise ConversionError(file.name, [problem], hint="set [episodes] by to file, column, lengths or ends")
    if plan.following and alignment == "action-before":
        problem = (
            f"{', '.join(plan.following.values())} contradicts the alignment action-before: "
            "the next observation of a step is the observation of its own row"
        )
        raise ConversionError(file.name, [problem], hint="remove next.observation, or the alignment")
    rowless = extra * int((row_counts == 0).sum())
    if rowless:  # an episode without rows has no extra row either
        row_counts, numbers = row_counts[row_counts > 0], numbers[row_counts > 0]
    lengths = row_counts - extra
    extras = _extra_rows(file, plan, lengths, extra)
    known = _read_final_known(file, plan, row_counts)
    lead = int(alignment == "action-before")
    kept = np.ones(rows, np.bool_)
    if extra:
        kept[np.cumsum(row_counts) - (row_counts if lead else 1)] = False
    counts = Counter({alignment: rows, "widened": plan.widened, "left-out": len(plan.left_out)})
    counts["no-transition"] = rowless + int((lengths == 0).sum())
    terminated, truncated = _end_flags(file, plan, {key: flag[kept] for key, flag in flags.items()}, lengths, counts)
    return EpisodeBounds(lengths, numbers, lead, extra, extras, terminated, truncated, known, counts)


def _read_final_known(file: ArrayFile, plan: Plan, row_counts: _Index) -> _Flags | None:
    """Return whether the state after the last step of each episode is known, [E]; None without separate arrays."""
    if not plan.finals:
        return None
    name, episodes = next(iter(plan.finals.values())), len(row_counts)
    if file.arrays[name].rows != episodes:
        raise ConversionError(file.name, [f"{name} has {file.arrays[name].rows:,} rows, for {episodes:,} episodes"])
    return _read_flag(file, plan.final_known) if plan.final_known else np.ones(episodes, np.bool_)


def _row_counts(file: ArrayFile, plan: Plan) -> tuple[int, int]:
    """Return the number of rows of the arrays of steps, and that of the arrays of observations."""
    steps = [part.array for part in plan.parts if part.array and not part.state]
    steps += [*plan.flags.values(), *plan.following.values()]
    if plan.marks and plan.by == "column":
        steps.append(plan.marks)
    states = [part.array for part in plan.parts if is_observation(part.column.key)]
    states = states or [part.array for part in plan.parts if part.state]
    problems = []
    counts = []
    for names in (steps, states):
        rows = {name: file.arrays[name].rows for name in names}
        if len(set(rows.values())) > 1:
            problems.append(
                f"{', '.join(f'{name} has {count:,} rows' for name, count in rows.items())}; expected equal numbers"
            )
        counts.append(next(iter(rows.values())))
    if problems:
        raise ConversionError(file.name, problems)
    return counts[0], counts[1]


def _read_flag(file: ArrayFile, name: str) -> _Flags:
    """Read a flag, [rows]."""
    raw = np.asarray(file.read_all(name)).reshape(-1)
    if problems := flag_problems(name, raw):
        raise ConversionError(file.name, problems)
    return np.asarray(raw == 1)


def _episode_rows(file: ArrayFile, plan: Plan, rows: int, flags: Mapping[Key, _Flags]) -> tuple[_Index, _Index]:
    """Return the number of rows of each episode that the file states, [E], and the number of each episode, [E]."""
    if plan.by == "file":
        return np.array([rows], np.int64), np.zeros(1, np.int64)
    if plan.by == "flags":
        if not flags:
            raise ConversionError(file.name, ["it has no flags, which mark the ends of episodes"])
        stops = np.flatnonzero(np.logical_or.reduce([*flags.values()])) + 1
        stops = stops if len(stops) and stops[-1] == rows else np.append(stops, rows)
    elif plan.by == "column":
        return _equal_runs(file, plan.marks)
    else:
        raw = np.asarray(file.read_all(plan.marks)).reshape(-1)
        if raw.dtype.kind not in "iu" or not len(raw):
            raise ConversionError(file.name, [f"{plan.marks} is {file.arrays[plan.marks]}; expected integers"])
        stops = raw.astype(np.int64) if plan.by == "ends" else np.cumsum(raw, dtype=np.int64)
    counts = np.diff(stops, prepend=0)
    if (counts < 0).any():
        wrong = int(np.argmax(counts < 0))
        problem = f"{plan.marks} states {counts[wrong]:,} rows for its episode {wrong}; expected at least 0"
        raise ConversionError(file.name, [problem])
    return counts, np.arange(len(counts), dtype=np.int64)


def _equal_runs(file: ArrayFile, name: str) -> tuple[_Index, _Index]:
    """Return the lengths of the runs of equal values of a column, [E], and the values, [E]."""
    values = np.asarray(file.read_all(name)).reshape(file.arrays[name].rows, -1)[:, 0]
    starts = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    names, counts = np.unique(values[starts], return_counts=True)
    if (counts > 1).any():
        repeated = names[counts > 1][0]
        problem = f"{name} is {repeated} in {counts.max():,} separate ranges of rows; expected one range per episode"
        raise ConversionError(file.name, [problem])
    numbers = values[starts].astype(np.int64) if values.dtype.kind in "iu" else np.arange(len(starts))
    return np.diff(np.append(starts, len(values))), numbers


def _extra_rows(file: ArrayFile, plan: Plan, lengths: _Index, extra: int) -> dict[str, int]:
    """Return how many rows per episode each array of states has in addition to the steps."""
    steps, count = int(lengths.sum()), len(lengths)
    extras: dict[str, int] = {}
    problems = []
    for part in plan.parts:
        if not part.state:
            continue
        rows = file.arrays[part.array].rows
        if rows not in {steps * (not extra), steps + count}:
            problems.append(f"{part.array} has {rows:,} rows, for {steps:,} steps in {count:,} episodes")
        extras[part.array] = int(rows == steps + count)
    if problems:
        raise ConversionError(file.name, problems)
    return extras


def _end_flags(
    file: ArrayFile, plan: Plan, flags: Mapping[Key, _Flags], lengths: _Index, counts: Counter[str]
) -> tuple[_Flags, _Flags]:
    """Return terminated and truncated, [N] each."""
    never = np.zeros(int(lengths.sum()), np.bool_)
    last = never.copy()
    last[np.cumsum(lengths[lengths > 0]) - 1] = True
    terminated = flags.get(NEXT_TERMINATED, flags.get(NEXT_DONE, never))
    truncated = flags.get(NEXT_TRUNCATED, never).copy()
    wrong = np.flatnonzero((terminated | truncated) & ~last)
    if len(wrong):
        problem = f"a flag is set at step {wrong[0]:,}, within an episode ({len(wrong):,} such steps)"
        raise ConversionError(file.name, [problem], hint=f"the ends of episodes are determined by {plan.by}")
    counts["no-terminated"] = int(not {NEXT_TERMINATED, NEXT_DONE} & set(flags))
    counts["done-as-terminated"] = int(terminated.sum()) if NEXT_DONE in flags and NEXT_TERMINATED not in flags else 0
    counts["both-flags"] = int((terminated & truncated).sum())
    open_ends = last & ~(terminated | truncated)
    counts["end-without-flag"] = int(open_ends.sum())
    truncated |= open_ends
    return terminated, truncated
