"""Stored columns against the user's own files, with numpy, h5py or pyarrow alone: none of the code that converted takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, UnknownKeyError
from datasets_rl.read.streams import AGAIN, DAMAGED
from datasets_rl.sources.d4rl.compare import datasets, near
from datasets_rl.sources.local.description import Description, Field
from datasets_rl.ted.keys import NEXT, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = ["compare"]

_Column = Callable[[Key, int, int], Any]
_Array = NDArray[Any]
_Read = Callable[[], _Array]


def compare(
    data: Sequence[tuple[str, Path]], form: str, said: Description, column: _Column, episodes: EpisodeTable
) -> list[str]:
    """Compare every number of every file; texts are left out.

    Args:
        data: The files, in their order.
        form: Their format.
        said: What their description says.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        episodes: The converted episodes.

    Returns:
        For each column of a file that differs, its first difference and how many rows differ.

    Raises:
        ConversionError: If a file is damaged.
    """
    found: list[str] = []
    numbers = np.unique(episodes["file"]).tolist()
    met = 0
    for name, path in data:
        try:
            with _opened(path, form) as arrays:
                if not _has_steps(arrays, said):
                    continue
                met += 1
                if met <= len(numbers):
                    own = episodes["file"] == numbers[met - 1]
                    start, lengths = int(episodes.starts[own][0]), episodes.lengths[own]
                    found += [f"{name}: {one}" for one in _differences(arrays, said, column, start, lengths)]
        except DAMAGED as error:
            raise ConversionError(name, [f"it cannot be read: {error}"], hint=AGAIN) from error
    if met != len(numbers):
        found.append(f"the episodes are of {len(numbers):,} files; {met:,} files have steps")
    return found


def _held(arrays: Mapping[str, _Read], said: Description) -> _Array | None:
    """Return how many rows or steps a file says that each episode has; None where rows of its own do not say it."""
    by, marks = said.told(arrays, said.of(arrays))
    if by not in {"column", "lengths", "ends"}:
        return None
    values = arrays[marks]().reshape(-1)
    if by == "column":
        return np.diff(np.flatnonzero(np.append(True, values[1:] != values[:-1])), append=len(values))
    return np.diff(values, prepend=0) if by == "ends" else values


def _has_steps(arrays: Mapping[str, _Read], said: Description) -> bool:
    counts: dict[bool, int] = {}
    for one in said.of(arrays):
        if one.array:
            counts.setdefault(one.key[0] in {OBSERVATION[0], "info"}, len(arrays[one.array]()))
    steps, states = counts.get(False, 0), counts.get(True, 0)
    shared = said.alignment in {"one-more", "action-before"} and steps == states
    held = _held(arrays, said) if shared and steps else None
    count = 1 if held is None else int((held > 0).sum())
    return steps > (count if shared and (held is None or held.sum() == steps) else 0)


def _extra_rows(arrays: Mapping[str, _Read], said: Description, lengths: _Array) -> tuple[_Array, int]:
    """Return how many rows beyond the steps stand before each episode, [E], and in all: empty episodes have one too."""
    held = _held(arrays, said)
    if held is None:
        return np.arange(len(lengths)), len(lengths)
    if held.sum() == lengths.sum():
        return np.flatnonzero(held > 0), len(held)
    held = held[held > 0]
    return np.flatnonzero(held > 1), len(held)


def _differences(
    arrays: Mapping[str, _Read], said: Description, column: _Column, start: int, lengths: _Array
) -> Iterator[str]:
    fields = said.of(arrays)
    steps = int(lengths.sum())
    before, count = _extra_rows(arrays, said, lengths)
    ends = np.cumsum(lengths) - 1
    for one in fields:
        if not one.array:
            continue
        raw = arrays[one.array]()
        extra = int(len(raw) == steps + count)
        if len(raw) != steps + extra * count:
            yield f"{one.array} has {len(raw):,} rows; {steps:,} steps are stored of it"
        elif raw.dtype.kind in "biuf":
            yield from _of_field(one, _turned(one, raw), extra * before, said, column, start, ends)


def _of_field(
    one: Field, raw: _Array, before: _Array, said: Description, column: _Column, start: int, ends: _Array
) -> Iterator[str]:
    steps, state = int(ends[-1]) + 1, one.key[0] in {OBSERVATION[0], "info"}
    # The row of step i is i, and one more for each episode before it that has a row beyond its steps.
    rows = np.arange(steps) + before[np.searchsorted(ends, np.arange(steps))]
    extra = len(raw) > steps
    lead = int(extra and not state and said.alignment == "action-before")
    wanted = raw[rows + lead]
    if one.key == NEXT_TRUNCATED:
        ended = np.asarray(column(NEXT_TERMINATED, start, start + steps)).reshape(-1)[ends]
        wanted = wanted.reshape(-1) == 1
        wanted[ends] |= ~ended
    key = NEXT_TERMINATED if one.key == NEXT_DONE else one.key
    if one.key[:2] == (NEXT, *OBSERVATION):
        yield from _unlike(key, wanted, column, start, ends=ends)
        return
    yield from _unlike(key, wanted, column, start)
    if state:
        following = np.zeros_like(wanted)
        inside = np.ones(steps, np.bool_)
        inside[ends] = bool(extra)
        following[inside] = raw[rows[inside] + 1]
        yield from _unlike((NEXT, *key), following, column, start, inside)


def _unlike(
    key: Key, wanted: _Array, column: _Column, start: int, where: _Array | None = None, ends: _Array | None = None
) -> Iterator[str]:
    """Yield the first difference; but for the rows `ends`, next observations may differ by rounding."""
    try:
        got = np.asarray(column(key, start, start + len(wanted)))
    except UnknownKeyError:
        return  # a field that was left out on request
    wanted = wanted.reshape(got.shape) if key[:2] in {NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED} else wanted
    if wanted.shape != got.shape:
        yield f"{dotted(key)} has shape {list(got.shape)}, in the file {list(wanted.shape)}"
        return
    same = (got == wanted) | ((got != got) & (wanted != wanted))  # noqa: PLR0124 -- NaN
    differ = ~same.reshape(len(got), -1).all(axis=1)
    if ends is not None and differ.any():
        within = np.ones(len(got), np.bool_)
        within[ends] = False
        differ &= ~(within & near(got, wanted))
    wrong = np.flatnonzero(differ if where is None else differ & where)
    if len(wrong):
        row = int(wrong[0])
        values = f"is {got[row]!s:.80}, in the file {wanted[row]!s:.80}"
        yield f"{dotted(key)} at row {start + row:,} {values} ({len(wrong):,} such rows)"


def _turned(one: Field, raw: _Array) -> _Array:
    if not one.layout:
        return raw
    return np.moveaxis(raw, -1, -3) if one.layout == "HWC to CHW" else np.moveaxis(raw, -3, -1)


@contextmanager
def _opened(path: Path, form: str) -> Iterator[Mapping[str, _Read]]:
    """Give for each array of a file what reads it."""
    if form == "npz":
        with np.load(path, allow_pickle=False) as file:
            yield {name: partial(file.__getitem__, name) for name in file.files}
    elif form == "hdf5":
        import h5py

        with h5py.File(path, "r", locking=False) as file:
            yield {name: partial(item.__getitem__, ()) for name, item in datasets(file, "", ())}
    else:
        from pyarrow import parquet

        with parquet.ParquetFile(path) as table:
            yield {name: partial(_cells, table, name) for name in _leaves(table.schema_arrow, "")}


def _leaves(fields: Any, prefix: str) -> Iterator[str]:
    from pyarrow import types

    for one in fields:
        name = f"{prefix}{one.name}"
        yield from _leaves(one.type, f"{name}/") if types.is_struct(one.type) else [name]


def _cells(table: Any, name: str) -> _Array:
    """Read a column of a table, or of a struct in it."""
    root, *path = name.split("/")
    values = table.read([root]).column(root).to_pylist()
    for part in path:
        values = [value[part] for value in values]
    return np.asarray(values)
