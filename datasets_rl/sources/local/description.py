"""Parser of ``dataset.toml``, the description of the files in its folder.

    name = "Gripper, second run"        shown in listings
    columns = ["obs_0", "action"]       the columns of a CSV file without a header
    license = "CC-BY-4.0"
    environment = "Gripper-v1"          shown in listings, and searched by

    [score]
    low = -10.0                         the return of a random policy
    high = 250.0                        that of an expert

    [episodes]
    by = "column"                       or file, flags, seams, starts, ends, last-rows, lengths, steps, axis, group, suffix
    array = "episode_index"

    [fields]
    observation.joints = "joints"
    action = { array = "torques", low = -1.0, high = 1.0 }
    observation.pose = ["x", "y"]       columns of a table

Names that the description does not state are inferred from the usual names of arrays.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from datasets_rl.errors import Argument, Call, ConversionError, InvalidArgumentError, Remedy, join_names
from datasets_rl.sources.flat.folders import data_folders, shown_path
from datasets_rl.sources.flat.formats import FORMATS, formats_of
from datasets_rl.sources.flat.layout import ALIGNMENTS, BUFFERS, MARKED, WAYS, Field, Layout
from datasets_rl.sources.flat.names import overlap
from datasets_rl.ted.keys import (
    NEXT,
    NEXT_COST,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_SUCCESS,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    Key,
    natural_order,
)

FILE = "dataset.toml"
_LAYOUTS = ("HWC to CHW", "CHW to HWC")
SHORT: Mapping[str, Key] = {
    key[1]: key for key in (NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE, NEXT_COST, NEXT_SUCCESS)
}
"""Keys that a description names without ``next``."""
_TEXTS = ("name", "format", "alignment", "buffer", "license", "citation", "homepage", "environment")
_LISTS = ("files", "columns", "known_issues")
_TABLES = ("episodes", "fields", "score")
_SCORE_ORIGIN = "dataset.toml"
_OPTIONS = ("array", "layout", "low", "high", "n", "binary", "state")
_NUMBER = re.compile(r"\d+(?=\D*$)")
_ENDING = re.compile(r"(\.[^\W\d]\w*)+$")
_EPISODES = ("by", "array", "table", "final", "final_known")


@dataclass(frozen=True, slots=True)
class Description(Layout):
    """Parsed and validated ``dataset.toml``: a layout, and what the user states about the dataset."""

    inferred: bool = True
    missing_reward: float | None = 0.0
    name: str = ""
    format: str = ""
    """A name in `FORMATS`, by default inferred from the suffixes of the files."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    environment: str = ""
    """The environment of the steps, by the id in Gymnasium or the usual name."""
    score: tuple[float, float, str] | None = None
    """Returns with the normalized scores 0 and 1, and the origin of the two returns."""
    files: tuple[str, ...] = ()
    """Globs on the paths of the files, by default all files of the format."""
    known_issues: tuple[str, ...] = ()

    @classmethod
    def read(cls, document: Mapping[str, Any], dataset_id: str) -> Description:
        """Validate a parsed TOML document.

        Raises:
            ConversionError: If the document is invalid. The error names every problem.
        """
        problems = list(_key_problems(document, (*_TEXTS, *_LISTS, *_TABLES), ""))
        values: dict[str, Any] = _read_texts(document, _TEXTS, "", problems)
        for name in _LISTS:
            value = document.get(name, [])
            values[name] = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else (value,)
            if not all(isinstance(item, str) for item in values[name]):
                problems.append(f"{name} is {value!r}, expected a list of strings")
        if values["columns"] and len({*values["columns"]}) < len(values["columns"]):
            problems.append("columns has a name twice, expected a different name for each column")
        for name, choices in (("format", (*FORMATS, "")), ("alignment", (*ALIGNMENTS, "")), ("buffer", (*BUFFERS, ""))):
            problems.extend(_choice_problems(name, values[name], choices))
        tables: dict[str, Mapping[str, Any]] = {}
        for name in _TABLES:
            table = {} if document.get(name) is None else document[name]
            if not isinstance(table, Mapping):
                problems.append(f"{name} is {table!r}, expected a table, [{name}]")
            tables[name] = table if isinstance(table, Mapping) else {}
        values |= _read_episodes(tables["episodes"], problems)
        values["fields"] = tuple(_read_fields(tables["fields"], (), problems))
        problems.extend(_nesting_problems(values["fields"]))
        values["score"] = _read_score(tables["score"], problems) if tables["score"] else None
        if problems:
            raise ConversionError(dataset_id, [f"{FILE}: {problem}" for problem in problems])
        return cls(**values)

    def data_files(self, paths: Iterable[str], name: str) -> tuple[str, list[str]]:
        """Return the format and the data files, in numeric order: 2 precedes 10.

        Raises:
            ConversionError: If there are no data files, or the data files have several formats.
        """
        others = [path for path in paths if path.rpartition("/")[2] != FILE and path != self.table]
        folders = data_folders(others, self.format)
        inside = {member for folder in folders.values() for member in folder.members} - folders.keys()
        candidates = [path for path in others if path not in inside]
        if self.files:
            candidates = [path for path in candidates if _matches(shown_path(path, folders) or path, self.files)]
        # Some formats are recognized by the files beside.
        formats = formats_of(candidates, folders) or {
            path: form for path, form in formats_of(others, folders).items() if path in candidates
        }
        # A description that states both the format and the files overrides the suffixes.
        explicit = self.format and self.files
        chosen = self.format or next(iter(formats.values()), "")
        data = sorted((path for path in candidates if explicit or formats.get(path) == chosen), key=natural_order)
        if not data or (not self.format and len(set(formats.values())) > 1):
            known = join_names([form.title for form in FORMATS.values()])
            if not others:
                raise ConversionError(name, [f"there is no file beside {FILE}"], hint=f"add files of {known}")
            kinds = ", ".join(sorted(set(formats.values()))) or f"none of {known}"
            criterion = ", ".join(self.files) if self.files else self.format or "a single format"
            problem = f"of {len(others):,} files ({kinds}), {len(data):,} match {criterion}"
            if not candidates:
                problem = f"none of {len(others):,} files matches {criterion}"
            raise ConversionError(name, [problem], hint=f"set format = ... and files = ... in {FILE}")
        if self.columns and chosen != "csv":
            problem = f"{FILE}: columns names the columns of a CSV file, but the files are {FORMATS[chosen].title}"
            raise ConversionError(name, [problem], hint=f"remove columns from {FILE}")
        return chosen, data


