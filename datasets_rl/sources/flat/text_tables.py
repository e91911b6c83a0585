"""Tables of text as arrays: CSV, TSV and JSON lines. A first pass finds the dtype of each column in all rows.

column cells           array
1, 2, 3                int64 [N]            -1.5, , 2        float64 [N], and NaN for an empty cell
true, False            bool [N]             [1, 2], [3, 4]   int64 [N, 2], also from numpy's [1. 2.]
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX, first_problems
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, Rows

_BATCH_ROWS = 4096
_KEPT_BATCHES = 4
_CELL_MAX_CHARS = 1 << 24
_LINE_MAX_BYTES = 256 << 20
_WORDS = {"true": 1, "false": 0}

Cells = Mapping[str, Sequence[Any]]
"""The cells of some rows by column: texts of a CSV file, or JSON values."""


@dataclass(slots=True)
class _Column:
    """What the cells of a column are, after some rows."""

    kinds: set[str] = field(default_factory=set)
    """Kinds of the cells: integer, number, word, text, empty, or the shape of a list."""
    place: int = 0
    """Row of the first cell that is neither a number nor empty."""

    def dtype(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
        """Return the dtype, the shape of a cell, and whether the cells are texts.

        Raises:
            ConversionError: If the cells have several kinds that no dtype holds.
        """
        lists = {kind for kind in self.kinds if kind.startswith("[")}
        if lists:
            if len(lists) > 1 or self.kinds - lists:
                kinds = join_names(sorted(self.kinds))
                raise ConversionError(name, [f"the cells are {kinds}, expected lists of the same length"])
            shape, kind = lists.pop().split(" of ")
            numbers = np.dtype(np.int64 if kind == "integer" else np.float64)
            return numbers, tuple(json.loads(shape)), False
        if self.kinds <= {"word"}:
            return np.dtype(np.bool_), (), False
        if self.kinds <= {"integer"}:
            return np.dtype(np.int64), (), False
        if self.kinds <= {"integer", "number", "empty"} and self.kinds != {"empty"}:
            return np.dtype(np.float64), (), False
        if "empty" in self.kinds or not self.kinds <= {"text", "word", "integer", "number"}:
            kinds = join_names(sorted(self.kinds))
            raise ConversionError(name, [f"the cells are {kinds}, expected numbers or texts (row {self.place:,})"])
        return TEXT, (), True


class TextTable(ArrayFile):
    """Open table of text. The rows are parsed in batches, which the arrays share."""

    is_table = True

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._path = name, path
        self._kept: deque[tuple[int, Cells]] = deque(maxlen=_KEPT_BATCHES)
        self._batches: Iterator[Cells] = iter(())
        self._next, self._count = 0, 0
        columns, rows = self._kinds()
        self.arrays, problems = {}, []
        for column, seen in columns.items():
            try:
                dtype, shape, text = seen.dtype(column)
            except ConversionError as error:
                problems += [f"{error.name}: {problem}" for problem in error.problems]
                continue
            self.arrays[column] = Array(rows, shape, dtype, text=text)
        if problems:
            raise ConversionError(name, first_problems(problems))

    @abstractmethod
    def parse(self) -> Iterator[Cells]:
        """Yield the cells of consecutive rows by column.

        Raises:
            ConversionError: If a row has other columns than the first row, or is not valid.
        """

    @staticmethod
    @abstractmethod
    def kinds(cells: Sequence[Any]) -> Iterable[str]:
        """Return the kind of each cell, as `_Column` lists them, or the single kind of all cells."""

    @staticmethod
    @abstractmethod
    def values(cells: Sequence[Any], array: Array) -> Rows:
        """Return the cells of a column as rows of an array, in the dtype of the array."""

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        for number in range(self._count):
            yield self.values(self._batch(number)[name], self.arrays[name])

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

    def _kinds(self) -> tuple[dict[str, _Column], int]:
        columns: dict[str, _Column] = {}
        rows = 0
        for cells in self.parse():
            for name, values in cells.items():
                column = columns.setdefault(name, _Column())
                for row, kind in enumerate(self.kinds(values), rows):
                    if kind not in column.kinds:
                        if not column.place and kind not in {"integer", "number", "empty"}:
                            column.place = row
                        column.kinds.add(kind)
            rows += len(next(iter(cells.values())))
            self._count += 1
        return columns, rows

    def __exit__(self, *details: object) -> None:
        self._batches = iter(())
        self._kept.clear()


class CsvFile(TextTable):
    """Open CSV or TSV file, compressed with gzip or not. The first row has the names of the columns."""

    @override
    def parse(self) -> Iterator[Cells]:
        with self._opened() as stream:
            tabs = self._path.name.lower().removesuffix(".gz").endswith(".tsv")
            lines = csv.reader(stream, delimiter="\t" if tabs else ",", strict=True, skipinitialspace=True)
            try:
                names = self._names(next(lines, []))
                for first in itertools.count(1, _BATCH_ROWS):
                    rows = list(itertools.islice(lines, _BATCH_ROWS))
                    if not rows:
                        return
                    self._check_widths(rows, len(names), first)
                    rows = [row for row in rows if row]
                    if rows:
                        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
                        columns.pop("", None)  # the index of a frame of pandas, which has no name
                        yield columns
            except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
                raise ConversionError(self.name, [f"line {lines.line_num:,} cannot be read: {error}"]) from error

    def _opened(self) -> AbstractContextManager[Iterable[str]]:
        if self._path.name.lower().endswith(".gz"):
            return gzip.open(self._path, "rt", encoding="utf-8-sig", newline="")
        return self._path.open(encoding="utf-8-sig", newline="")

    def _names(self, names: list[str]) -> list[str]:
        names = [name.strip() for name in names]
        repeated = sorted({name for name in names[1:] if names.count(name) > 1 or not name})
        if not names or all(_kind_of_text(name) in {"integer", "number"} for name in names):
            problem = "the first row has numbers" if names else "the file is empty"
            raise ConversionError(self.name, [f"{problem}, expected the names of the columns"])
        if repeated:
            problem = f"the columns {join_names([repr(name) for name in repeated], ITEMS_MAX)} have no unique name"
            raise ConversionError(self.name, [problem])
        return names

    def _check_widths(self, rows: Sequence[Sequence[str]], width: int, first: int) -> None:
        wrong = [(number, row) for number, row in enumerate(rows, first) if row and len(row) != width]
        if wrong:
            number, row = wrong[0]
            problem = f"row {number:,} has {len(row):,} cells, expected {width:,} ({len(wrong):,} such rows)"
            raise ConversionError(self.name, [problem])

    @staticmethod
    @override
    def kinds(cells: Sequence[str]) -> Iterable[str]:
        for dtype, kind in ((np.int64, "integer"), (np.float64, "number")):
            with suppress(ValueError, OverflowError):
                np.array(cells).astype(dtype)
                return [kind]
        return map(_kind_of_text, cells)

    @staticmethod
    @override
    def values(cells: Sequence[str], array: Array) -> Rows:
        if array.text:
            return list(cells)
        if array.shape:
            return np.array([_list_in(cell) for cell in cells], array.dtype).reshape(-1, *array.shape)
        if array.dtype == np.bool_:
            return np.array([_WORDS[cell.lower()] for cell in cells], np.bool_)
        if array.dtype.kind == "f":
            return np.array([cell or "nan" for cell in cells], np.str_).astype(array.dtype)
        return np.array([int(cell) for cell in cells], array.dtype)


class JsonLinesFile(TextTable):
    """Open file of JSON lines: an object for each row. The names within objects have slashes: ``obs/joints``."""

    @override
    def parse(self) -> Iterator[Cells]:
        names: list[str] = []
        with self._path.open("rb") as stream:
            first = 0
            while True:
                rows: list[dict[str, Any]] = []
                for line in iter(lambda: stream.readline(_LINE_MAX_BYTES), b""):
                    if line.strip():
                        rows.append(self._row(line, first + len(rows)))
                    if len(rows) == _BATCH_ROWS:
                        break
                if not rows:
                    return
                names = names or [*rows[0]]
                for number, row in enumerate(rows, first):
                    if row.keys() != set(names):
                        other = sorted(row.keys() ^ set(names))
                        problem = f"row {number:,} differs from the first row in {join_names(other, ITEMS_MAX)}"
                        raise ConversionError(self.name, [f"{problem}, expected the same names in every row"])
                first += len(rows)
                yield {name: [row[name] for row in rows] for name in names}

    def _row(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConversionError(self.name, [f"row {number:,} is not JSON: {error}"]) from error
        if not isinstance(value, dict):
            raise ConversionError(self.name, [f"row {number:,} is {type(value).__name__}, expected an object"])
        return dict(_leaves(value, ""))

    @staticmethod
    @override
    def kinds(cells: Sequence[Any]) -> Iterable[str]:
        return map(_kind_of_value, cells)

    @staticmethod
    @override
    def values(cells: Sequence[Any], array: Array) -> Rows:
        if array.text:
            return [cell if isinstance(cell, str) else json.dumps(cell) for cell in cells]
        if array.dtype.kind == "f":
            cells = [np.nan if cell is None else cell for cell in cells]
        return np.array(cells, array.dtype).reshape(-1, *array.shape)


def _kind_of_text(cell: str) -> str:
    if not cell:
        return "empty"
    if cell.lower() in _WORDS:
        return "word"
    if cell[0] in "[(":
        try:
            return _kind_of_list(_list_in(cell))
        except ValueError:
            return "text"
    for parse, kind in ((int, "integer"), (float, "number")):
        with suppress(ValueError):
            parse(cell)
            return kind if "_" not in cell else "text"
    return "text"


def _kind_of_value(cell: Any) -> str:
    if cell is None:
        return "empty"
    if isinstance(cell, bool):
        return "word"
    if isinstance(cell, (int, float)):
        return "integer" if isinstance(cell, int) else "number"
    return "text" if isinstance(cell, str) else _kind_of_list(cell)


def _leaves(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{path}{name}/")
        else:
            yield f"{path}{name}", inner


def _list_in(cell: str) -> Any:
    """Return the numbers of a list in a cell, as JSON, Python or numpy print lists: ``[1, 2]``, ``(1, 2)``, ``[1. 2.]``.

    Raises:
        ValueError: If the cell is not such a list.
    """
    if len(cell) > _CELL_MAX_CHARS:
        raise ValueError("the list is too long")
    text = cell.strip().replace("(", "[").replace(")", "]")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        inner = text[1:-1]
        if text[-1:] != "]" or "[" in inner or "," in inner.strip().strip(","):
            raise ValueError("not a list of numbers") from None
        return [float(number) for number in inner.replace(",", " ").split()]


def _kind_of_list(value: Any) -> str:
    try:
        numbers: NDArray[Any] = np.array(value)
    except ValueError:
        return "lists of other lengths"
    if numbers.dtype.kind not in "biuf" or not numbers.size:
        return "lists without numbers"
    return f"{list(numbers.shape)} of {'integer' if numbers.dtype.kind in 'iu' else 'number'}"
