"""JSON lines as tables, and JSON documents as Python values."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.gz import GzipReader
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import Array, Rows
from datasets_rl.sources.flat.text_tables import (
    INTEGER,
    NUMBER,
    Cells,
    TextTable,
    UnlikeObjectsError,
    batches,
    is_exact,
    is_usual,
    kind_of_list,
    kind_of_number,
    leaves_of,
)
from datasets_rl.sources.flat.trees import TreeFile

LINE_MAX_BYTES = 256 << 20
_DOCUMENT_MAX_BYTES = 256 << 20


@contextmanager
def opened(path: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file that may be compressed with gzip."""
    with ExitStack() as closing:
        stream: BinaryIO = closing.enter_context(path.open("rb"))
        if path.name.lower().endswith(".gz"):
            stream = cast("BinaryIO", io.BufferedReader(GzipReader(stream, name)))
        yield stream


class JsonLinesFile(TextTable):
    """Open file of JSON lines: an object for each row. The names within objects have slashes: ``obs/joints``."""

    @override
    def parse(self) -> Iterator[Cells]:
        names: list[str] = []
        first = 0
        for rows in batches(self._rows()):
            names = names or [*rows[0]]
            for number, row in enumerate(rows, first):
                if row.keys() != set(names):
                    other = sorted(row.keys() ^ set(names))
                    self._check_names(other)
                    problem = f"row {number:,} differs from the first row in {join_names(other, ITEMS_MAX)}"
                    raise ConversionError(self.name, [f"{problem}, expected the same names in every row"])
            first += len(rows)
            yield {name: [row[name] for row in rows] for name in names}

    def _check_names(self, other: Sequence[str]) -> None:
        """Raise UnlikeObjectsError if names that some rows lack are those of objects without a usual name, as infos."""
        roots = {name.partition("/")[0] for name in other}
        if all("/" in name for name in other) and not any(map(is_usual, roots)):
            raise UnlikeObjectsError(roots.pop())

    def _rows(self) -> Iterator[dict[str, Any]]:
        number, quotes = 0, -1
        with opened(self._path, self.name) as stream:
            for line in iter(lambda: stream.readline(LINE_MAX_BYTES), b""):
                if line.strip():
                    # A name twice adds quotes. Objects with as many quotes as the first have its names once.
                    is_alike = line.count(b'"') == quotes
                    yield dict(leaves_of(object_of(line, number, self.name, is_unique=is_alike), "", self.whole))
                    quotes = line.count(b'"') if number == 0 else quotes
                    number += 1

    @override
    def kinds(self, cells: Sequence[Any]) -> Iterable[str]:
        if all(type(cell) is list for cell in cells):
            try:
                numbers = np.array(cells)
            except (ValueError, OverflowError):
                return map(kind_of_list, cells)
            if numbers.dtype.kind in "if" and numbers.size and is_exact(numbers):
                return [f"{list(numbers.shape[1:])} of {INTEGER if numbers.dtype.kind == 'i' else NUMBER}"]
        return (kind_of_list(cell) if isinstance(cell, (list, dict)) else kind_of_number(cell) for cell in cells)

    @override
    def values(self, cells: Sequence[Any], array: Array) -> Rows:
        if array.text:
            return [cell if isinstance(cell, str) else json.dumps(cell) for cell in cells]
        if array.dtype.kind == "f":
            cells = [np.nan if cell is None else cell for cell in cells]
        return np.array(cells, array.dtype).reshape(-1, *array.shape)


class DocumentFile(TreeFile):
    """Arrays of a JSON document: an object of lists, or a list of episodes or steps."""

    def __init__(self, path: Path, name: str) -> None:
        with opened(path, name) as stream:
            data = stream.read(_DOCUMENT_MAX_BYTES + 1)
        if len(data) > _DOCUMENT_MAX_BYTES:
            raise _too_large(name)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConversionError(name, [f"the file is not JSON: {error}"]) from error
        super().__init__(value, name)


class EpisodeLinesFile(TreeFile):
    """Arrays of JSON lines with an episode in each line."""

    def __init__(self, path: Path, name: str) -> None:
        episodes: list[dict[str, Any]] = []
        size = 0
        with opened(path, name) as stream:
            for line in iter(lambda: stream.readline(LINE_MAX_BYTES), b""):
                size += len(line)
                if size > _DOCUMENT_MAX_BYTES:
                    raise _too_large(name)
                if line.strip():
                    episodes.append(object_of(line, len(episodes), name))
        super().__init__(episodes, name)


def _too_large(name: str) -> ConversionError:
    problem = f"the file has more than {_DOCUMENT_MAX_BYTES >> 20:,} MiB, which would not fit into memory as episodes"
    return ConversionError(name, [problem], hint="write a line of JSON for each step, name.jsonl")


class _RepeatedNameError(ValueError):
    """Raised for an object with a name twice, of which the standard library keeps the last value. The text is the name."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedNameError(next(name for name in names if names.count(name) > 1))
    return value


def object_of(line: bytes, number: int, name: str, *, is_unique: bool = False) -> dict[str, Any]:
    """Return the object in a line.

    Args:
        line: The line.
        number: The number of the row, for messages.
        name: The name of the file, for messages.
        is_unique: Whether the names of the object are known to be unique, and need no check.

    Raises:
        ConversionError: If the line is not JSON, or not an object, or an object has a name twice.
    """
    try:
        value = json.loads(line, object_pairs_hook=None if is_unique else _unique)
    except _RepeatedNameError as error:
        raise ConversionError(name, [f"row {number:,} has {error} twice, expected each name once"]) from error
    except (ValueError, RecursionError) as error:
        raise ConversionError(name, [f"row {number:,} is not JSON: {error}"]) from error
    if not isinstance(value, dict):
        raise ConversionError(name, [f"row {number:,} is {type(value).__name__}, expected an object"])
    return value
