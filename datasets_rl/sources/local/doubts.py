"""What contradicts the ends of the episodes of a file, and what is unusual about rows that are stored unchanged.

A contradiction that only a wrong file or a wrong reading explains is refused until the user states the ends. What valid
data may also have, such as equal rows of a robot at rest, is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.blank import blank_rows
from datasets_rl.sources.flat.ends import BLOCK_ROWS, Ends, find_ends, read_flags
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.names import COUNTS_EPISODES, COUNTS_STEPS, RETURNS, last_name
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.local.description import missing_numbers
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    dotted_name,
)

_Flags = NDArray[np.bool_]
_Index = NDArray[np.int64]

RULES: Mapping[str, str] = {
    "by-file": "no array marks ends of episodes: each file is an episode",
    "no-truncated": "the files have no flag for time limits: an episode ends only where it terminates",
    "missing-numbers": "numbers are missing in the names of files, groups or arrays: they were taken as deleted episodes",
    "steps-from": "an array numbers the rows of each episode, and begins with another number than 0 or 1",
    "other-returns": "the return that the files state for an episode is not the sum of the rewards",
}
"""Text of each counted decision, by rule."""
_LIST = re.compile(r"\s*[\[({]+\s*-?[\d.]|\s*array\(")
"""Begin of a text that is a list of numbers."""
_SHOWN_CHARS = 40
_TOLERANCE = 1e-3
"""Relative difference between a stated return and the sum of the rewards that rounding explains."""


def check_unreadable(file: ArrayFile, layout: Layout) -> None:
    """Check that no array that cannot be read has the usual name of a field, because the field would seem to be missing.

    Raises:
        ConversionError: If there are such arrays. The error names all of them.
    """
    hidden = [name for name in file.arrays if name not in {*file.readable}]
    fields = [field for field in layout.fields_of(hidden) if field.array in hidden and field not in layout.fields]
    problems = [
        f"{field.array}, by its name {dotted_name(field.key)}, has values that cannot be read, expected numbers"
        for field in fields
        if field.key[0] != "info"
    ]
    if problems and layout.inferred:
        hint = "store numbers, or describe the fields in dataset.toml and name the array otherwise"
        raise ConversionError(file.name, problems, hint=hint)


def check_texts(file: ArrayFile, layout: Layout) -> None:
    """Check that no observation, action or next observation has lists of numbers as texts.

    Raises:
        ConversionError: If the first row of such a field is a list as a text. The error names every such array.
    """
    problems, names = [], []
    for field in layout.fields_of(file.readable):
        array = file.arrays.get(field.array)
        is_vector = field.key[:1] in {OBSERVATION, ACTION} or field.key[:2] == (NEXT, *OBSERVATION)
        if array is None or not array.text or array.shape or not array.rows or not is_vector or field in layout.fields:
            continue
        first = str(next(file.blocks(field.array, 1))[0])
        if _LIST.match(first):
            names.append(field.array)
            problems.append(f"{field.array} has texts such as {first[:_SHOWN_CHARS]!r}, expected lists of numbers")
    if problems:
        lines = "; ".join(f"table[{name!r}] = table[{name!r}].map(json.loads)" for name in names)
        hint = f"store lists of numbers, in pandas {lines}, or state the field of texts in dataset.toml, [fields]"
        raise ConversionError(file.name, problems, hint=hint)


def check_first_elements(file: ArrayFile, layout: Layout, elements: Mapping[str, Sequence[str]]) -> None:
    """Check that the columns of all arrays begin with the same number, because a first column may be missing.

    Args:
        file: The table.
        layout: The layout. Arrays that the layout states are not checked.
        elements: The columns of each array.

    Raises:
        ConversionError: If the columns of some fields begin with 0 and the columns of others with 1.
    """
    stated = {field.array for field in layout.fields}
    fields = {field.array for field in layout.fields_of(elements)} & elements.keys() - stated
    first: dict[bool, str] = {}
    for name in sorted(fields):
        column = elements[name][0]
        first.setdefault(re.sub(r"\D", "", column.removeprefix(name)).strip("0") == "", column)
    if len(first) > 1:
        problem = (
            f"{first[True]} is the first column of its array, but of another array {first[False]} is the first one"
        )
        names = join_names(sorted(fields), ITEMS_MAX)
        raise ConversionError(
            file.name, [f"{problem}: a column may be missing"], hint=f"state {names} in dataset.toml, [fields]"
        )


def check_episodes(file: ArrayFile, plan: Plan) -> None:
    """Check that the ends of episodes agree with every statement of the file about the episodes.

    Raises:
        ConversionError: If the file states another number of episodes, or if a batch of episodes has padding that no
            array states, or if stated returns are the sums of rewards in some of the episodes only.
    """
    stated = {name: value for name, value in file.scalars.items() if COUNTS_EPISODES.search(last_name(name))}
    returns = _arrays_of_returns(file, plan)
    if plan.by == "axis" and not file.padding:
        _check_padding(file, plan)
    if not stated and not returns:
        return
    ends = find_ends(file, plan, read_flags(file, plan))
    count = int((ends.lengths > 0).sum())
    has = "one episode" if count == 1 else f"{count:,} episodes"
    problems = [f"{name} is {value}, but the file has {has}" for name, value in stated.items() if value != count]
    for name in returns:
        differ = _other_returns(file, plan, ends, name)
        if differ is None:
            problems.append(
                f"{name} is {file.arrays[name]}, expected a return for each of {count:,} episodes or of {ends.steps:,} rows"
            )
        elif differ.any() and not differ.all():
            first = int(np.argmax(differ))
            problems.append(
                f"{name} is the sum of the rewards in {(~differ).sum():,} episodes, but not in {differ.sum():,}: "
                f"the first is episode {first:,}"
            )
    if problems:
        hint = "state in dataset.toml how the file marks the episodes, [episodes] by = ..., or correct the file"
        raise ConversionError(file.name, problems, hint=hint)


def count_doubts(file: ArrayFile, plan: Plan, ends: Ends) -> dict[str, int]:
    """Return how often each rule about a whole file applies, by rule."""
    flags = {key for key in (*plan.flags, *plan.episode_flags) if key in {NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED}}
    differ = [_other_returns(file, plan, ends, name) for name in _arrays_of_returns(file, plan)]
    others = {*plan.left_out, *(part.array for part in plan.parts)}
    numbers = [
        name
        for name, array in file.arrays.items()
        if name == plan.marks or name not in others
        if COUNTS_STEPS.search(last_name(name)) and array.dtype.kind in "iuf" and not array.text
    ]
    firsts = [np.asarray(next(file.blocks(name, 1))).reshape(-1)[0] for name in numbers]
    return {
        "no-truncated": int(plan.by == "flags" and flags == {NEXT_TERMINATED}),
        "missing-numbers": missing_numbers(file.episode_names),
        "steps-from": len(ends.lengths) * any(first not in {0, 1} for first in firsts),
        "other-returns": max((int(one.sum()) for one in differ if one is not None), default=0),
    }


def _arrays_of_returns(file: ArrayFile, plan: Plan) -> list[str]:
    reward = next((part.array for part in plan.parts if part.column.key == NEXT_REWARD), "")
    return [
        name
        for name in plan.left_out
        if reward and RETURNS.search(last_name(name)) and file.arrays[name].dtype.kind in "iuf"
        if file.arrays[name].shape in {(), (1,)} and not file.arrays[name].text
    ]


def _other_returns(file: ArrayFile, plan: Plan, ends: Ends, name: str) -> _Flags | None:
    """Return whether the stated return of each episode is another one than the sum of its rewards, [E].

    The array may lack the last episode, if no flag ends it. None if the array has another number of rows.
    """
    reward = next(part.array for part in plan.parts if part.column.key == NEXT_REWARD)
    lengths = ends.lengths[ends.lengths > 0]
    rows = file.arrays[name].rows
    if rows == file.arrays[reward].rows:
        return np.zeros(len(lengths), np.bool_)  # the return so far of each row
    if rows not in {len(lengths), len(lengths) - (ends.found["end-without-flag"] > 0)}:
        return None
    if ends.steps != file.arrays[reward].rows:
        return np.zeros(len(lengths), np.bool_)
    sums, sizes = np.zeros(len(lengths)), np.zeros(len(lengths))
    start, stops = 0, np.cumsum(lengths)
    for block in file.blocks(reward, BLOCK_ROWS):
        values = np.asarray(block, np.float64).reshape(-1)
        numbers = np.searchsorted(stops, np.arange(start, start + len(values)), "right")
        sums += np.bincount(numbers, values, len(sums))
        sizes += np.bincount(numbers, np.abs(values), len(sums))
        start += len(values)
    stated = np.asarray(file.read_all(name), np.float64).reshape(-1)
    close = np.abs(stated - sums[:rows]) <= _TOLERANCE * (sizes[:rows] + 1e-6)
    return np.asarray(~close)


def _check_padding(file: ArrayFile, plan: Plan) -> None:
    """Check that the episodes of a batch do not end with rows of zeros or NaN, as padding does.

    Raises:
        ConversionError: If some episodes end with such rows.
    """
    names = [part.array for part in plan.parts if part.array in file.lengths and not part.state]
    blank = _blank_last_rows(file, names)
    if names and blank.any():
        blank &= _blank_last_rows(file, [part.array for part in plan.parts if part.array in file.lengths])
    if names and blank.any() and not blank.all():
        problem = (
            f"{blank.sum():,} of {len(blank):,} episodes end with rows of zeros or NaN in all fields, as padding does"
        )
        options = 'by = "axis" and array = the lengths or the mask of the steps, or only by = "axis" if these are steps'
        raise ConversionError(file.name, [problem], hint=f"state in dataset.toml, [episodes], {options}")


def _blank_last_rows(file: ArrayFile, names: Iterable[str]) -> _Flags:
    """Return whether the last row of each episode of a batch is blank in all of the arrays, [E]."""
    blank = np.ones(0, np.bool_)
    for name in names:
        last = np.cumsum(file.lengths[name]) - 1
        blank = blank if len(blank) else np.ones(len(last), np.bool_)
        start = 0
        for block in file.blocks(name, BLOCK_ROWS):
            first, stop = np.searchsorted(last, (start, start + len(block)))
            blank[first:stop] &= blank_rows(block)[last[first:stop] - start]
            start += len(block)
    return blank
