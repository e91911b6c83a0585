"""Tables of text as arrays. A first pass over all rows finds the dtype of each column.

column cells           array
1, 2, 3                int64 [N]            -1.5, , 2        float64 [N], and NaN for an empty cell
true, False            bool [N]             [1, 2], [3, 4]   int64 [N, 2], also from numpy's [1. 2.]
                                            [0, 1], [0.5, 1] float64 [N, 2]
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, Rows
from datasets_rl.sources.flat.names import speaks_of_episodes, usual_keys

_BATCH_ROWS = 4096
_KEPT_BATCHES = 4
_CELL_SHOWN_CHARS = 40
EXACT_MAX = 1 << 53
"""Integers below this size are floats of 64 bits, exactly. A float of this size may be a rounded integer."""
INT64_MAX = (1 << 63) - 1

INTEGER, LONG, HUGE, NUMBER, POINT, WORD = (
    "integer",
    "long integer",
    "huge integer",
    "number",
    "number with a point",
    "word",
)
EMPTY, NULL, TEXTS, UNREADABLE = "empty", "null", "text", "unreadable list"
"""Kinds of cells. A list of numbers has the kind ``[2] of number``: its shape, and the kind of its elements.

long integer        fits into int64, and a float of 64 bits may round it
huge integer        does not fit into int64
word                true or false
unreadable list     has brackets or braces, and is neither a list of numbers nor an object
"""
_SUMS = {"sum", "total", "totals", "mean", "average", "avg", "median", "std", "min", "max", "count"}
"""Words of a row that sums up the rows above."""
_NUMBERS = {INTEGER, NUMBER, POINT, EMPTY, NULL}
_ELEMENT = re.compile(r"(.+?)(_\d+|\[\d+\])")

Cells = Mapping[str, Sequence[Any]]
"""The cells of some rows by column: texts of a CSV file, or JSON values."""


@dataclass(slots=True)
class Column:
    """Kinds of the cells of a column."""

    kinds: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Row and text of the first cell of each kind."""

    def array(self, name: str, rows: int) -> Array:
        """Return the description of the column as an array.

        Cells of several kinds that no dtype holds are an array of objects, which states the problem.
        """
        kinds = set(self.kinds)
        lists = {kind for kind in kinds if kind.startswith("[")}
        dtype: np.dtype[Any] | None = None
        shape: tuple[int, ...] = ()
        if lists:
            shapes, elements = ({kind.split(" of ")[part] for kind in lists} for part in (0, 1))
            if kinds == lists and len(shapes) == 1:
                shape, dtype = tuple(json.loads(shapes.pop())), _dtype(elements)
        elif TEXTS in kinds and _is_text(kinds, name) and not self._is_sum(name):
            return Array(rows, (), TEXT, text=True)
        else:
            dtype = _dtype(kinds)
        if dtype is None:
            return Array(rows, (), np.dtype(object), problem=self._problem(lists))
        return Array(rows, shape, dtype)

    def _is_sum(self, name: str) -> bool:
        """Return whether a word, such as "sum" in the last row, is among the numbers of episodes."""
        is_mixed = bool(self.kinds.keys() - {TEXTS, EMPTY}) and speaks_of_episodes(name)
        return is_mixed and self.kinds[TEXTS][1].strip("'\" ").lower() in _SUMS

    def _problem(self, lists: set[str]) -> str:
        if self.kinds.keys() <= {EMPTY, NULL}:
            return "every cell is empty"
        shown = join_names([f"{kind} ({text} at row {row:,})" for kind, (row, text) in sorted(self.kinds.items())])
        if HUGE in " ".join(self.kinds):
            return f"the cells are {shown}, expected integers that fit into int64"
        if LONG in " ".join(self.kinds):
            return f"the cells are {shown}: float64 does not hold such integers exactly"
        return f"the cells are {shown}, expected {'lists of the same shape' if lists else 'numbers, or texts alone'}"


def _dtype(kinds: set[str]) -> np.dtype[Any] | None:
    """Return the dtype that holds cells of some kinds exactly, or None."""
    if kinds == {WORD}:
        return np.dtype(np.bool_)
    if kinds <= {INTEGER, LONG}:
        return np.dtype(np.int64)
    return np.dtype(np.float64) if kinds <= _NUMBERS and not kinds <= {EMPTY, NULL} else None


def _is_text(kinds: set[str], name: str) -> bool:
    """Return whether cells, of which some are texts, are texts. A column of numbers may have a text for a missing number."""
    return NULL not in kinds and (kinds <= {TEXTS, EMPTY} or not is_usual(name))


def is_usual(name: str) -> bool:
    """Return whether a column is a field by its usual name, or an element of such a field. Infos may be of any kind."""
    match = _ELEMENT.fullmatch(name)
    keys = usual_keys([name, *([match[1]] if match else [])]).values()
    return any(key[0] != "info" for key in keys)


def integer_kind(value: int) -> str:
    """Return the kind of an integer."""
    if -EXACT_MAX < value < EXACT_MAX:
        return INTEGER
    return LONG if -INT64_MAX - 1 <= value <= INT64_MAX else HUGE


def is_exact(numbers: NDArray[Any]) -> bool:
    """Return whether floats of 64 bits hold numbers exactly, also if the numbers were integers before."""
    return not ((numbers >= EXACT_MAX) | (numbers <= -EXACT_MAX)).any()


