"""Tubs of Donkeycar: the arrays of a recording, with the path of an image in each row.

tub              manifest.json, catalog_0.catalog, ..., images/0_cam_image_array_.jpg
tub, version 1   meta.json, record_0.json, ..., 0_cam-image_array_.jpg

row              _index, _session_id, _timestamp_ms, cam/image_array, user/angle, user/throttle, user/mode
array            observation/image, action = [angle, throttle] of the user, info/index, info/session, info/imu/acl_x, ...
episode          a session, of version 2 alone. Rows that were deleted within a session separate episodes
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX, first_problems
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, Rows
from datasets_rl.ted.keys import natural_order

_LINE_MAX_BYTES = 1 << 20
_INDEX_MAX = 1 << 53
_MANIFEST_MAX_BYTES = 64 << 20
_CATALOG = re.compile(r"catalog_\d+\.catalog")
_RECORD = re.compile(r"record_(\d{1,15})\.json")
_IMAGE, _ANGLE, _THROTTLE, _MODE = "cam/image_array", "user/angle", "user/throttle", "user/mode"
_INDEX, _SESSION, _TIME = "_index", "_session_id", "_timestamp_ms"
_IMAGES = "images"
_DRIVERS = {"user", None}
_NO_SESSION = "a tub without sessions does not state where an episode ends"


class _Rows(ArrayFile):
    """Rows of a tub, in memory without the images.

    Args:
        name: Name of the file in errors.
        rows: The rows, in order.
        numbers: Number of each row in the recording, ascending, of the rows that exist.
        problems: What is wrong with the files.

    Raises:
        ConversionError: If the files are not a tub. The error names every problem.
    """

    is_table = True
    image_folder = ""
    """Beginning of the path of an image of which a row has the name alone."""

    def __init__(
        self, name: str, rows: Sequence[Mapping[str, Any]], numbers: Sequence[int], problems: list[str]
    ) -> None:
        self.name = name
        self._values: dict[str, Any] = {}
        names = dict.fromkeys(key for row in rows for key in row)
        columns = {key: [row.get(key) for row in rows] for key in names}
        absent = {key: sum(row.get(key) is None for row in rows) for key in (_IMAGE, _ANGLE, _THROTTLE)}
        problems += [
            f"{key} is missing in {count:,} of {len(rows):,} rows"
            for key, count in absent.items()
            if 0 < count < len(rows)
        ]
        if problems:
            raise ConversionError(name, first_problems(problems))
        if not rows:
            self.arrays = {
                "observation/image": Array(0, (), TEXT, text=True),
                "action": Array(0, (2,), np.dtype(float)),
            }
            return
        values = {key: _as_array(column) for key, column in columns.items()}
        others = {mode for mode in columns.get(_MODE, []) if mode not in _DRIVERS}
        own = {_IMAGE: "observation/image", _INDEX: "info/index", _TIME: "info/timestamp_ms", _SESSION: "info/session"}
        fields: dict[str, Any] = {}
        both = (values.get(key) for key in (_ANGLE, _THROTTLE))
        controls = [control for control in both if isinstance(control, np.ndarray) and control.ndim == 1]
        if not others and len(controls) == len((_ANGLE, _THROTTLE)):
            fields["action"] = np.stack(controls, axis=1).astype(np.float64)
            own |= {_ANGLE: "", _THROTTLE: "", _MODE: ""}
        # Inputs without a group, such as "steering", may be the action.
        named = {key: own.get(key, f"info/{key}" if "/" in key else "") for key in values}
        fields |= {name: values[key] for key, name in named.items() if name and values[key] is not None}
        if isinstance(paths := values.get(_IMAGE), list):
            fields["observation/image"] = [one if "/" in one else f"{self.image_folder}{one}" for one in paths]
        contained = [key for key, one in values.items() if one is not None and (named[key] or key in own)]
        self._values = {**values, **fields}
        runs = np.cumsum(np.diff(np.asarray(numbers), prepend=numbers[0]) > 1)
        sessions = columns.get(_SESSION, [None])
        if None in sessions:
            self._values["recording"] = runs
            self.open_question = f"{_NO_SESSION}. The array recording numbers the ranges of consecutive rows"
            contained.append("recording")
        else:
            names_of_sessions, codes = np.unique([str(session) for session in sessions], return_inverse=True)
            is_new = np.diff(codes, prepend=codes[0]) != 0
            if is_new.sum() >= len(names_of_sessions):
                ranges = f"{len(names_of_sessions):,} sessions are in {is_new.sum() + 1:,} ranges of rows"
                raise ConversionError(name, [f"{ranges}, expected consecutive rows for each session"])
            is_cut = np.diff(runs, prepend=0) != 0
            self._values["episode"] = np.cumsum(is_new | is_cut)
            self.decisions = {"session-split": int((is_cut & ~is_new).sum())}
        self.contained = contained
        self.arrays = {key: _described(one, len(rows)) for key, one in self._values.items()}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        values = self._values.get(name, [])
        if values is None:
            raise ConversionError(self.name, [f"{name} has values of several kinds, expected numbers or texts"])
        for start in range(0, len(values), rows):
            yield values[start : start + rows]

    def __exit__(self, *details: object) -> None:
        self._values = {}


class TubFile(_Rows):
    """Open tub: the manifest, and the catalogs beside it."""

    def __init__(self, path: Path, name: str) -> None:
        rows: list[Mapping[str, Any]] = []
        problems: list[str] = []
        manifest = _read_manifest(path, name)
        for catalog in manifest["paths"]:
            rows += _catalog_rows(path.parent, catalog, problems)
        indexes = [index for row in rows if type(index := row.get(_INDEX)) is int and 0 <= index < _INDEX_MAX]
        if len(indexes) < len(rows):
            problems.append(
                f"{_INDEX} is missing in {len(rows) - len(indexes):,} rows, expected an integer from 0 in each row"
            )
        elif back := [number for number in range(1, len(rows)) if indexes[number] <= indexes[number - 1]]:
            before, index = indexes[back[0] - 1], indexes[back[0]]
            problems.append(f"{_INDEX} is {index} after {before} in row {back[0]:,}, expected ascending numbers")
        elif rows and indexes[-1] + 1 < manifest["current_index"]:
            current = manifest["current_index"]
            problems.append(
                f"the last row is {indexes[-1]:,}, but the manifest states {current:,} rows: rows are missing"
            )
        deleted = {*manifest["deleted_indexes"]}
        kept = [row for row in rows if row.get(_INDEX) not in deleted]
        self.image_folder = f"{_IMAGES}/" if (path.parent / _IMAGES).is_dir() else ""
        super().__init__(name, kept, [row.get(_INDEX, 0) for row in kept], problems)
        self.decisions = {"deleted-rows": len(rows) - len(kept), **self.decisions}


class RecordsFile(_Rows):
    """Open tub of version 1: a file of JSON for each row."""

    def __init__(self, path: Path, name: str) -> None:
        found = sorted(
            (one.name for one in path.parent.iterdir() if _RECORD.fullmatch(one.name) and one.is_file()),
            key=natural_order,
        )
        problems: list[str] = []
        rows = []
        for record in found:
            try:
                rows.append(_object((path.parent / record).read_bytes()[: _LINE_MAX_BYTES + 1]))
            except (OSError, ValueError) as error:
                problems.append(f"{record}: {error}")
        numbers = [int(match[1]) for record in found if (match := _RECORD.fullmatch(record))]
        super().__init__(name, rows, numbers, problems)
        missing = numbers[-1] - numbers[0] + 1 - len(numbers) if numbers else 0
        self.decisions = {**self.decisions, "missing-records": missing}


def _read_manifest(path: Path, name: str) -> dict[str, Any]:
    """Return the last line of a manifest, which lists the catalogs and the deleted rows."""
    with path.open("rb") as stream:
        lines = [line for line in stream.read(_MANIFEST_MAX_BYTES).splitlines() if line.strip()]
    try:
        last = _object(lines[-1] if lines else b"", _MANIFEST_MAX_BYTES)
    except ValueError as error:
        raise ConversionError(name, [f"the last line {error}, expected the list of catalogs of a tub"]) from error
    found = sorted(
        (one.name for one in path.parent.iterdir() if _CATALOG.fullmatch(one.name) and one.is_file()), key=natural_order
    )
    stated = last.get("paths", found)
    deleted, current = last.get("deleted_indexes", []), last.get("current_index", 0)
    problems = []
    if not isinstance(stated, list) or not all(isinstance(one, str) and _CATALOG.fullmatch(one) for one in stated):
        problems.append(f"paths is {str(stated)[:80]}, expected names such as catalog_0.catalog")
    elif {*stated} ^ {*found}:
        wrong = join_names(sorted({*stated} ^ {*found}, key=natural_order), ITEMS_MAX)
        problems.append(f"the manifest and the folder do not have the same catalogs: {wrong} in only one of them")
    if not isinstance(deleted, list) or not all(type(one) is int for one in deleted):
        problems.append("deleted_indexes is not a list of integers")
    if type(current) is not int:
        problems.append(f"current_index is {current!r}, expected an integer")
    if problems:
        raise ConversionError(name, problems)
    return {"paths": stated, "deleted_indexes": deleted, "current_index": current}


def _catalog_rows(folder: Path, catalog: str, problems: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a catalog, and add what is wrong with the catalog to `problems`."""
    count = 0
    with (folder / catalog).open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LINE_MAX_BYTES + 1), b"")):
            if not line.strip():
                continue
            try:
                yield _object(line)
            except ValueError as error:
                problems.append(f"{catalog}: row {number:,} {error}")
            count += 1
    stated = folder / f"{catalog}_manifest"
    if stated.is_file() and (lengths := _line_lengths(stated)) is not None and lengths != count:
        problems.append(f"{catalog} has {count:,} rows, but {stated.name} states {lengths:,}")


