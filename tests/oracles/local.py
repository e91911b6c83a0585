"""Comparison of a converted dataset with the user's files, using numpy, h5py or pyarrow but not the converter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracles.d4rl import named_datasets, nearly_equal_rows
from oracles.differences import Column, equal_rows

from datasets_rl.errors import UnknownKeyError
from datasets_rl.read.toml import parse_toml
from datasets_rl.sources.flat.layout import Field
from datasets_rl.sources.local.description import FILE, Description
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
)
from datasets_rl.ted.table import EpisodeTable

_VECTORS = (ACTION, OBSERVATION, (NEXT, *OBSERVATION))
"""Fields of which a float of each row is stored as a vector [1]."""
_Array = NDArray[Any]
_Read = Callable[[], _Array]


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number of every file; strings are not compared."""
    inside = {path.removeprefix(f"{dataset_id.partition('/')[2]}/"): file for path, file in files.items()}
    description = Description.read(parse_toml(inside[FILE].read_text("utf-8") if FILE in inside else ""), dataset_id)
    file_format, paths = description.data_files(inside, dataset_id)
    texts: list[str] = []
    numbers = np.unique(episodes["file"]).tolist()
    matched = 0
    for name in paths:
        with _open_arrays(inside[name], file_format, inside.get(description.table)) as arrays:
            if not _has_steps(arrays, description):
                continue
            matched += 1
            if matched <= len(numbers):
                own = episodes["file"] == numbers[matched - 1]
                start, lengths = int(episodes.starts[own][0]), episodes.lengths[own]
                texts += [f"{name}: {text}" for text in _differences(arrays, description, column, start, lengths)]
    if matched != len(numbers):
        texts.append(f"the episodes are from {len(numbers):,} files; {matched:,} files have steps")
    return texts


def _row_counts(arrays: Mapping[str, _Read], description: Description) -> _Array | None:
    """Return the number of rows or steps of each episode that an array of the file states; None if no array does."""
    by, marks = description.end_marks(arrays, description.fields_of(arrays))
    if by not in {"column", "lengths", "ends"}:
        return None
    values = arrays[marks]().reshape(-1)
    if by == "column":
        return np.diff(np.flatnonzero(np.append(True, values[1:] != values[:-1])), append=len(values))
    return np.diff(values, prepend=0) if by == "ends" else values


def _has_steps(arrays: Mapping[str, _Read], description: Description) -> bool:
    counts: dict[bool, int] = {}
    for field in description.fields_of(arrays):
        if field.array:
            counts.setdefault(field.is_state, len(arrays[field.array]()))
    steps, states = counts.get(False, 0), counts.get(True, 0)
    shared = description.alignment in {"one-more", "action-before"} and steps == states
    held = _row_counts(arrays, description) if shared and steps else None
    count = 1 if held is None else int((held > 0).sum())
    return steps > (count if shared and (held is None or held.sum() == steps) else 0)


def _extra_rows(arrays: Mapping[str, _Read], description: Description, lengths: _Array) -> tuple[_Array, int]:
    """Return the number of extra rows, which are not steps, before each episode, [E], and in total.

    Empty episodes have an extra row too.
    """
    held = _row_counts(arrays, description)
    if held is None:
        return np.arange(len(lengths)), len(lengths)
    if held.sum() == lengths.sum():
        return np.flatnonzero(held > 0), len(held)
    held = held[held > 0]
    return np.flatnonzero(held > 1), len(held)


def _differences(
    arrays: Mapping[str, _Read], description: Description, column: Column, start: int, lengths: _Array
) -> Iterator[str]:
    fields = description.fields_of(arrays)
    steps = int(lengths.sum())
    before, count = _extra_rows(arrays, description, lengths)
    ends = np.cumsum(lengths) - 1
    finals = _final_rows(arrays, description, len(lengths))
    known = _final_known(arrays, description, finals)
    for field in fields:
        if not field.array:
            continue
        raw = arrays[field.array]()
        extra = int(len(raw) == steps + count)
        if len(raw) != steps + extra * count:
            yield f"{field.array} has {len(raw):,} rows; the converted dataset has {steps:,} steps of it"
        elif raw.dtype.kind in "biuf":
            yield from _compare_field(field, _rows_first(field, raw), extra * before, description, column, start, ends)
            if description.final and field.is_state:
                final = _rows_first(field, arrays[description.final.format(field.array)]())[finals]
                at = np.repeat(final[:1], steps, axis=0)
                at[ends] = final
                where = np.zeros(steps, np.bool_)
                where[ends] = known
                yield from _compare_rows((NEXT, *field.key), at, column, start, where)


