"""Mapping of the arrays of a file to columns and flags, as the layout of the file states them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets_rl.errors import join_names
from datasets_rl.format.images.base import Form
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.streams import ITEMS_MAX, refuse
from datasets_rl.sources.flat.arrays import Array, ArrayFile
from datasets_rl.sources.flat.layout import MARKED, Field, Layout
from datasets_rl.sources.flat.names import OF_EPISODES
from datasets_rl.sources.values import WIDENED, column_differences
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_COST,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_SUCCESS,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
)

SUPPORTED = tuple(np.dtype(name) for name in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8"))
"""Dtypes of arrays that can be stored."""
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
_SINGLE = (NEXT_REWARD, NEXT_COST, NEXT_SUCCESS)
"""Fields with a number for each step, [1]."""
_VECTORS = (OBSERVATION, ACTION)
"""Fields that are vectors of continuous spaces: a float for each step is a vector [1], and an integer is a number []."""
_TURNS: Mapping[str, tuple[int, ...]] = {"": (), "HWC to CHW": (2, 0, 1), "CHW to HWC": (1, 2, 0)}


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """Array, and the column that the array is converted to."""

    array: str
    column: Column
    turn: tuple[int, ...] = ()
    """New order of the axes of a row, or empty if the axes are not transposed."""
    constant: float | None = None

    @property
    def state(self) -> bool:
        """Whether the column has states, which exist before and after every step."""
        return self.column.shared


@dataclass(frozen=True, slots=True)
class Plan:
    """Mapping of the arrays of a file to columns and flags."""

    layout: Layout
    parts: tuple[ColumnSlice, ...]
    following: Mapping[Key, str]
    """Names of the arrays of next observations, by the key of the observation."""
    flags: Mapping[Key, str]
    """Names of the arrays of end flags."""
    finals: Mapping[Key, str]
    """Names of the arrays of the states after the last step of each episode, by key, or empty if there are no such arrays."""
    by: str
    marks: str = ""
    left_out: tuple[str, ...] = ()
    episode_flags: Mapping[Key, str] = dataclasses.field(default_factory=dict)
    """Names of the arrays of end flags that have a flag for each episode."""
    success: str = ""
    """Name of the array or of the number with the success of each episode, if the file has this."""
    of_episodes: Mapping[str, np.dtype[Any]] = dataclasses.field(default_factory=dict)
    """Names and dtypes of the numbers of episodes that attributes state."""
    widened: int = 0
    """Number of columns that are stored with a wider dtype than in the file."""

    @property
    def step_arrays(self) -> tuple[str, ...]:
        """Names of the arrays with a row for each step, without the array of `marks`."""
        steps = (part.array for part in self.parts if part.array and not part.state)
        return (*steps, *self.flags.values(), *self.following.values())

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column, including the flags."""
        return (*(part.column for part in self.parts), *END_COLUMNS)


def is_empty(file: ArrayFile, layout: Layout) -> bool:
    """Return whether a file has no steps: the arrays of steps have no rows, and the arrays of states have at most one row."""
    rows = [
        (field.is_state, file.arrays[field.array].rows)
        for field in layout.fields_of(file.readable)
        if field.array in file.arrays
    ]
    states = [count for is_state, count in rows if is_state]
    steps = [count for is_state, count in rows if not is_state]
    return bool(rows) and not any(steps) and max(states, default=0) <= (1 if steps else 0)


def usual_fields(layout: Layout, arrays: Mapping[str, Array]) -> tuple[Field, ...]:
    """Return the fields of arrays, without arrays of a usual name that have a row for each episode."""
    fields = layout.fields_of(arrays)
    rows = {arrays[field.array].rows for field in fields if field.key[:1] == ACTION and field.array in arrays}
    return tuple(
        field
        for field in fields
        if field.key not in OF_EPISODES
        or field in layout.fields
        or not rows
        or field.array not in arrays
        or arrays[field.array].rows in rows
    )