def missing_numbers(names: Iterable[str]) -> int:
    """Return how many numbers are missing between those of names, such as 1 of ``demo_0`` and ``demo_2``.

    Most numbers of a series are present. Others are dates or seeds.
    """
    series: dict[tuple[str, str], set[int]] = {}
    for name in names:
        stem = _ENDING.sub("", name)  # .hdf5 has a number, too
        if match := _NUMBER.search(stem):
            series.setdefault((stem[: match.start()], stem[match.end() :]), set()).add(int(match[0]))
    gaps = ((len(numbers), max(numbers) - min(numbers) + 1 - len(numbers)) for numbers in series.values())
    return sum(missing for present, missing in gaps if missing <= present)


def no_episode_numbers_error(by: str) -> InvalidArgumentError:
    """Return the error for a selection of episodes by number if the files are not single episodes."""
    return InvalidArgumentError(
        f"episodes can be selected by number only if each file is one episode, but here {by} mark the episodes",
        hint=Remedy(
            'set [episodes] by = "file" in {}, or select files with {}',
            FILE,
            Argument("selection", Call("Selection", include=...)),
        ),
    )


def _matches(path: str, globs: Sequence[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in globs)


def _key_problems(table: Mapping[str, Any], allowed: Sequence[str], where: str) -> Iterator[str]:
    for name in table:
        if name not in allowed:
            near = difflib.get_close_matches(str(name), allowed, n=1)
            yield f"{where}{name} is unknown, expected one of {', '.join(near or allowed)}"


def _choice_problems(name: str, value: Any, allowed: Sequence[str]) -> Iterator[str]:
    if isinstance(value, str) and value not in allowed:
        yield f"{name} is {value!r}, expected one of {', '.join(filter(None, allowed))}"


def _read_texts(table: Mapping[str, Any], names: Sequence[str], where: str, problems: list[str]) -> dict[str, str]:
    """Return the texts of some keys. The text of a key that is missing or is not a text is empty."""
    values = {name: table.get(name, "") for name in names}
    wrong = {name: value for name, value in values.items() if not isinstance(value, str)}
    problems.extend(f"{where}{name} is {value!r}, expected a string" for name, value in wrong.items())
    return {**values, **dict.fromkeys(wrong, "")}


def _read_episodes(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    problems.extend(_key_problems(table, _EPISODES, "episodes."))
    known = len(problems)
    values = _read_texts(table, _EPISODES, "episodes.", problems)
    by, marks = values["by"], values.pop("array")
    problems.extend(_choice_problems("episodes.by", by, (*WAYS, "")))
    needs, takes = by in MARKED, by in {*MARKED, "axis", "group"}
    if len(problems) == known and marks and by and not takes:
        problems.append(f"episodes.by = {by!r} takes no array, expected no episodes.array")
    elif len(problems) == known and (needs > bool(marks) or (marks and not by)):
        problems.append(f"episodes has {'by' if by else 'array'}, expected also episodes.{'array' if by else 'by'}")
    if values["final"] and values["final"].count("{}") != 1:
        problems.append(f"episodes.final is {values['final']!r}, expected a name with {{}} for that of the state")
    if values["final_known"] and not values["final"]:
        problems.append("episodes has final_known, expected also episodes.final")
    return {**values, "marks": marks, "seams": by == "seams"}


def _read_score(table: Mapping[str, Any], problems: list[str]) -> tuple[float, float, str] | None:
    known = len(problems)
    problems.extend(_key_problems(table, ("low", "high", "origin"), "score."))
    low, high, origin = table.get("low"), table.get("high"), table.get("origin", _SCORE_ORIGIN)
    if not isinstance(origin, str):
        problems.append(f"score.origin is {origin!r}, expected a string")
    if any(isinstance(bound, list) or not _is_number_list(bound) for bound in (low, high)):
        problems.append(f"score.low and score.high are {low!r} and {high!r}, expected two numbers")
    elif not low < high:  # type: ignore[operator]  # two numbers
        problems.append(f"score.low is {low} and score.high is {high}, expected a low one below a high one")
    return None if len(problems) > known else (float(low), float(high), origin)  # type: ignore[arg-type]


def _read_fields(table: Mapping[str, Any], path: Key, problems: list[str]) -> Iterator[Field]:
    """Yield the fields of a table and of the subtables. A subtable with an array is a field itself."""
    for name, value in table.items():
        key = (*path, *name.split("."))
        if len(key) == 1:
            key = SHORT.get(key[0], key)
        where = ".".join(key)
        if not all(key):
            problems.append(f"fields: {where!r} is not a valid key, expected names joined by dots")
        elif isinstance(value, str) and value:
            yield Field(key, value)
        elif isinstance(value, list) and value and all(isinstance(column, str) and column for column in value):
            yield Field(key, ", ".join(value), columns=tuple(value))
        elif isinstance(value, Mapping) and isinstance(value.get("array"), str):
            yield from _read_field(key, value, problems)
        elif isinstance(value, Mapping):
            yield from _read_fields(value, key, problems)
        elif not isinstance(value, list) and _is_number_list(value) and key == NEXT_REWARD:
            yield Field(key, "", constant=float(value))
        else:
            expected = "the name of an array, the columns of a table, or { array = ..., ... }"
            expected += ", or 0.0 for steps without rewards" if key == NEXT_REWARD else ""
            problems.append(f"fields.{where} is {value!r}, expected {expected}")


def _read_field(key: Key, table: Mapping[str, Any], problems: list[str]) -> Iterator[Field]:
    where = ".".join(key)
    problems.extend(_key_problems(table, _OPTIONS, f"fields.{where}."))
    layout, n = table.get("layout", ""), table.get("n")
    if not table["array"]:
        problems.append(f"fields.{where}.array is '', expected the name of an array")
    if layout not in (*_LAYOUTS, ""):
        problems.append(f"fields.{where}.layout is {layout!r}, expected one of {', '.join(_LAYOUTS)}")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        problems.append(f"fields.{where}.n is {n!r}, expected an integer >= 1")
    low, high, state = table.get("low"), table.get("high"), table.get("state")
    binary = table.get("binary", False)
    if not isinstance(binary, bool):
        problems.append(f"fields.{where}.binary is {binary!r}, expected true or false")
    if state not in {None, True, False} or (state and key[0] == NEXT):
        problems.append(f"fields.{where}.state is {state!r}, expected true or false, and false for a field of next")
    if not all(bound is None or _is_number_list(bound) for bound in (low, high)):
        problems.append(f"fields.{where}: low and high are {low!r} and {high!r}, expected numbers, or lists of them")
    elif (low is None) != (high is None):
        problems.append(f"fields.{where} has only one of low and high, expected both")
    elif (n is not None) + (low is not None) + (binary is True) > 1:
        problems.append(f"fields.{where} has several of n, bounds and binary, expected only one of them")
    else:
        yield Field(key, table["array"], layout, low, high, n, binary is True, state=state)


def _is_number_list(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_number_list(item) for item in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _nesting_problems(fields: Sequence[Field]) -> Iterator[str]:
    for number, current in enumerate(fields):
        name = ".".join(current.key)
        if current.key[0] == NEXT and (len(current.key) == 1 or current.key[1] == "info"):
            yield f"fields.{name} is not allowed: the info after a step is that of the next row, or of episodes.final"
        if current.key[0] in {"episode", "mask"}:
            yield f"fields.{name} has a name that TED reserves, expected another name"
        for other in fields[:number]:
            if overlap(current.key, other.key):
                yield f"fields.{name} and fields.{'.'.join(other.key)} exclude each other"
