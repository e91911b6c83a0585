"""Files of other structures, as files of flat rows.

axis       observations [E, T, D]         the first axis counts the episodes, the second axis counts the rows
group      demo_0/obs, demo_1/obs, ...    a group for each episode
suffix     obs_0, obs_1, ...              an array for each episode
elements   columns obs_0, obs_1, ...      of a table: a column for each element of an array
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX, first_problems
from datasets_rl.sources.flat.arrays import Array, ArrayFile, RowReader, Rows
from datasets_rl.sources.flat.names import usual_keys
from datasets_rl.sources.flat.text_tables import EXACT_MAX
from datasets_rl.ted.keys import ACTION, NEXT, OBSERVATION, natural_order

_Index = NDArray[np.int64]
_NUMBERED = re.compile(r"(.*?[^\d/])(\d+)")
_VECTORS = (OBSERVATION, ACTION, (NEXT, *OBSERVATION))
_ELEMENT = re.compile(r"(.+?)(?:_(\d+)|\[(\d+)\])")


@dataclass(frozen=True, slots=True)
class Member:
    """Array of an episode: the name of the array, the name without the episode, and the name of the episode."""

    array: str
    name: str
    episode: str


def members_in_groups(arrays: Iterable[str], pattern: str = "") -> list[Member]:
    """Return the arrays in groups that match a pattern, such as ``data/demo_*``, by default in groups with a number."""
    members = []
    for array in arrays:
        parts = array.split("/")
        numbered = (depth for depth, part in enumerate(parts[:-1], 1) if part[-1:].isdecimal())
        depth = pattern.count("/") + 1 if pattern else next(numbered, len(parts))
        group, name = "/".join(parts[:depth]), "/".join(parts[depth:])
        if name and fnmatchcase(group, pattern or "*"):
            members.append(Member(array, name, group))
    return members


def members_by_suffix(arrays: Iterable[str]) -> list[Member]:
    """Return the arrays with a name that ends with a number, such as ``actions_0`` and ``actions1``."""
    matches = ((array, _NUMBERED.fullmatch(array)) for array in arrays)
    return [Member(array, match[1].rstrip("_-."), str(int(match[2]))) for array, match in matches if match]


class JoinedFile(ArrayFile):
    """File with an array for each episode: the arrays of all episodes follow each other.

    actions_0   [3, 2]
    actions_1   [5, 2]       actions [8, 2], and the lengths 3 and 5
    success_0   []
    success_1   []           success [2], a number for each episode

    Raises:
        ConversionError: If an episode lacks an array that another episode has, or arrays of the same name have other
            dtypes or shapes of a row. The error names every problem.
    """

    def __init__(self, file: ArrayFile, members: Sequence[Member]) -> None:
        self.take_notes_of(file)
        self._file = file
        episodes = sorted({member.episode for member in members}, key=natural_order)
        self.episode_names = episodes
        joined_names = {member.array for member in members}
        self.scalars = {name: value for name, value in file.scalars.items() if name not in joined_names}
        self._members: dict[str, list[str]] = {}
        by_name: dict[str, dict[str, str]] = {}
        for member in members:
            by_name.setdefault(member.name, {})[member.episode] = member.array
        problems: list[str] = []
        joined: dict[str, Array] = {}
        self.lengths = {}
        self._scalars: dict[str, NDArray[Any]] = {}
        for name, arrays in by_name.items():
            if any(array in file.scalars for array in arrays.values()):
                if arrays.keys() < {*episodes} or any(array in file.arrays for array in arrays.values()):
                    continue
                self._scalars[name] = np.stack([file.scalars[arrays[episode]] for episode in episodes])
                joined[name] = Array(len(episodes), (), self._scalars[name].dtype)
                continue
            if missing := [episode for episode in episodes if episode not in arrays]:
                problems.append(f"{join_names(missing, ITEMS_MAX)} has no array {name}, unlike {next(iter(arrays))}")
                continue
            self._members[name] = [arrays[episode] for episode in episodes]
            parts = [file.arrays[array] for array in self._members[name]]
            first = parts[0]
            problems += [
                f"{array} is {other}, expected rows like {self._members[name][0]}, {first}"
                for array, other in zip(self._members[name], parts, strict=True)
                if replace(other, rows=0) != replace(first, rows=0)
            ]
            self.lengths[name] = np.array([array.rows for array in parts], np.int64)
            joined[name] = replace(first, rows=int(self.lengths[name].sum()))
        if problems:
            raise ConversionError(file.name, first_problems(problems))
        self.arrays = {**joined, **{name: array for name, array in file.arrays.items() if name not in joined_names}}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name in self._scalars:
            yield self._scalars[name]
            return
        for array in self._members.get(name, [name]):
            yield from self._file.blocks(array, rows)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


class BatchedFile(ArrayFile):
    """File with arrays of E episodes, [E, T, ...]: rows follow each other, and rows of padding are left out.

    observations  [E, T + 1, D]       observations [E * (T + 1), D]
    actions       [E, T, A]           actions [E * T, A]

    Args:
        file: The file.
        names: Names of the arrays with the axes of episodes and rows.
        steps: Number of steps of each episode, [E], where the rest of the T rows is padding. By default all rows are
            steps.

    Raises:
        ConversionError: If the arrays have other numbers of episodes, or other numbers of rows than T and T + 1.
    """

    def __init__(self, file: ArrayFile, names: Sequence[str], steps: _Index | None = None) -> None:
        self.take_notes_of(file)
        self._file = file
        shapes = {name: [file.arrays[name].rows, *file.arrays[name].shape] for name in names}
        episodes = {shape[0] for shape in shapes.values()}
        rows = sorted({shape[1] for shape in shapes.values()})
        if len(episodes) > 1 or rows[-1] - rows[0] > 1:
            stated = ", ".join(f"{name} is {shape}" for name, shape in shapes.items())
            raise ConversionError(
                file.name, [f"{stated}, expected [E, T, ...] or [E, T + 1, ...] with equal E and equal T"]
            )
        count, least = episodes.pop(), rows[0]
        steps = np.full(count, least, np.int64) if steps is None else steps
        if len(steps) != count or (steps < 0).any() or (steps > least).any():
            problem = f"the lengths are {len(steps):,} numbers from {steps.min(initial=0)} to {steps.max(initial=0)}"
            raise ConversionError(file.name, [f"{problem}, expected {count:,} numbers from 0 to {least:,}"])
        self.lengths = {name: steps + (shape[1] - least) for name, shape in shapes.items()}
        flat = {
            name: replace(file.arrays[name], rows=int(self.lengths[name].sum()), shape=file.arrays[name].shape[1:])
            for name in names
        }
        self.arrays = {**file.arrays, **flat}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name not in self.lengths:
            yield from self._file.blocks(name, rows)
            return
        width, lengths, first = self._file.arrays[name].shape[0], self.lengths[name], 0
        for block in self._file.blocks(name, max(1, rows // width)):
            values: NDArray[Any] = np.asarray(block)
            own = lengths[first : first + len(values)]
            first += len(values)
            if (own == width).all():
                yield values.reshape(len(values) * width, *values.shape[2:])
            else:
                yield values[np.arange(width) < own[:, None]]

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


class ElementsFile(ArrayFile):
    """Table with a column for each element of an array: the columns are a single array.

    x_0, x_1, x_2 or x[0], x[1], x[2]        x [N, 3]
    """

    def __init__(self, file: ArrayFile, elements: Mapping[str, Sequence[str]]) -> None:
        self.take_notes_of(file)
        self._file, self._elements = file, elements
        joined_columns = {column for columns in elements.values() for column in columns}
        joined = {
            name: Array(
                file.arrays[columns[0]].rows,
                (len(columns),),
                np.result_type(*(file.arrays[column].dtype for column in columns)),
            )
            for name, columns in elements.items()
        }
        self.arrays = {**joined, **{name: array for name, array in file.arrays.items() if name not in joined_columns}}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name not in self._elements:
            yield from self._file.blocks(name, rows)
            return
        readers = [RowReader(self._file, column, rows) for column in self._elements[name]]
        array = self.arrays[name]
        for start in range(0, array.rows, rows):
            stop = min(start + rows, array.rows)
            columns = [np.asarray(reader.read(start, stop)).reshape(stop - start) for reader in readers]
            if array.dtype.kind == "f":
                self._check_exact(name, columns, start)
            yield np.stack(columns, axis=1).astype(array.dtype, copy=False)
        for reader in readers:
            reader.finish()

    def _check_exact(self, name: str, columns: Sequence[NDArray[Any]], start: int) -> None:
        """Check that no integer of a column is too large for the floats of the other columns.

        Raises:
            ConversionError: If an integer would be rounded.
        """
        for column, values in zip(self._elements[name], columns, strict=True):
            if values.dtype.kind in "iu" and len(
                large := np.flatnonzero((values >= EXACT_MAX) | (values <= -EXACT_MAX))
            ):
                row = start + int(large[0])
                problem = f"{column} is {values[large[0]]} at row {row:,}, which a float of 64 bits may round"
                hint = f"the other columns of {name} have floats: state the columns of {name} without {column} in dataset.toml"
                raise ConversionError(self.name, [problem], hint=hint)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def elements_of_arrays(file: ArrayFile, taken: Collection[str]) -> dict[str, list[str]]:
    """Return the columns of each array of a table, in order: the numbers begin with 0 or 1, and none is missing.

    A single column with the number 0 is a vector [1] of observations or actions, and otherwise keeps the name of the column.

    Args:
        file: The table.
        taken: Names of columns that are arrays themselves.
    """
    elements: dict[str, dict[int, str]] = {}
    for column, array in file.arrays.items():
        match = _ELEMENT.fullmatch(column)
        if match and column not in taken and not array.shape and not array.text and array.dtype.kind in "biuf":
            elements.setdefault(match[1], {})[int(match[2] or match[3])] = column
    complete = {}
    for name, columns in elements.items():
        first = min(columns)
        whole = sorted(columns) == [*range(first, first + len(columns))]
        is_vector = len(columns) > 1 or (not first and usual_keys([name]).get(name) in _VECTORS)
        if whole and first <= 1 and is_vector and name not in file.arrays:
            complete[name] = [columns[number] for number in sorted(columns)]
    return complete


def padded_steps(file: ArrayFile, name: str) -> _Index:
    """Return the number of steps of each episode, [E], from an array of numbers [E] or a mask of the steps, [E, T].

    Raises:
        ConversionError: If the array is neither, or a step follows padding.
    """
    array = file.arrays[name]
    values = np.asarray(file.read_all(name))
    if values.ndim == 1 and values.dtype.kind in "iu":
        return values.astype(np.int64)
    values = values.reshape(array.rows, -1)
    is_step = values == 1
    if values.dtype.kind not in "biuf" or not (is_step | (values == 0)).all():
        raise ConversionError(file.name, [f"{name} is {array}, expected lengths [E] or a mask of 0 and 1, [E, T]"])
    steps: _Index = is_step.sum(1, dtype=np.int64)
    if late := np.flatnonzero((is_step != (np.arange(values.shape[1]) < steps[:, None])).any(1)).tolist():
        problem = f"{name} of episode {late[0]:,} has steps after padding, expected padding at the end of an episode"
        raise ConversionError(file.name, [problem])
    return steps