def _is_info_of_episodes(file: ArrayFile, field: Field) -> bool:
    """Return whether a field of info has a value for each episode, such as a seed, in a file that separates the episodes."""
    episodes = {len(lengths) for lengths in file.lengths.values()}
    array = file.arrays.get(field.array)
    is_info = field.key[0] == "info" and field.array not in file.lengths
    return is_info and array is not None and bool(file.way) and {array.rows} == episodes


def plan_layout(file: ArrayFile, layout: Layout, known_columns: Sequence[Column] | None = None) -> Plan:
    """Map the arrays of a file to columns and flags.

    Args:
        file: The file.
        layout: The layout of the file.
        known_columns: The columns of the first file, which the file must have too.

    Raises:
        ConversionError: If the file does not match the layout. The error names every problem.
    """
    fields = usual_fields(layout, {name: file.arrays[name] for name in file.readable})
    fields = tuple(field for field in fields if field in layout.fields or not _is_info_of_episodes(file, field))
    problems = list(_missing_problems(file, fields))
    by, marks = (file.way, "") if file.way else layout.end_marks(file.arrays, fields)
    if by in MARKED and marks not in file.arrays:
        problems.append(f"it has no array {marks}, which marks the episodes")
    present = [field for field in fields if field.array in file.arrays]
    problems.extend(
        problem
        for field in present
        for problem in _array_problems(field, file.arrays[field.array], vectors=layout.vectors)
    )
    finals = {field.key: layout.final.format(field.array) for field in present if field.is_state and layout.final}
    problems.extend(_final_problems(file, [*finals.values(), *filter(None, [layout.final_known])]))
    refuse(file.name, problems)
    after = _after_fields(fields)
    parts = tuple(
        _column_slice(field, file.arrays.get(field.array), vectors=layout.vectors)
        for field in fields
        if field.key not in _FLAGS and field not in after
    )
    result = Plan(
        layout,
        parts,
        {field.key[1:]: field.array for field in after},
        {field.key: field.array for field in fields if field.key in _FLAGS},
        finals,
        by,
        marks,
        tuple(sorted(_unused_arrays(file, fields) - {marks, layout.final_known, *finals.values()})),
        widened=sum(file.arrays[part.array].dtype in WIDENED for part in parts if part.array),
    )
    problems.extend(_following_problems(result, file))
    problems.extend(column_differences(result.columns, known_columns or result.columns, layout.unit))
    refuse(file.name, problems)
    return result


_AFTER = (NEXT, *OBSERVATION)


def _after_fields(fields: Sequence[Field]) -> list[Field]:
    """Return the fields of next states: of next observations, except where the observation is not a state, and of others."""
    of_states, of_steps = ({field.key for field in fields if field.is_state is state} for state in (True, False))
    return [
        field
        for field in fields
        if field.key[0] == NEXT
        and (field.key[1:] in of_states or (field.key[:2] == _AFTER and field.key[1:] not in of_steps))
    ]


def _unused_arrays(file: ArrayFile, fields: Sequence[Field]) -> set[str]:
    return set(file.arrays) - {field.array for field in fields}


def _final_problems(file: ArrayFile, names: Sequence[str]) -> Iterator[str]:
    rows = {name: file.arrays[name].rows for name in names if name in file.arrays}
    yield from (f"it has no array {name}, of the states after the last steps" for name in names if name not in rows)
    if len(set(rows.values())) > 1:
        yield f"{', '.join(f'{name} has {count:,} rows' for name, count in rows.items())}, expected equal numbers"


def _missing_problems(file: ArrayFile, fields: Sequence[Field]) -> Iterator[str]:
    arrays = join_names([f"{name} {array}" for name, array in file.arrays.items()], ITEMS_MAX) or "none"
    for field in fields:
        if field.array and field.array not in file.arrays:
            yield f"it has no array {field.array}, which is {dotted_name(field.key)}, only {arrays}"
    states = any(field.state for field in fields)
    for key in (*(() if states else (OBSERVATION,)), ACTION, NEXT_REWARD):
        # The actions of agents are in a group: ("agents", "action").
        if not any(field.key[: len(key)] == key or (key == ACTION and ACTION[0] in field.key) for field in fields):
            yield f"no array is described or named as {dotted_name(key)}, only {arrays}"


