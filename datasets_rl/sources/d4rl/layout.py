"""Mapping of the HDF5 datasets of a file in D4RL's layout to columns, flags and metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Hdf5Array
from datasets_rl.read.streams import refuse
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.plan import ColumnSlice, Plan
from datasets_rl.sources.values import WIDENED
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
)

_FLAGS: Mapping[str, Key] = {"terminals": NEXT_TERMINATED, "timeouts": NEXT_TRUNCATED}
COLUMN_OF: Mapping[str, Key] = {
    "observations": OBSERVATION,
    "actions": ACTION,
    "rewards": NEXT_REWARD,
    "costs": (NEXT, "cost"),
    "infos": ("info",),
}
"""The key for each name that D4RL defines. For datasets in a group of that name, the rest of the path is appended."""
_TOO_WIDE = (np.dtype(np.uint64).str, *({np.dtype(np.longdouble).str} - {np.dtype(np.float64).str}))
_MANDATORY = ("observations", "actions", "rewards", "terminals")
_FOLLOWING = "next_observations"
_SHARED = ("observations", "infos")
_RESERVED = frozenset(
    {"observation", "action", "reward", "info", "next", "episode", "done", "terminated", "truncated", "mask"}
)
_METADATA = "metadata/"
_METADATA_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Plan of a D4RL file."""

    plan: Plan
    rows: int
    """Number of rows, N."""
    metadata: Mapping[str, str]
    """Metadata name of each HDF5 dataset that does not have one row per step."""
    renamed: int
    """Number of columns and metadata with another name than in the file."""


def plan_file(arrays: Mapping[str, Hdf5Array], layout: Layout, dataset_id: str, facts: Mapping[str, Any]) -> FilePlan:
    """Map each HDF5 dataset of a file to a column, a flag or metadata.

    Args:
        arrays: The HDF5 datasets of the file.
        layout: The layout of the file.
        dataset_id: Id of the dataset, for messages.
        facts: ``sizes`` of the observations and actions of the environment, if known, and further datasets that are
            ``required``.

    Raises:
        ConversionError: If the file violates the layout. The error names every problem of every column.
    """
    rows = _row_count(arrays)
    kinds = {name: _dataset_kind(name, array, rows) for name, array in arrays.items()}
    columns = [name for name, kind in kinds.items() if kind == "column"]
    metadata = _metadata_names([name for name, kind in kinds.items() if kind == "metadata"])
    following = [name for name, kind in kinds.items() if kind == "following"]
    flags = {key: name for name, key in _FLAGS.items() if name in arrays}
    problems = [*_missing_problems(arrays, facts.get("required", ())), *(["it has no rows"] if rows == 0 else [])]
    for name in (*columns, *flags.values(), *following):
        problems.extend(_column_problems(arrays[name], rows))
    for name in following:
        problems.extend(_following_problems(arrays[name], arrays))
    problems.extend(_size_problems(arrays, dataset_id, facts.get("sizes")))
    columns = [name for name in columns if 0 not in arrays[name].shape[1:]]
    problems.extend(_key_problems(columns))
    problems.extend(_metadata_problems([arrays[name] for name in metadata]))
    refuse(dataset_id, problems)
    parts = tuple(_column_slice(arrays[name]) for name in sorted(columns, key=_column_order))
    after = {_column_key(name.replace(_FOLLOWING, "observations", 1)): name for name in following}
    renamed = sum("." in name for name in columns)
    renamed += sum(name.removeprefix(_METADATA) != metadata_name for name, metadata_name in metadata.items())
    widened = sum(arrays[name].dtype in WIDENED for name in columns)
    return FilePlan(Plan(layout, parts, after, flags, {}, "flags", widened=widened), rows, metadata, renamed)


def with_explicit_next(plan: Plan) -> Plan:
    """Return a plan that stores next observations as separate columns, for rows that do not form trajectories."""
    parts: list[ColumnSlice] = []
    for part in plan.parts:
        name = plan.following.get(part.column.key)
        column = part.column if name is None else replace(part.column, shared=False)
        parts.append(ColumnSlice(part.array, column))
        if name is not None:
            parts.append(ColumnSlice(name, replace(column, key=(NEXT, *column.key))))
    return replace(plan, parts=tuple(parts), following={})


def _dataset_kind(name: str, array: Hdf5Array, rows: int) -> str:
    root = name.partition("/")[0]
    if root == "virtual":
        kind = "ignored"
    elif root == "metadata":
        kind = "metadata"
    elif name in _FLAGS:
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


