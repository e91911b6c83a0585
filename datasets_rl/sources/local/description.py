"""What a ``dataset.toml`` says of the files beside it.

    name = "Gripper, second run"        shown in listings
    license = "CC-BY-4.0"

    [episodes]
    by = "column"                       or file, flags, lengths, ends
    array = "episode_index"

    [fields]
    observation.joints = "joints"
    action = { array = "torques", low = -1.0, high = 1.0 }

What it does not say follows from the usual names.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

__all__ = ["ALIGNMENTS", "ENDINGS", "FILE", "WAYS", "Description", "Field", "no_choice", "usual"]

FILE = "dataset.toml"
ENDINGS: Mapping[str, tuple[str, ...]] = {"hdf5": (".hdf5", ".h5"), "npz": (".npz",), "parquet": (".parquet",)}
"""The endings of the files of each format."""
WAYS = ("file", "flags", "column", "lengths", "ends")
"""How the ends of episodes are told."""
ALIGNMENTS = ("same-row", "one-more", "action-before")
_LAYOUTS = ("HWC to CHW", "CHW to HWC")
_USUAL: Mapping[Key, tuple[str, ...]] = {
    OBSERVATION: ("observation", "observations", "obs", "state", "states"),
    ACTION: ("action", "actions", "act"),
    NEXT_REWARD: ("reward", "rewards", "rew", "next/reward"),
    NEXT_TERMINATED: ("terminated", "terminations", "terminals", "terminal"),
    NEXT_TRUNCATED: ("truncated", "truncations", "timeouts", "timeout"),
    NEXT_DONE: ("done", "dones", "next/done"),
    (NEXT, *OBSERVATION): ("next_observation", "next_observations", "next_obs"),
    ("info",): ("info", "infos"),
}
_MARKS = ("episode_index", "episode_id", "episode")
_SHORT: Mapping[str, Key] = {key[1]: key for key in (NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)}
_TEXTS = ("name", "format", "alignment", "license", "citation", "homepage")
_LISTS = ("files", "known_issues")
_TABLES = ("episodes", "fields")
_FORMER_KEYS = {"faults": "known_issues", "licence": "license"}
"""Keys of version 0.1 of this package, which users' files may still have."""
_OPTIONS = ("array", "layout", "low", "high", "n")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a step, and the array that has it."""

    key: Key
    array: str
    """With slashes, where it lies in groups; empty where `constant` stands for it."""
    layout: str = ""
    """``HWC to CHW``: how the axes of pictures are turned."""
    low: Any = None
    high: Any = None
    n: int | None = None
    """How many choices there are, counted from 0."""
    constant: float | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A ``dataset.toml``, read and checked."""

    name: str = ""
    format: str = ""
    """One of `ENDINGS`; by default what the endings of the files say."""
    alignment: str = ""
    """One of `ALIGNMENTS`; by default what the numbers of rows say."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    files: tuple[str, ...] = ()
    """Globs on the paths of the files; by default all files of the format."""
    known_issues: tuple[str, ...] = ()
    by: str = ""
    """One of `WAYS`; by default what the file has."""
    marks: str = ""
    """The array that tells the episodes, where it is told by one."""
    fields: tuple[Field, ...] = field(default=())

    @classmethod
    def read(cls, document: Mapping[str, Any], what: str) -> Description:
        """Read what TOML made of the file.

        Raises:
            ConversionError: With everything that is wrong with it.
        """
        document = {_FORMER_KEYS.get(name, name): value for name, value in document.items()}
        problems = list(_key_faults(document, (*_TEXTS, *_LISTS, *_TABLES), ""))
        values: dict[str, Any] = {}
        for name in _TEXTS:
            values[name] = document.get(name, "")
            if not isinstance(values[name], str):
                problems.append(f"{name} is {values[name]!r}; expected a text")
        for name in _LISTS:
            given = document.get(name, [])
            values[name] = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else (given,)
            if not all(isinstance(one, str) for one in values[name]):
                problems.append(f"{name} is {given!r}; expected texts")
        for name, known in (("format", (*ENDINGS, "")), ("alignment", (*ALIGNMENTS, ""))):
            problems.extend(_choice_faults(name, values[name], known))
        episodes, fields = ({} if document.get(name) is None else document[name] for name in _TABLES)
        for name, table in zip(_TABLES, (episodes, fields), strict=True):
            if not isinstance(table, Mapping):
                problems.append(f"{name} is {table!r}; expected a table, [{name}]")
        by, marks = _read_episodes(episodes if isinstance(episodes, Mapping) else {}, problems)
        found = tuple(_read_fields(fields if isinstance(fields, Mapping) else {}, (), problems))
        problems.extend(_nesting_faults(found))
        if problems:
            raise ConversionError(what, [f"{FILE}: {one}" for one in problems])
        return cls(**values, by=by, marks=marks, fields=found)

    def data(self, paths: Iterable[str], what: str) -> tuple[str, list[str]]:
        """Return the format, and which of the files have the data, in their order: 2 comes before 10.

        Raises:
            ConversionError: If none does, or they are of several formats.
        """
        there = [path for path in paths if path.rpartition("/")[2] != FILE]
        wanted = [path for path in there if _meets(path, self.files)] if self.files else there
        formats = {path: form for path in wanted for form, ends in ENDINGS.items() if path.lower().endswith(ends)}
        # Whoever named the files knows better than their endings what they are.
        named = self.format and self.files
        chosen = self.format or next(iter(formats.values()), "")
        data = sorted((path for path in wanted if named or formats.get(path) == chosen), key=_natural)
        if not data or (not self.format and len(set(formats.values())) > 1):
            kinds = ", ".join(sorted(set(formats.values()))) or "neither npz, HDF5 nor Parquet"
            asked = f"for {', '.join(self.files)}" if self.files else f"for {self.format or 'any format'}"
            problem = f"there are {len(there):,} files ({kinds}), and {asked} {len(data):,} are of use"
            raise ConversionError(what, [problem], hint=f"say format = ... and files = ... in {FILE}")
        return chosen, data

    def of(self, arrays: Iterable[str]) -> tuple[Field, ...]:
        """Return the fields of a file with these arrays: those that are named here, and those of usual names."""
        named = {one.key for one in self.fields}
        taken = {one.array for one in self.fields} | {self.marks}
        more = [
            Field(key, array)
            for array, key in usual(arrays).items()
            if array not in taken and not any(_overlap(key, one) for one in named)
        ]
        if {NEXT_TERMINATED, NEXT_TRUNCATED} & {one.key for one in (*self.fields, *more)}:
            more = [one for one in more if one.key != NEXT_DONE]
        return (*self.fields, *more)

    def told(self, arrays: Iterable[str], fields: Sequence[Field]) -> tuple[str, str]:
        """Return how the ends of the episodes of a file are told, and by which array."""
        if self.by:
            return self.by, self.marks
        marks = next((name for name in arrays if name in _MARKS), "")
        if marks:
            return "column", marks
        flags = {NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE}
        return ("flags", "") if flags & {one.key for one in fields} else ("file", "")


def no_choice(by: str) -> InvalidArgumentError:
    """Make the error for episodes that are chosen by number where a file is not one episode."""
    return InvalidArgumentError(
        f"episodes can be chosen where a file is an episode; here {by} tell them apart",
        hint=f'put [episodes] by = "file" into {FILE}, or choose files with --include',
    )


def usual(arrays: Iterable[str]) -> dict[str, Key]:
    """Return the keys of the arrays whose names are usual ones; the first of several names for a key counts."""
    found: dict[str, Key] = {}
    roots: dict[Key, str] = {}
    parts = {name: tuple(re.split(r"[./]", name)) for name in arrays}
    for key, names in _USUAL.items():
        for usual_name in names:
            root = tuple(usual_name.split("/"))
            for array, way in parts.items():
                if way[: len(root)] == root and all(way) and roots.setdefault(key, usual_name) == usual_name:
                    found[array] = (*key, *way[len(root) :])
    return found


def _overlap(left: Key, right: Key) -> bool:
    most = min(len(left), len(right))
    return left[:most] == right[:most]


def _meets(path: str, globs: Sequence[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in globs)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def _key_faults(table: Mapping[str, Any], known: Sequence[str], where: str) -> Iterator[str]:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            yield f"{where}{name} is unknown; expected one of {', '.join(near or known)}"


def _choice_faults(name: str, value: Any, known: Sequence[str]) -> Iterator[str]:
    if isinstance(value, str) and value not in known:
        yield f"{name} is {value!r}; expected one of {', '.join(filter(None, known))}"


def _read_episodes(table: Mapping[str, Any], problems: list[str]) -> tuple[str, str]:
    problems.extend(_key_faults(table, ("by", "array"), "episodes."))
    by, marks = table.get("by", ""), table.get("array", "")
    if not isinstance(by, str) or not isinstance(marks, str):
        problems.append("episodes.by and episodes.array are texts")
        return "", ""
    problems.extend(_choice_faults("episodes.by", by, (*WAYS, "")))
    if (by in {"column", "lengths", "ends"}) != bool(marks) and by in (*WAYS, ""):
        expected = "also episodes.array" if by else "also episodes.by"
        problems.append(
            f"episodes.by = {by!r} is told by no array; leave episodes.array out"
            if by in {"file", "flags"}
            else f"episodes has {'by' if by else 'array'}; expected {expected}"
        )
    return by, marks


def _read_fields(table: Mapping[str, Any], path: Key, problems: list[str]) -> Iterator[Field]:
    """Yield the fields of a table, and of the tables in it: one with an array is a field itself."""
    for name, value in table.items():
        key = (*path, *name.split("."))
        if len(key) == 1:
            key = _SHORT.get(key[0], key)
        where = ".".join(key)
        if not all(key):
            problems.append(f"fields: {where!r} is no key")
        elif isinstance(value, str):
            yield Field(key, value)
        elif isinstance(value, Mapping) and isinstance(value.get("array"), str):
            yield from _read_field(key, value, problems)
        elif isinstance(value, Mapping):
            yield from _read_fields(value, key, problems)
        elif not isinstance(value, list) and _numbers(value) and key == NEXT_REWARD:
            yield Field(key, "", constant=float(value))
        else:
            problems.append(f"fields.{where} is {value!r}; expected the name of an array, or {{ array = ..., ... }}")


def _read_field(key: Key, table: Mapping[str, Any], problems: list[str]) -> Iterator[Field]:
    where = ".".join(key)
    problems.extend(_key_faults(table, _OPTIONS, f"fields.{where}."))
    layout, n = table.get("layout", ""), table.get("n")
    if layout not in (*_LAYOUTS, ""):
        problems.append(f"fields.{where}.layout is {layout!r}; expected one of {', '.join(_LAYOUTS)}")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        problems.append(f"fields.{where}.n is {n!r}; expected a whole number from 1")
    low, high = table.get("low"), table.get("high")
    if not all(one is None or _numbers(one) for one in (low, high)):
        problems.append(f"fields.{where}: low and high are {low!r} and {high!r}; expected numbers, or lists of them")
    elif (low is None) != (high is None):
        problems.append(f"fields.{where} has one of low and high; expected both")
    elif n is not None and low is not None:
        problems.append(f"fields.{where} has n and bounds; expected one of the two")
    else:
        yield Field(key, table["array"], layout, low, high, n)


def _numbers(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_numbers(one) for one in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _nesting_faults(fields: Sequence[Field]) -> Iterator[str]:
    allowed = {NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE}
    for number, one in enumerate(fields):
        name = ".".join(one.key)
        if one.key[0] == NEXT and one.key not in allowed and one.key[:2] != (NEXT, *OBSERVATION):
            yield f"fields.{name} cannot be given: below next are reward, terminated, truncated, done and observation"
        if one.key[0] in {"episode", "mask"}:
            yield f"fields.{name} means something else in TED; expected another name"
        for other in fields[:number]:
            if _overlap(one.key, other.key):
                yield f"fields.{name} and fields.{'.'.join(other.key)} exclude each other"
