"""Several files of a folder: files that are parts of a dataset, marks that some files lack, and episodes that two files share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends, read_flags, union
from datasets_rl.sources.flat.names import COUNTS_STEPS, last_name
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.local.file_names import without_ending

_PART = re.compile(
    r"(^|[ _.-])(part|chunk|shard|split|batch|piece)[ _.-]?\d*$|\d+[ _-]of[ _-]\d+$"
    r"|^(train|training|test|testing|val|valid|validation|eval|dev)([ _-]?\d+)?$",
    re.IGNORECASE,
)
"""Name of a file that has a part of the rows of a dataset, and not an episode."""


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
    name = folder.rpartition("/")[2] if is_alone else without_ending(last)
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
