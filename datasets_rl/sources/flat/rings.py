"""Preallocated replay buffers: the filled rows of a file with more rows, and the rows of a full ring in the order of time.

size = 5             rows  0  1  2  3  4  -  -  -        the rows after the size are not filled
size = 8, ptr = 3    rows  0  1  2  3  4  5  6  7        a ring of 8 rows, the next row of which is row 3
                     time  5  6  7  0  1  2  3  4
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import ArrayFile, Hdf5Arrays, RowReader, Rows
from datasets_rl.sources.flat.blank import blank_rows, may_be_blank
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.names import last_name, speaks_of_episodes
from datasets_rl.ted.keys import ACTION, NEXT, OBSERVATION

UNFILLED = "unfilled-rows"
UNROLLED = "ring-unrolled"
RULES: Mapping[str, str] = {
    UNFILLED: "rows after the size of a replay buffer, which were never filled, were left out",
    UNROLLED: "rows of a full ring buffer were put in the order of time: the oldest row is the first",
}
"""Text of each counted decision, by rule."""
STEPS: Mapping[str, str] = {UNFILLED: "filled", UNROLLED: "ring"}
"""Which rows of a buffer are steps, an item of `layout.BUFFERS`, by the rule that was applied."""
_SIZES = ("size", "_size", "cur_size", "curr_size", "current_size", "n_filled", "num_filled", "buffer_len")
_POINTERS = (
    *("ptr", "_ptr", "pos", "_pos", "pointer", "insert_index", "_insert_index", "next_idx", "_next_idx"),
    *("write_idx", "write_index", "write_ptr", "add_idx", "insert_pos"),
)
_AMBIGUOUS = ("idx", "_idx", "index", "_index", "position", "_position", "cursor", "_cursor", "_p")
"""Names of the next row to write, beside a size or a capacity. Alone, the names may mean anything."""
_FULL = ("full", "_full", "is_full")
_CAPACITIES = ("max_size", "_max_size", "maxsize", "capacity", "_capacity", "buffer_size")
_ROLES = {"size": _SIZES, "next": _POINTERS, "maybe": _AMBIGUOUS, "full": _FULL, "capacity": _CAPACITIES}
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class _State:
    """What a file states about its buffer of R rows."""

    rows: int
    size: int
    """Number of filled rows."""
    oldest: int
    """Oldest row if the buffer is a full ring, or 0."""
    text: str
    """The statements, for messages."""
    problem: str = ""
    """Why the statements contradict each other, or empty."""


class BufferRowsError(ConversionError):
    """Error about a buffer of which it is not certain which rows are steps."""

    def __init__(self, file: ArrayFile, state: _State, problem: str) -> None:
        hint = (
            'state in dataset.toml buffer = "filled" if only the rows before the size are steps, buffer = "ring" if the next '
            'row of a full buffer is the oldest one, or buffer = "rows" if all rows are steps in the order of time'
        )
        super().__init__(file.name, [f"{state.text} in a buffer of {state.rows:,} rows, but {problem}"], hint=hint)


class RangesFile(ArrayFile):
    """File whose arrays of R rows are the rows of some ranges of another file.

    Args:
        file: The file.
        names: The arrays of R rows.
        ranges: The first row of each range, and the row after the last one.
    """

    def __init__(self, file: ArrayFile, names: Collection[str], ranges: Sequence[tuple[int, int]]) -> None:
        self.take_notes_of(file)
        self._file, self._names, self._ranges = file, names, ranges
        count = sum(stop - start for start, stop in ranges)
        self.arrays = {
            name: replace(array, rows=count) if name in names else array for name, array in file.arrays.items()
        }

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        ranges = self._ranges if name in self._names else [(0, self.arrays[name].rows)]
        yield from blocks_of_ranges(self._file, name, rows, ranges)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def blocks_of_ranges(file: ArrayFile, name: str, rows: int, ranges: Sequence[tuple[int, int]]) -> Iterator[Rows]:
    """Yield the rows of some ranges of an array in blocks of at most `rows`, in the order of the ranges."""
    for first, last in ranges:
        at = 0
        for block in file.blocks(name, rows):
            part = block[max(first - at, 0) : max(last - at, 0)]
            at += len(block)
            if len(part):
                yield part
            if at >= last:
                break


def of_buffer(file: ArrayFile, layout: Layout) -> ArrayFile:
    """Return the filled rows of a replay buffer in the order of time, or the file itself if it states no such buffer.

    Raises:
        ConversionError: If the statements contradict each other or the rows, and the layout does not state the rows.
    """
    fields = {field.key: field.array for field in layout.fields_of(file.readable) if field.array in file.arrays}
    action = next((name for key, name in fields.items() if key[:1] == ACTION), "")
    if file.is_table or not action or layout.buffer == "rows":
        return file
    rows = file.arrays[action].rows
    state = _read_state(file, action.rpartition("/")[0], rows)
    if state is None:
        if layout.buffer:
            problem = f"no number has the name of the size or of the next row of a buffer of {rows:,} rows"
            raise ConversionError(file.name, [problem], hint='expected such as "size" or "ptr", or remove buffer')
        return file
    names = {name for name, array in file.arrays.items() if array.rows == rows}
    if state.size < rows and layout.buffer != "ring":
        return _filled(file, layout, state, names)
    if (not state.oldest and not state.problem) or layout.buffer == "filled":
        return file
    return _unrolled(file, layout, state, names, fields.get(OBSERVATION, ""), fields.get((NEXT, *OBSERVATION), ""))


def _read_state(file: ArrayFile, group: str, rows: int) -> _State | None:
    """Return what a file states about its buffer, or None if it states nothing that is certainly about a buffer."""
    found = _numbers(file, group)
    size, full, capacity = (found.get(role) for role in ("size", "full", "capacity"))
    is_certain = size is not None or full is not None or capacity is not None
    pointer = found.get("next", found.get("maybe") if is_certain else None)
    if size is None and pointer is None and capacity is not None and capacity[0].endswith("buffer_size"):
        size = capacity if capacity[1] < rows else None
    if rows < 2 or (size is None and pointer is None):
        return None
    at = -1 if pointer is None else pointer[1]
    is_full = None if full is None else bool(full[1])
    count = size[1] if size else rows if is_full else at
    if (size and count > rows and not pointer and not capacity) or (not size and full is None and not at):
        return None  # a size of something else, or a next row that says nothing
    most = rows if capacity is None else max(rows, capacity[1])
    problem = _contradiction(rows, count, None if pointer is None else at, is_full=is_full, most=most)
    text = join_names([f"{name} = {value}" for name, value in found.values()], ITEMS_MAX)
    oldest = at if 0 < at < rows else 0
    return _State(rows, min(max(count, 0), rows), oldest, text, problem)


def _contradiction(rows: int, count: int, at: int | None, *, is_full: bool | None, most: int) -> str:
    """Return why the statements contradict each other, or an empty text.

    Args:
        rows: Number of rows of the arrays.
        count: Number of filled rows.
        at: The next row, if stated.
        is_full: Whether the buffer is full, if stated.
        most: Number of rows of the full buffer, of which the file may have the filled rows only.
    """
    if not 0 <= count <= rows:
        return f"the arrays have {rows:,} rows"
    if is_full and count != rows:
        return f"a full buffer has {rows:,} rows"
    if at is None or at == count:
        return ""
    if not 0 <= at <= most:
        return f"the next row {at:,} is none of {rows:,} rows"
    if count < rows or (at and most > rows):
        return f"the next row of a buffer with {count:,} filled rows is row {count:,}"
    return "the buffer is not full" if at and is_full is False else ""


def _numbers(file: ArrayFile, group: str) -> dict[str, tuple[str, int]]:
    """Return the names and the values of the numbers that have the name of a state of a buffer, by role."""
    values = {name: np.asarray(value) for name, value in file.scalars.items() if name.rpartition("/")[0] in {"", group}}
    values |= {
        name: np.asarray(next(file.blocks(name, 1))).reshape(())
        for name, array in file.arrays.items()
        if array.rows == 1 and array.shape in {(), (1,)} and array.dtype.kind in "biu" and not array.text
        if name.rpartition("/")[0] in {"", group}
    }
    known = {name for names in _ROLES.values() for name in names}
    if isinstance(file, Hdf5Arrays):
        for path in dict.fromkeys(("", group)):
            for name in sorted(known - values.keys()):
                value = np.asarray(file.file.attribute(path, name))
                if not value.ndim and value.dtype.kind in "biuf":
                    values[name] = value
    found = {}
    for role, names in _ROLES.items():
        own = {
            name: int(value)
            for name, value in values.items()
            if last_name(name).lower() in names and np.isfinite(value) and value == int(value)
        }
        if own and (role == "size" or len({*own.values()}) == 1):
            found[role] = min(own.items(), key=lambda item: item[1])
    return found


def _filled(file: ArrayFile, layout: Layout, state: _State, names: Collection[str]) -> ArrayFile:
    """Return the filled rows of a buffer, if the other rows are certainly not filled."""
    if layout.buffer != "filled":
        problem = state.problem or ("" if state.size else "no row is filled")
        other = "" if problem else next((name for name in sorted(names) if not _is_blank(file, name, state.size)), "")
        if other:
            problem = f"{other} has other values than zeros after row {state.size - 1:,}"
        if problem:
            raise BufferRowsError(file, state, problem)
    cut = RangesFile(file, names, [(0, state.size)])
    cut.decisions = {**file.decisions, UNFILLED: state.rows - state.size}
    return cut


def _unrolled(
    file: ArrayFile, layout: Layout, state: _State, names: Collection[str], observation: str, following: str
) -> ArrayFile:
    """Return the rows of a full ring, the oldest row first."""
    marks = [name for name, array in file.arrays.items() if speaks_of_episodes(name) and 1 < array.rows != state.rows]
    problem = state.problem
    if not problem and marks:
        problem = f"{join_names(marks, ITEMS_MAX)} may number the rows as they are in the file, or in the order of time"
    if not problem and {observation, following} <= {*names} and observation and following:
        before, after = state.oldest - 1, state.oldest
        is_continued = _equal_rows(file, following, before, observation, after)
        if is_continued and not _equal_rows(file, following, state.rows - 1, observation, 0):
            problem = f"{following} of row {before:,} is {observation} of row {after:,}, as in the order of time"
    if layout.buffer != "ring" and problem:
        raise BufferRowsError(file, state, problem)
    ring = RangesFile(file, names, [(state.oldest, state.rows), (0, state.oldest)])
    ring.decisions = {**file.decisions, UNROLLED: state.rows}
    return ring


def _is_blank(file: ArrayFile, name: str, start: int) -> bool:
    """Return whether all rows of an array are blank, from a row to the end."""
    array = file.arrays[name]
    blocks = blocks_of_ranges(file, name, _BLOCK_ROWS, [(start, array.rows)])
    return may_be_blank(array) and all(blank_rows(block).all() for block in blocks)


def _equal_rows(file: ArrayFile, name: str, row: int, other: str, other_row: int) -> bool:
    one, two = (
        np.asarray(RowReader(file, array, _BLOCK_ROWS).read(at, at + 1))
        for array, at in ((name, row), (other, other_row))
    )
    return one.shape == two.shape and bool((one == two).all())
