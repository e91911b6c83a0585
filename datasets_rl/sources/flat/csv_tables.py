"""CSV files as tables of text: compressed or not, with commas, semicolons, tabs or spaces, and with or without a header."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.gz import GzipReader
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import Array, Rows
from datasets_rl.sources.flat.text_tables import (
    EMPTY,
    INTEGER,
    NUMBER,
    POINT,
    TEXTS,
    UNREADABLE,
    WORD,
    Cells,
    Column,
    TextTable,
    UnlikeObjectsError,
    batches,
    integer_kind,
    is_exact,
    is_usual,
    kind_of_list,
    leaves_of,
)

_CELL_MAX_CHARS = 1 << 24
_LINE_MAX_CHARS = 1 << 26
_NUMBER_MAX_CHARS = 64
_SHOWN_ROWS = 3
_WORDS = {"true": 1, "false": 0}
_DELIMITERS = (",", ";", "\t")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DECIMAL, _COMMA = "number with a decimal comma", "number with a comma"
"""``0,5`` and ``12,34`` have a decimal comma. ``1,234`` may also have a separator of thousands."""
_COMMAS = re.compile(r"[+-]?(\d*),(\d*)([eE][+-]?\d+)?")
_ARRAY = re.compile(r"[\[({]|(array|tensor)\(")


class NoHeaderError(ConversionError):
    """Error about a table whose first row has numbers instead of names."""

    def __init__(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        problem = f"the first row has numbers, {', '.join(rows[0][:ITEMS_MAX])}, expected the names of the columns"
        hint = f"name the {len(rows[0]):,} columns in dataset.toml, columns = [...], or in the first row of the file"
        super().__init__(name, [problem], hint=hint)
        self.rows = rows
        """The first rows of the file."""


class CsvFile(TextTable):
    """Open CSV or TSV file, compressed with gzip or not.

    The first row has the names of the columns, or `columns` has them. Cells with objects are columns themselves:
    ``{"x": 1}`` in the column ``state`` is the column ``state/x``. The table may have semicolons or tabs instead of
    commas, and then a decimal comma.

    Raises:
        NoHeaderError: If the first row has a number, and there are no `columns`.
        ConversionError: As of `TextTable`.
    """

    def __init__(self, path: Path, name: str, columns: Sequence[str] = ()) -> None:
        self._columns = columns
        self.first_row = 0 if columns else 1
        self._delimiter = self._own_delimiter = ","
        self._has_commas = False
        self._is_unended = False
        self._objects: dict[str, list[str]] = {}
        super().__init__(path, name)
        self.decisions = {
            "other-delimiter": int(self._delimiter != self._own_delimiter),
            "decimal-comma": int(self._has_commas),
            "unended-line": int(self._is_unended),
        }

    @override
    def parse(self) -> Iterator[Cells]:
        with self._opened() as texts:
            lines = csv.reader(texts, delimiter=self._delimiter, strict=True, skipinitialspace=True)
            try:
                yield from self._batches_of(lines)
            except (csv.Error, UnicodeError) as error:
                raise ConversionError(self.name, [f"line {lines.line_num:,} cannot be read: {error}"]) from error

    def _batches_of(self, lines: Iterator[list[str]]) -> Iterator[Cells]:
        rows = filter(None, lines)
        head = list(itertools.islice(rows, 1 + _SHOWN_ROWS))
        names = [*self._columns] or self._names(head)
        first = self.first_row
        for batch in batches(itertools.chain(head[first:], rows)):
            self._check_widths(batch, len(names), first)
            columns = [*zip(names, zip(*batch, strict=True), strict=True)]
            if any(any(cells) for name, cells in columns[1:] if not name):
                raise ConversionError(self.name, ["a column has values and no name, expected a name for each column"])
            # The first column without a name is the index of a frame of pandas.
            yield dict(self._expanded({name: cells for name, cells in columns if name}, first))
            first += len(batch)

    def _expanded(self, columns: Cells, first: int) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the columns, with the columns of objects as the columns of the objects' values."""
        for name, cells in columns.items():
            names = self._objects.get(name)
            if names is None:
                names = self._objects[name] = [*_leaves_of(cells[0])]
            if not names or name in self.whole:
                yield name, cells
                continue
            rows = [_leaves_of(cell) for cell in cells]
            for row, leaves in enumerate(rows, first):
                if leaves.keys() != {*names}:
                    if not is_usual(name):
                        raise UnlikeObjectsError(name)
                    problem = f"{name} has {join_names([*leaves], ITEMS_MAX) or 'no object'} in row {row:,}"
                    raise ConversionError(self.name, [f"{problem}, expected {join_names(names, ITEMS_MAX)}"])
            yield from ((f"{name}/{leaf}", [leaves[leaf] for leaves in rows]) for leaf in names)

    @contextmanager
    def _opened(self) -> Iterator[Iterator[str]]:
        """Open the file as lines of a bounded length, and find the delimiter."""
        with ExitStack() as closing:
            stream: Any = closing.enter_context(self._path.open("rb"))
            if self._path.name.lower().endswith(".gz"):
                stream = io.BufferedReader(GzipReader(stream, self.name))
            encoding = "utf-16" if stream.peek(2)[:2] in _UTF16 else "utf-8-sig"
            text = closing.enter_context(io.TextIOWrapper(stream, encoding, newline=""))
            lines = self._lines(text)
            try:
                first = next(lines, "")
            except UnicodeError as error:
                raise ConversionError(self.name, [f"line 1 cannot be read: {error}"]) from error
            self._delimiter = self._delimiter_of(first)
            lines = itertools.chain([first], lines)
            yield (line.strip() for line in lines) if self._delimiter == " " else lines

    def _lines(self, text: TextIO) -> Iterator[str]:
        while line := text.readline(_LINE_MAX_CHARS):
            self._is_unended = line[-1] not in "\r\n"
            if len(line) == _LINE_MAX_CHARS:
                raise ConversionError(self.name, [f"a line has more than {_LINE_MAX_CHARS:,} characters"])
            yield line

    def _delimiter_of(self, line: str) -> str:
        """Return the delimiter: of the name of the file, or else the only one that separates the first line.

        Spaces separate the numbers of a file without an ending of tables, as ``numpy.savetxt`` writes them.
        """
        tabs = self._path.name.lower().removesuffix(".gz").endswith(".tsv")
        own = self._own_delimiter = "\t" if tabs else ","
        cells = {}
        for delimiter in _DELIMITERS:
            with suppress(csv.Error, StopIteration):
                cells[delimiter] = next(csv.reader([line], delimiter=delimiter))
        width = len(self._columns)
        words = line.split()
        is_named = self._path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
        is_spaced = not is_named and len(words) > 1 and not any(one in line for one in _DELIMITERS)
        if is_spaced and len(words) == (width or len(words)) and all(map(_is_number, words)):
            return " "
        fits = [one for one, row in cells.items() if (len(row) == width if width else len(row) > 1)]
        numeric = [one for one in fits if all(_COMMAS.fullmatch(cell) or _is_number(cell) for cell in cells[one])]
        if own in fits and not (len(numeric) == 1 and own not in numeric):
            return own
        return numeric[0] if len(numeric) == 1 else fits[0] if len(fits) == 1 else own

    def _names(self, head: Sequence[list[str]]) -> list[str]:
        if not head:
            raise ConversionError(self.name, ["the file is empty, expected the names of the columns"])
        names = [name.strip() for name in head[0]]
        is_index = names[:1] == [""] and names[1:] == [str(number) for number in range(len(names) - 1)]
        if any(map(_is_number, names)) and not is_index:
            raise NoHeaderError(self.name, head[:_SHOWN_ROWS])
        if repeated := sorted({name for name in names if name and names.count(name) > 1}):
            problem = f"the columns {join_names([repr(name) for name in repeated], ITEMS_MAX)} have no unique name"
            raise ConversionError(self.name, [problem])
        return names

    def _check_widths(self, rows: Sequence[Sequence[str]], width: int, first: int) -> None:
        wrong = [(number, row) for number, row in enumerate(rows, first) if len(row) != width]
        if wrong:
            number, row = wrong[0]
            problem = f"row {number:,} has {len(row):,} cells, expected {width:,} ({len(wrong):,} such rows)"
            raise ConversionError(self.name, [problem])

    @override
    def kinds(self, cells: Sequence[str]) -> Iterable[str]:
        text = "".join(cells)
        # A longest cell sets the width of an array of texts.
        if "_" in text or max(map(len, cells)) > _NUMBER_MAX_CHARS:
            return map(_kind_of_text, cells)
        for dtype, kind in ((np.int64, INTEGER), (np.float64, POINT if "." in text else NUMBER)):
            with suppress(ValueError, OverflowError):
                if is_exact(np.array(cells).astype(dtype)):
                    return [kind]
        return map(_kind_of_text, cells)

    @override
    def values(self, cells: Sequence[str], array: Array) -> Rows:
        if array.text:
            return list(cells)
        if array.shape:
            return np.array([_list_in(cell) for cell in cells], array.dtype).reshape(-1, *array.shape)
        if array.dtype == np.bool_:
            return np.array([_WORDS[cell.lower()] for cell in cells], np.bool_)
        if array.dtype.kind == "f":
            cells = [cell.replace(",", ".") for cell in cells] if self._has_commas else cells
            return np.array([cell or "nan" for cell in cells], np.str_).astype(array.dtype)
        return np.array([int(cell) for cell in cells], array.dtype)

    @override
    def settled(self, columns: dict[str, Column]) -> dict[str, Column]:
        kinds = {kind for column in columns.values() for kind in column.kinds}
        has_others = POINT in kinds or any(kind.startswith("[") for kind in kinds)
        if self._delimiter == "," or _DECIMAL not in kinds or has_others:
            return columns
        self._has_commas = True
        for column in columns.values():
            for kind in {_DECIMAL, _COMMA} & column.kinds.keys():
                column.kinds[NUMBER] = column.kinds.pop(kind)
        return columns


