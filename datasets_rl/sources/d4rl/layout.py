"""What each dataset of a file in D4RL's layout becomes: a column of the steps, a flag, or metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Hdf5Array
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, OBSERVATION, Key, dotted

__all__ = ["COLUMN_OF", "FLAGS", "WIDENED", "ColumnSlice", "Layout", "explicit", "layout"]

FLAGS = ("terminals", "timeouts")
COLUMN_OF: Mapping[str, Key] = {
    "observations": OBSERVATION,
    "actions": ACTION,
    "rewards": NEXT_REWARD,
    "infos": ("info",),
}
"""The key of each of D4RL's own names; what lies in a group of that name goes on with its path."""
WIDENED: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
"""Unsigned integers that torch cannot gather, and the signed ones that hold their values."""
_TOO_WIDE = (np.dtype(np.uint64).str, *({np.dtype(np.longdouble).str} - {np.dtype(np.float64).str}))
_MANDATORY = ("observations", "actions", "rewards", "terminals")
_FOLLOWING = "next_observations"
_CARRIED = ("observations", "infos")
_RESERVED = frozenset(
    {"observation", "action", "reward", "info", "next", "episode", "done", "terminated", "truncated", "mask"}
)
_METADATA = "metadata/"
_METADATA_MOST = 64 << 20


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """A dataset of the file and the column that it becomes."""

    name: str
    column: Column
    following: str = ""
    """The dataset with the value after the step; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A file in D4RL's layout."""

    parts: tuple[ColumnSlice, ...]
    rows: int
    """N."""
    flags: tuple[str, ...]
    """Which of `FLAGS` are there."""
    metadata: Mapping[str, str]
    """The datasets that have no row for each step, and the name of each among the metadata."""
    renamed: int
    """How many names are not those of the file."""
    widened: int
    """How many columns are stored with a wider dtype than in the file."""


def layout(arrays: Mapping[str, Hdf5Array], what: str, sizes: Sequence[int] | None = None) -> Layout:
    """Say what each dataset becomes.

    Args:
        arrays: The datasets of the file.
        what: The dataset, for messages.
        sizes: How many numbers the environment's observations and actions have, where that is known.

    Raises:
        ConversionError: With every fault of every column.
    """
    rows = _row_count(arrays)
    kinds = {name: _kind(name, array, rows) for name, array in arrays.items()}
    columns = [name for name, kind in kinds.items() if kind == "column"]
    metadata = _metadata_names([name for name, kind in kinds.items() if kind == "metadata"])
    flags = tuple(name for name in FLAGS if name in arrays)
    following = [name for name, kind in kinds.items() if kind == "following"]
    problems = [*_missing(arrays), *(["it has no rows"] if rows == 0 else [])]
    for name in (*columns, *flags, *following):
        problems.extend(_column_faults(arrays[name], rows))
    for name in following:
        problems.extend(_following_faults(arrays[name], arrays))
    problems.extend(_size_faults(arrays, what, sizes))
    columns = [name for name in columns if 0 not in arrays[name].shape[1:]]
    problems.extend(_key_faults(columns))
    problems.extend(_metadata_faults([arrays[name] for name in metadata]))
    if problems:
        raise ConversionError(what, problems)
    parts = tuple(_part(arrays[name], arrays) for name in sorted(columns, key=_place))
    renamed = sum("." in name for name in columns)
    renamed += sum(name.removeprefix(_METADATA) != given for name, given in metadata.items())
    widened = sum(arrays[name].dtype in WIDENED for name in columns)
    return Layout(parts, rows, flags, metadata, renamed, widened)


def explicit(plan: Layout) -> Layout:
    """Store the observation after a step as a column of its own, for rows that are no trajectories."""
    parts: list[ColumnSlice] = []
    for part in plan.parts:
        if not part.following:
            parts.append(part)
            continue
        column = replace(part.column, shared=False)
        parts.append(ColumnSlice(part.name, column))
        parts.append(ColumnSlice(part.following, replace(column, key=(NEXT, *column.key))))
    return replace(plan, parts=tuple(parts))


def _kind(name: str, array: Hdf5Array, rows: int) -> str:
    root = name.partition("/")[0]
    if root == "virtual":
        kind = "ignored"
    elif root == "metadata":
        kind = "metadata"
    elif name in FLAGS:
        kind = "flag"
    elif root == _FOLLOWING:
        kind = "following"
    else:
        kind = "column" if root in COLUMN_OF or (array.numeric and array.shape[:1] == (rows,)) else "metadata"
    return kind