def _array_problems(field: Field, array: Array, *, vectors: bool) -> Iterator[str]:
    name, shape = field.array, [array.rows, *array.shape]
    single = field.key in {*_FLAGS, *_SINGLE}
    is_stored = array.encoded or array.video
    yield from _dtype_problems(name, array, numeric=single or field.key[:2] == _AFTER)
    if single and math.prod(array.shape) != 1:
        yield f"{name} has shape {shape}, expected one number per row"
    if field.layout and (len(array.shape) != 3 or array.text or is_stored):
        yield f"{name} has shape {shape}, expected images, three axes per row, to convert {field.layout}"
    if not array.rows:
        yield f"{name} has no row"
    if array.encoded and not array.shape:
        yield f"{name} has no bytes in its first row, expected a PNG or JPEG image"
    if 0 in array.shape:
        yield f"{name} has shape {shape}, which has no values"
    for bound in (field.low, field.high):
        axes = np.shape(bound) if bound is not None and not array.text else ()
        stored = _shape_of(field, array, vectors=vectors)
        if not _broadcasts(axes, stored):
            yield f"{name} has rows of shape {list(stored)}, but the bounds have {list(axes)}"


def _dtype_problems(name: str, array: Array, *, numeric: bool) -> Iterator[str]:
    if (array.text or array.encoded or array.video) and numeric:
        yield f"{name} has {'strings' if array.text else 'images'}, expected numbers"
    elif array.problem:
        yield f"{name} cannot be read: {array.problem}"
    elif array.shape if array.text else array.dtype not in SUPPORTED:
        kind = f"texts {[array.rows, *array.shape]}" if array.text else f"dtype {array.dtype}"
        objects = "Python objects" if array.dtype.hasobject else kind
        yield f"{name} has {objects}, expected booleans, integers that fit into int64, or floats"


def _broadcasts(axes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(axes, shape) == shape
    except ValueError:
        return False


def _column_slice(field: Field, array: Array | None, *, vectors: bool) -> ColumnSlice:
    key = field.key
    if array is None:
        return ColumnSlice("", Column(key, np.dtype(np.float32), (1,)), constant=field.constant)
    turn = _TURNS[field.layout]
    shape = tuple(array.shape[axis] for axis in turn) or _shape_of(field, array, vectors=vectors)
    dtype = WIDENED.get(array.dtype, array.dtype)
    dtype = np.dtype(field.floats) if field.floats and dtype.kind == "f" else dtype
    form: Form = "encoded" if array.encoded else "video" if array.video else field.form
    dtype = np.dtype(np.uint8) if form == "compressed" else dtype
    column = Column(key, dtype, shape, shared=field.is_state, text=array.text, form=form)
    return ColumnSlice(field.array, column, turn)


def _shape_of(field: Field, array: Array, *, vectors: bool) -> tuple[int, ...]:
    """Return the shape of the stored rows of an array, before the axes of images are transposed."""
    if field.key in _SINGLE:
        return (1,)
    is_vector = vectors or (field.key in _VECTORS and array.dtype.kind == "f")
    return array.shape or ((1,) if is_vector else ())


def _following_problems(plan: Plan, file: ArrayFile) -> Iterator[str]:
    by_key = {part.column.key: part for part in plan.parts}
    for key, name in plan.following.items():
        part, array = by_key.get(key), file.arrays[name]
        if part is None:
            yield f"{name} is the next {dotted_name(key)}, but there is no {dotted_name(key)}"
        elif array.shape != file.arrays[part.array].shape or array.dtype.kind != file.arrays[part.array].dtype.kind:
            yield f"{name} is {array}, but {part.array} is {file.arrays[part.array]}"
    missing = [
        dotted_name(key)
        for key, part in by_key.items()
        if key[0] == OBSERVATION[0] and part.state and key not in plan.following
    ]
    if plan.following and missing:
        yield f"{', '.join(missing)} has no next observation, unlike {dotted_name(next(iter(plan.following)))}"