def _is_number(cell: str) -> bool:
    return _kind_of_text(cell) not in {EMPTY, TEXTS, WORD, UNREADABLE}


def _kind_of_text(cell: str) -> str:
    if not cell or cell.lower() in _WORDS:
        return WORD if cell else EMPTY
    if not _ARRAY.match(cell):
        return _kind_of_number(cell)
    try:
        return kind_of_list(_list_in(cell))
    except ValueError:
        return UNREADABLE


def _kind_of_number(cell: str) -> str:
    """Return the kind of the number in a cell, or the kind of texts."""
    if "_" in cell:
        return TEXTS
    with suppress(ValueError):
        return integer_kind(int(cell))
    with suppress(ValueError):
        float(cell)
        return POINT if "." in cell else NUMBER
    if (match := _COMMAS.fullmatch(cell)) and (match[1] or match[2]):
        return _COMMA if len(match[2]) == 3 and match[1].strip("0") and not match[3] else _DECIMAL
    return TEXTS


def _leaves_of(cell: str) -> Mapping[str, str]:
    """Return the values of a JSON object in a cell as cells, by name. Any other cell has no values."""
    if not cell.startswith("{") or len(cell) > _CELL_MAX_CHARS:
        return {}
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return {}
    return {name: _text_of(leaf) for name, leaf in leaves_of(value, "")} if isinstance(value, dict) else {}


def _text_of(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _list_in(cell: str) -> Any:
    """Return the numbers of a list in a cell, as JSON, Python or numpy print lists: ``[1, 2]``, ``(1, 2)``, ``[1. 2.]``.

    Raises:
        ValueError: If the cell is not such a list.
    """
    if len(cell) > _CELL_MAX_CHARS:
        raise ValueError("the list is too long")
    text = cell.strip().replace("(", "[").replace(")", "]")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        inner = text[1:-1]
        if text[:1] != "[" or text[-1:] != "]" or "[" in inner:
            raise ValueError("not a list of numbers") from None
        return [float(number) for number in (inner.strip().strip(",").split("," if "," in inner else None))]
    if not isinstance(value, list):
        raise ValueError("not a list")  # noqa: TRY004  # of the text
    return value