class UnlikeObjectsError(Exception):
    """Raised during the first pass for a column of objects that have other names in some rows, and no usual name."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


class TextTable(ArrayFile):
    """Open table of text. The rows are parsed in batches, which the arrays share.

    Raises:
        ConversionError: If the cells of a column with a usual name have no common dtype, or a row is not valid. The
            error names every such column.
    """

    is_table = True
    first_row = 0
    """Number of the first row, for messages."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._path = name, path
        self._kept: deque[tuple[int, Cells]] = deque(maxlen=_KEPT_BATCHES)
        self._batches: Iterator[Cells] = iter(())
        self._next, self._count = 0, 0
        self.whole: set[str] = set()
        """Columns of objects that are not columns of the objects' values. They cannot be read."""
        columns, rows = self._kinds()
        self.arrays = {column: seen.array(column, rows) for column, seen in self.settled(columns).items()}
        problems = [f"{column}: {array.problem}" for column, array in self.arrays.items() if array.problem]
        if any(array.problem and is_usual(column) for column, array in self.arrays.items()):
            raise ConversionError(name, first_problems(problems))

    @abstractmethod
    def parse(self) -> Iterator[Cells]:
        """Yield the cells of consecutive rows by column.

        Raises:
            ConversionError: If a row has other columns than the first row, or is not valid.
        """

    @abstractmethod
    def kinds(self, cells: Sequence[Any]) -> Iterable[str]:
        """Return the kind of each cell, or the single kind of all cells."""

    @abstractmethod
    def values(self, cells: Sequence[Any], array: Array) -> Rows:
        """Return the cells of a column as rows of an array, in the dtype of the array."""

    def settled(self, columns: dict[str, Column]) -> dict[str, Column]:
        """Return the columns after the first pass, in which kinds may depend on other columns."""
        return columns

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        array = self.arrays[name]
        if array.problem:
            raise ConversionError(self.name, [f"{name}: {array.problem}"])
        for number in range(self._count):
            yield self.values(self._batch(number)[name], array)

    def _batch(self, number: int) -> Cells:
        """Return a batch. The last batches are kept. For an earlier batch, the file is parsed again from the start."""
        for kept, cells in self._kept:
            if kept == number:
                return cells
        if number < self._next or self._next == 0:
            self._batches, self._next = self.parse(), 0
        for cells in self._batches:
            self._kept.append((self._next, cells))
            self._next += 1
            if self._next > number:
                return cells
        raise ConversionError(self.name, ["the file has fewer rows than before, expected a file that does not change"])

    def _kinds(self) -> tuple[dict[str, Column], int]:
        while True:
            try:
                return self._kinds_of_pass()
            except UnlikeObjectsError as error:
                self.whole.add(error.column)

    def _kinds_of_pass(self) -> tuple[dict[str, Column], int]:
        columns: dict[str, Column] = {}
        rows = self._count = 0
        for cells in self.parse():
            for name, values in cells.items():
                column = columns.setdefault(name, Column())
                for row, kind in enumerate(self.kinds(values)):
                    if kind not in column.kinds:
                        column.kinds[kind] = self.first_row + rows + row, _shown(values[row])
            rows += len(next(iter(cells.values())))
            self._count += 1
        return columns, rows

    def __exit__(self, *details: object) -> None:
        self._batches = iter(())
        self._kept.clear()


def batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield rows in lists of the number of rows of a batch."""
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _shown(cell: Any) -> str:
    text = cell if isinstance(cell, str) else json.dumps(cell)
    return repr(text if len(text) <= _CELL_SHOWN_CHARS else f"{text[: _CELL_SHOWN_CHARS - 3]}...")


def kind_of_list(value: Any) -> str:
    """Return the kind of a list of numbers: the shape, and the kind that all elements have."""
    if (flat := _flattened(value)) is None:
        return UNREADABLE
    shape, elements = flat
    kinds = {kind_of_number(element) for element in elements}
    if kinds <= {INTEGER, LONG}:
        kind = LONG if LONG in kinds else INTEGER
    elif HUGE in kinds or kinds == {WORD}:
        kind = HUGE if HUGE in kinds else WORD
    elif kinds & {WORD, LONG}:
        return UNREADABLE
    else:
        kind = NUMBER
    return f"{list(shape)} of {kind}"


def kind_of_number(value: Any) -> str:
    """Return the kind of a JSON value that is not a container."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return WORD
    if isinstance(value, int):
        return integer_kind(value)
    return NUMBER if isinstance(value, float) else TEXTS


def _flattened(value: Any) -> tuple[tuple[int, ...], list[Any]] | None:
    """Return the shape and the elements of nested lists of numbers, or None if the lists are not an array."""
    shape: list[int] = []
    level = [value]
    while level and all(isinstance(item, list) for item in level):
        if len({len(item) for item in level}) > 1:
            return None
        shape.append(len(level[0]))
        level = [inner for item in level for inner in item]
    is_numeric = level and all(item is None or isinstance(item, (bool, int, float)) for item in level)
    return (tuple(shape), level) if is_numeric else None


def leaves_of(value: Mapping[str, Any], path: str, whole: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested objects, with the path of their names. Objects in `whole` are values."""
    for name, inner in value.items():
        if isinstance(inner, dict) and f"{path}{name}" not in whole:
            yield from leaves_of(inner, f"{path}{name}/", whole)
        else:
            yield f"{path}{name}", inner