def _column_slice(array: Hdf5Array) -> ColumnSlice:
    key = _column_key(array.name)
    shape = array.shape[1:] if key[0] != NEXT or math.prod(array.shape[1:]) > 1 else (1,)
    is_shared = array.name.partition("/")[0] in _SHARED
    return ColumnSlice(array.name, Column(key, WIDENED.get(array.dtype, array.dtype), shape, shared=is_shared))


def _column_key(name: str) -> Key:
    root, *rest = name.replace(".", "_").split("/")
    return (*COLUMN_OF.get(root, (root,)), *rest)


def _column_order(name: str) -> int:
    """Return the sort key of a column: names that D4RL defines come first, the others in file order."""
    root = name.partition("/")[0]
    roots = list(COLUMN_OF)
    return roots.index(root) if root in roots else len(roots)


def _missing_problems(arrays: Mapping[str, Hdf5Array], required: Sequence[str]) -> Iterator[str]:
    present = {name.partition("/")[0] for name in arrays}
    for name in (*_MANDATORY, *required):
        if name not in present:
            yield f"{name} is missing, expected {name} [N{', ...' if name in {'observations', 'actions'} else ''}]"


def _column_problems(array: Hdf5Array, rows: int) -> Iterator[str]:
    shape = list(array.shape)
    if not array.numeric:
        yield f"{array.name} has dtype {array.dtype}, expected booleans, integers or floats"
    elif array.name not in _FLAGS and array.dtype.str in _TOO_WIDE:
        yield f"{array.name} has dtype {array.dtype}, which torch does not support"
    if array.shape[:1] != (rows,):
        yield f"{array.name} has shape {shape}, expected {rows:,} rows, as many as the other columns"
    elif array.name in {*_FLAGS, "rewards", "costs"} and math.prod(array.shape[1:]) != 1:
        yield f"{array.name} has shape {shape}, expected [{rows}] or [{rows}, 1]"


def _size_problems(arrays: Mapping[str, Hdf5Array], dataset_id: str, sizes: Sequence[int] | None) -> Iterator[str]:
    for name, expected in zip(("observations", "actions"), sizes or (), strict=False):
        # Observations of several parts are a group, for which the catalog has no single size.
        if name in arrays and (size := math.prod(arrays[name].shape[1:])) != expected:
            title = dataset_id.rpartition("/")[2]
            yield f"{name} have {size:,} numbers per step, but {title} has {expected:,}: this is another dataset's file"


def _following_problems(array: Hdf5Array, arrays: Mapping[str, Hdf5Array]) -> Iterator[str]:
    name = array.name.replace(_FOLLOWING, "observations", 1)
    if name not in arrays:
        yield f"{array.name} exists without {name}"
    elif arrays[name].shape[1:] != array.shape[1:]:
        yield f"{array.name} has shape {list(array.shape)}, expected that of {name}, {list(arrays[name].shape)}"


def _key_problems(names: Sequence[str]) -> Iterator[str]:
    seen: dict[Key, str] = {}
    for name in names:
        key = _column_key(name)
        if name.partition("/")[0] not in COLUMN_OF and key[0] in _RESERVED:
            yield f"{name} has a name that TED reserves, expected another name"
        if key in seen:
            yield f"{name} and {seen[key]} both map to the key {dotted_name(key)}"
        seen[key] = name


def _metadata_names(names: Sequence[str]) -> dict[str, str]:
    """Map HDF5 datasets to metadata names such that the names are unique and none is a folder of another."""
    assigned = {name: name.removeprefix(_METADATA) for name in names if name.startswith(_METADATA)}
    for name in names:
        if name in assigned:
            continue
        root, slash, rest = name.partition("/")
        while any(_are_nested(root + slash + rest, other) for other in assigned.values()):
            root += "_"
        assigned[name] = root + slash + rest
    return {name: assigned[name] for name in names}


def _are_nested(left: str, right: str) -> bool:
    return f"{left}/".startswith(f"{right}/") or f"{right}/".startswith(f"{left}/")


def _metadata_problems(arrays: Sequence[Hdf5Array]) -> Iterator[str]:
    size = sum(array.dtype.itemsize * math.prod(array.shape) for array in arrays)
    if size > _METADATA_MAX_BYTES:
        yield f"the datasets without one row per step have {size:,} bytes, expected at most {_METADATA_MAX_BYTES:,}"
    for array in arrays:
        if not (array.numeric or array.text):
            yield f"{array.name} has dtype {array.dtype}, expected numbers or text"