def _row_count(arrays: Mapping[str, Hdf5Array]) -> int:
    for root in _MANDATORY:
        for name, array in arrays.items():
            if name.partition("/")[0] == root and array.shape:
                return array.shape[0]
    return 0


def _part(array: Hdf5Array, arrays: Mapping[str, Hdf5Array]) -> ColumnSlice:
    key = _key(array.name)
    root, slash, rest = array.name.partition("/")
    shape = (1,) if key == NEXT_REWARD else array.shape[1:]
    following = _FOLLOWING + slash + rest if root == "observations" else ""
    column = Column(key, WIDENED.get(array.dtype, array.dtype), shape, shared=root in _CARRIED)
    return ColumnSlice(array.name, column, following if following in arrays else "")


def _key(name: str) -> Key:
    root, *rest = name.replace(".", "_").split("/")
    return (*COLUMN_OF.get(root, (root,)), *rest)


def _place(name: str) -> int:
    """The order of the columns: D4RL's own names first, the rest as in the file."""
    root = name.partition("/")[0]
    known = list(COLUMN_OF)
    return known.index(root) if root in known else len(known)


def _missing(arrays: Mapping[str, Hdf5Array]) -> Iterator[str]:
    present = {name.partition("/")[0] for name in arrays}
    for name in _MANDATORY:
        if name not in present:
            yield f"{name} is missing; expected {name} [N{', ...' if name in {'observations', 'actions'} else ''}]"


def _column_faults(array: Hdf5Array, rows: int) -> Iterator[str]:
    shape = list(array.shape)
    if not array.numeric:
        yield f"{array.name} has dtype {array.dtype}; expected booleans, integers or floats"
    elif array.name not in FLAGS and array.dtype.str in _TOO_WIDE:
        yield f"{array.name} has dtype {array.dtype}; torch holds no unsigned integers and floats that are so wide"
    if array.shape[:1] != (rows,):
        yield f"{array.name} has shape {shape}; expected {rows:,} rows, as many as the other columns"
    elif array.name in {*FLAGS, "rewards"} and math.prod(array.shape[1:]) != 1:
        yield f"{array.name} has shape {shape}; expected [{rows}] or [{rows}, 1]"


def _size_faults(arrays: Mapping[str, Hdf5Array], what: str, sizes: Sequence[int] | None) -> Iterator[str]:
    for name, wanted in zip(("observations", "actions"), sizes or (), strict=False):
        # Observations of several parts are a group, and have no size of their own.
        if name in arrays and (got := math.prod(arrays[name].shape[1:])) != wanted:
            title = what.rpartition("/")[2]
            yield f"{name} have {got:,} numbers a step; {title} has {wanted:,}: this is another dataset's file"


def _following_faults(array: Hdf5Array, arrays: Mapping[str, Hdf5Array]) -> Iterator[str]:
    name = array.name.replace(_FOLLOWING, "observations", 1)
    if name not in arrays:
        yield f"{array.name} has no {name} beside it"
    elif arrays[name].shape[1:] != array.shape[1:]:
        yield f"{array.name} has shape {list(array.shape)}; expected that of {name}, {list(arrays[name].shape)}"


def _key_faults(names: Sequence[str]) -> Iterator[str]:
    seen: dict[Key, str] = {}
    for name in names:
        key = _key(name)
        if name.partition("/")[0] not in COLUMN_OF and key[0] in _RESERVED:
            yield f"{name} has a name that means something else in TED; expected another"
        if key in seen:
            yield f"{name} and {seen[key]} both become {dotted(key)}"
        seen[key] = name


def _metadata_names(names: Sequence[str]) -> dict[str, str]:
    """Name what belongs to no step so that no name is there twice, and none is a folder of another."""
    given = {name: name.removeprefix(_METADATA) for name in names if name.startswith(_METADATA)}
    for name in names:
        if name in given:
            continue
        root, slash, rest = name.partition("/")
        while any(_clash(root + slash + rest, other) for other in given.values()):
            root += "_"
        given[name] = root + slash + rest
    return {name: given[name] for name in names}


def _clash(left: str, right: str) -> bool:
    return f"{left}/".startswith(f"{right}/") or f"{right}/".startswith(f"{left}/")


def _metadata_faults(arrays: Sequence[Hdf5Array]) -> Iterator[str]:
    size = sum(array.dtype.itemsize * math.prod(array.shape) for array in arrays)
    if size > _METADATA_MOST:
        yield f"what belongs to no step has {size:,} bytes; expected at most {_METADATA_MOST:,}"
    for array in arrays:
        if not (array.numeric or array.text):
            yield f"{array.name} has dtype {array.dtype}; expected numbers or text"