def _final_rows(arrays: Mapping[str, _Read], description: Description, episodes: int) -> _Array:
    """Return the rows of the separate arrays of final states, [E], without those of empty episodes."""
    held = _row_counts(arrays, description)
    return np.flatnonzero(held > 0) if held is not None else np.arange(episodes)


def _final_known(arrays: Mapping[str, _Read], description: Description, finals: _Array) -> _Array:
    """Return whether the final states in these rows are known, [E]."""
    if not description.final_known:
        return np.ones(len(finals), np.bool_)
    return np.asarray(arrays[description.final_known]().reshape(-1)[finals] == 1)


def _compare_field(
    field: Field, raw: _Array, extra_before: _Array, description: Description, column: Column, start: int, ends: _Array
) -> Iterator[str]:
    steps, state = int(ends[-1]) + 1, field.is_state
    # Step i is in row i, plus one for each previous episode that has an extra row.
    rows = np.arange(steps) + extra_before[np.searchsorted(ends, np.arange(steps))]
    extra = len(raw) > steps
    lead = int(extra and not state and description.alignment == "action-before")
    expected = raw[rows + lead]
    if field.key == NEXT_TRUNCATED:
        ended = np.asarray(column(NEXT_TERMINATED, start, start + steps)).reshape(-1)[ends]
        expected = expected.reshape(-1) == 1
        expected[ends] |= ~ended
    key = NEXT_TERMINATED if field.key == NEXT_DONE else field.key
    if field.key[:2] == (NEXT, *OBSERVATION):
        yield from _compare_rows(key, expected, column, start, ends=ends)
        return
    yield from _compare_rows(key, expected, column, start)
    if state:
        following = np.zeros_like(expected)
        inside = np.ones(steps, np.bool_)
        inside[ends] = bool(extra)
        following[inside] = raw[rows[inside] + 1]
        yield from _compare_rows((NEXT, *key), following, column, start, inside)


def _compare_rows(
    key: Key, expected: _Array, column: Column, start: int, where: _Array | None = None, ends: _Array | None = None
) -> Iterator[str]:
    """Yield the first difference; if `ends` is given, all other rows may differ by rounding."""
    try:
        converted = np.asarray(column(key, start, start + len(expected)))
    except UnknownKeyError:
        return  # a field that the selection excludes
    if key[:2] in {NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED}:
        expected = expected.reshape(converted.shape)
    if key in _VECTORS and expected.ndim == 1 and expected.dtype.kind == "f":
        expected = expected[:, None]
    if expected.shape != converted.shape:
        yield f"{dotted_name(key)} has shape {list(converted.shape)}, in the file {list(expected.shape)}"
        return
    differ = ~equal_rows(expected, converted)
    if ends is not None and differ.any():
        within = np.ones(len(converted), np.bool_)
        within[ends] = False
        differ &= ~(within & nearly_equal_rows(converted, expected))
    wrong = np.flatnonzero(differ if where is None else differ & where)
    if len(wrong):
        row = int(wrong[0])
        values = f"is {converted[row]!s:.80}, in the file {expected[row]!s:.80}"
        yield f"{dotted_name(key)} at row {start + row:,} {values} ({len(wrong):,} such rows)"


def _rows_first(field: Field, raw: _Array) -> _Array:
    if not field.layout:
        return raw
    return np.moveaxis(raw, -1, -3) if field.layout == "HWC to CHW" else np.moveaxis(raw, -3, -1)


@contextmanager
def _open_arrays(path: Path, file_format: str, table: Path | None = None) -> Iterator[Mapping[str, _Read]]:
    """Yield a function for each array of a file that reads it."""
    if table is not None:
        with _open_arrays(path, file_format) as steps, _open_arrays(table, "parquet") as episodes:
            yield {**steps, **{f"episodes/{name}": read for name, read in episodes.items()}}
        return
    if file_format == "npz":
        with np.load(path, allow_pickle=False) as file:
            yield {name: partial(file.__getitem__, name) for name in file.files}
    elif file_format == "hdf5":
        import h5py

        with h5py.File(path, "r", locking=False) as file:
            yield {name: partial(item.__getitem__, ()) for name, item in named_datasets(file, "", ())}
    else:
        from pyarrow import parquet

        with parquet.ParquetFile(path) as opened:
            yield {name: partial(_read_column, opened, name) for name in _column_names(opened.schema_arrow, "")}


def _column_names(fields: Any, prefix: str) -> Iterator[str]:
    from pyarrow import types

    for field in fields:
        name = f"{prefix}{field.name}"
        yield from _column_names(field.type, f"{name}/") if types.is_struct(field.type) else [name]


def _read_column(table: Any, name: str) -> _Array:
    """Read a column of a table, or a field of its struct columns."""
    root, *path = name.split("/")
    values = table.read([root]).column(root).to_pylist()
    for part in path:
        values = [value[part] for value in values]
    return np.asarray(values)
