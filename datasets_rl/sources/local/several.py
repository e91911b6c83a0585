"""Several files of a folder: what their names say against reading each file, and episodes that two files may share.

names                                      question
ep_1.csv, ep_1 (1).csv                     is one file a copy of the other?
ep_1.csv, backup/ep_1.csv                  the same
data.csv, data.csv.gz                      the same
ep_0.parquet, ep_1.parquet, ep_2.csv       is the table an episode, too?
part_0.csv, part_1.csv, without marks      is each file an episode?
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends, read_flags, union
from datasets_rl.sources.flat.formats import FORMATS
from datasets_rl.sources.flat.names import COUNTS_STEPS, last_name
from datasets_rl.sources.flat.plan import Plan

_VERSION = r"copy|old|older|backup|bak|orig|original"
_COPY = re.compile(
    rf"(?:(?:{_VERSION})(?: of)?[ _-]+)?(?P<name>.+?)(?: ?\(\d+\)|[ _-]+(?:{_VERSION})(?:[ _-]?\d+)?)?", re.IGNORECASE
)
"""Name that a file manager or a person gives a copy of a file."""
_PART = re.compile(
    r"(^|[ _.-])(part|chunk|shard|split|batch|piece)[ _.-]?\d*$|\d+[ _-]of[ _-]\d+$"
    r"|^(train|training|test|testing|val|valid|validation|eval|dev)([ _-]?\d+)?$",
    re.IGNORECASE,
)
"""Name of a file that has a part of the rows of a dataset, and not an episode."""
_NUMBER = re.compile(r"\d+")


def check_names(name: str, data: Sequence[str], others: Collection[str]) -> None:
    """Check that no data file may be a copy of another, and that no table beside may be a further data file.

    Args:
        name: The id of the dataset, for messages.
        data: The paths of the data files, or of the folders that are files of arrays.
        others: The paths of the other files of the folder.

    Raises:
        ConversionError: If so. The error names every such file.
    """
    problems = [*_copies(data), *_further_tables(data, others)]
    if problems:
        hint = 'remove one of the two, or state in dataset.toml which files are data, such as files = "*"'
        raise ConversionError(name, first_problems(problems), hint=hint)


def check_parts(file: ArrayFile, plan: Plan, path: str, data: Sequence[str]) -> None:
    """Check that the name of one of several files without marks does not say that the file is a part of the rows.

    Args:
        file: The file.
        plan: The plan of the file.
        path: The path of the file.
        data: The paths of all data files. The name of a file that is alone in its folder is that of the folder.

    Raises:
        ConversionError: If so.
    """
    folder, _, last = path.rpartition("/")
    is_alone = bool(folder) and sum(other.rpartition("/")[0] == folder for other in data) == 1
    name = folder.rpartition("/")[2] if is_alone else _without_ending(last)
    if plan.by == "file" and not plan.layout.by and _PART.search(name):
        problem = (
            "no array marks the ends of episodes, and the name speaks of a part of the rows: is the file an episode?"
        )
        options = '[episodes], by = "file" if each file is an episode. Otherwise add an array that marks the episodes'
        raise ConversionError(file.name, [problem], hint=f"state in dataset.toml, {options}")


def check_same_marks(file: ArrayFile, plan: Plan, first: Plan, arrays: Collection[str]) -> None:
    """Check that a file without marks of episodes is not one of several files that have such marks.

    Args:
        file: The file.
        plan: The plan of the file.
        first: The plan of the first file.
        arrays: The names of the arrays of the first file.

    Raises:
        ConversionError: If so.
    """
    own, known = _marks_of(plan), _marks_of(first)
    is_bare = plan.by == "file" and known and not known & file.arrays.keys()
    was_bare = first.by == "file" and own and not own & {*arrays}
    if plan.layout.by or not (is_bare or was_bare):
        return
    names = join_names(sorted(known if is_bare else own))
    with_marks, without = ("the first file", "this file") if is_bare else ("this file", "the first file")
    raise ConversionError(
        file.name,
        [f"{names} marks the ends of episodes in {with_marks}, and nothing marks the ends in {without}"],
        hint='correct the files, or state in dataset.toml, [episodes], by = "file" if each file is an episode',
    )


def _marks_of(plan: Plan) -> set[str]:
    return {*plan.flags.values(), *plan.episode_flags.values(), plan.marks} - {""}


def _copies(data: Sequence[str]) -> Iterator[str]:
    known: dict[str, str] = {}
    for path in data:
        bare = _without_ending(path)
        if bare in known:
            yield f"{known[bare]} and {path} may have the same rows"
        known.setdefault(bare, path)
    for path in data:
        folder, _, last = path.rpartition("/")
        match = _COPY.fullmatch(_stem(path))
        original = f"{folder}{'/' * bool(folder)}{match['name']}" if match else ""
        parts = folder.split("/") if folder else []
        above = ["/".join([*parts[:place], *parts[place + 1 :], last]) for place in range(len(parts))]
        for other in (original, *map(_without_ending, above)):
            if other != _without_ending(path) and other in known:
                yield f"{path} may be a copy of {known[other]}"
                break


def _further_tables(data: Sequence[str], others: Collection[str]) -> Iterator[str]:
    series = {_NUMBER.sub("#", _without_ending(path)): path for path in data}
    known = {*map(_without_ending, data)}
    tables = tuple(ending for form in FORMATS.values() if form.is_table for ending in form.endings)
    for path in others:
        bare = _without_ending(path)
        first = series.get(_NUMBER.sub("#", bare), "")
        if path.lower().endswith(tables) and _NUMBER.search(bare) and first and bare not in known:
            yield f"{path} is not read beside {first}, and may have further rows by its name"


def _without_ending(path: str) -> str:
    """Return a path without the ending of its format."""
    endings = (ending for form in FORMATS.values() for ending in form.endings if path.lower().endswith(ending))
    bare = path[: -len(max(endings, key=len, default="")) or None]
    return bare.removesuffix(".zarr")


def _stem(path: str) -> str:
    return _without_ending(path).rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Tail:
    """End of a file whose column of episodes numbers the episodes."""

    file: str
    """Name of the file."""
    number: Any
    """Number or name of the last episode."""
    steps: Mapping[str, Any]
    """Number of the last row in its episode, by the array."""
    is_ended: bool
    """Whether a flag ends the last episode."""


def tail_of(file: ArrayFile, plan: Plan, ends: Ends) -> Tail | None:
    """Return the end of a file, or None if no column numbers the episodes, or the user states the column."""
    if plan.by != "column" or plan.layout.by or not ends.steps:
        return None
    rows = file.arrays[plan.marks].rows
    flagged = union(read_flags(file, plan).values())
    steps = {name: _values(file, name)[-1] for name in _step_arrays(file, rows)}
    return Tail(file.name, _values(file, plan.marks)[-1], steps, rows - 1 in flagged[-1:])


def check_begun(tail: Tail | None, file: ArrayFile, plan: Plan) -> None:
    """Check that the first episode of a file is not the last episode of the file before.

    Raises:
        ConversionError: If the numbers are equal, and neither a flag nor the number of a row says that an episode begins.
    """
    if tail is None or tail.is_ended or plan.by != "column" or plan.layout.by:
        return
    number = _values(file, plan.marks)[0]
    if number != tail.number:
        return
    rows = file.arrays[plan.marks].rows
    firsts = {name: _values(file, name)[0] for name in _step_arrays(file, rows) if name in tail.steps}
    if any(first <= tail.steps[name] for name, first in firsts.items()):
        return
    problem = (
        f"{plan.marks} is {number} in the first row, as in the last row of {tail.file}: an episode may be in both files"
    )
    options = f'[episodes], by = "column" and array = "{plan.marks}" if these are two episodes'
    raise ConversionError(
        file.name, [problem], hint=f"put the rows of an episode into one file, or state in dataset.toml, {options}"
    )


def _step_arrays(file: ArrayFile, rows: int) -> list[str]:
    return [
        name
        for name, array in file.arrays.items()
        if COUNTS_STEPS.search(last_name(name)) and array.dtype.kind in "iuf" and not array.text
        if array.rows == rows and array.shape in {(), (1,)}
    ]


def _values(file: ArrayFile, name: str) -> Any:
    return np.asarray(file.read_all(name)).reshape(-1)