def _line_lengths(path: Path) -> int | None:
    """Return the number of rows that the manifest of a catalog states, or None if it states no number."""
    try:
        with path.open("rb") as stream:
            lengths = _object(stream.read(_MANIFEST_MAX_BYTES), _MANIFEST_MAX_BYTES).get("line_lengths")
    except ValueError:
        return None
    return len(lengths) if isinstance(lengths, list) and lengths else None


def _object(text: bytes, max_bytes: int = _LINE_MAX_BYTES) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: If the text is not an object.
    """
    if len(text) > max_bytes:
        raise ValueError(f"has more than {max_bytes:,} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"is {type(value).__name__}, expected an object")  # noqa: TRY004 - text that a user wrote
    return value


def _as_array(column: Sequence[Any]) -> Any:
    """Return values as numbers [N] or as texts, or None if the values are neither."""
    kinds = {type(value) for value in column}
    if kinds == {str}:
        return list(column)
    with suppress(OverflowError, ValueError):
        if kinds in ({bool}, {int}):
            return np.array(column, np.bool_ if bool in kinds else np.int64)
        if kinds == {list}:
            vectors: NDArray[Any] = np.array(column)
            return vectors if vectors.dtype.kind in "if" and vectors.size else None
        if kinds <= {int, float, type(None)} and float in kinds:
            return np.array([np.nan if value is None else value for value in column], np.float64)
    return None


def _described(values: Any, rows: int) -> Array:
    if values is None:
        return Array(rows, (), np.dtype(object))
    if isinstance(values, list):
        return Array(rows, (), TEXT, text=True)
    numbers: NDArray[Any] = values
    return Array(rows, numbers.shape[1:], numbers.dtype)
