"""Ends of the episodes of a file, from its flags and the array of marks, in memory for the episodes and not for the rows.

              states                          steps
same-row      s_0 s_1 s_2     | s_0' s_1'     a_0 a_1 a_2 | a_0' a_1'     s_3 is in next_observation, or not stored
one-more      s_0 s_1 s_2 s_3 | s_0' s_1'     a_0 a_1 a_2 | a_0'          or equally many rows, the last row unused
action-before s_0 s_1 s_2 s_3 | s_0' s_1'      -  a_0 a_1 a_2 |  -  a_0'  a row has the action that led to its state
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import refuse
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.layout import ARRANGED
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.values import OtherFlags
from datasets_rl.ted.keys import ACTION, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, is_observation

_Flags = NDArray[np.bool_]
_Index = NDArray[np.int64]
BLOCK_ROWS = 1 << 16
"""Number of rows of flags that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Rows and flags of the E episodes that a file marks."""

    steps: int
    """Number N of steps."""
    lengths: _Index
    """Number of steps of each episode, [E], 0 for an episode with a state but no step."""
    numbers: _Index
    """Number of each episode in the file, [E]."""
    lead: int
    """Number of rows of an episode before the first step."""
    extra: int
    """Number of rows of an episode that are not steps, in the arrays of steps."""
    extras: Mapping[str, int]
    """The same number for each array of states."""
    terminated: _Index
    truncated: _Index
    """Steps with a flag, ascending. The last step of every episode is in at least one of the two arrays."""
    known: _Flags | None
    """Whether the states after the last step are known, [E], if the states have separate arrays, or else None."""
    found: Counter[str]
    """How often each rule was applied."""


def read_flags(file: ArrayFile, plan: Plan) -> dict[Key, _Index]:
    """Return the ascending rows with a flag, by the key of the flag.

    Raises:
        ConversionError: If flags have other values than 0 and 1. The error names every problem.
    """
    problems: list[str] = []
    flags = {key: _read_set_rows(file, name, problems) for key, name in plan.flags.items()}
    refuse(file.name, problems)
    return flags


def mask_of_rows(rows: _Index, start: int, stop: int) -> _Flags:
    """Return the mask of ascending rows in the range [start, stop), [stop - start]."""
    first, last = np.searchsorted(rows, (start, stop))
    mask = np.zeros(stop - start, np.bool_)
    mask[rows[first:last] - start] = True
    return mask


def union(rows: Iterable[_Index]) -> _Index:
    """Return the ascending rows that are in any of several arrays of ascending rows."""
    # Sorting merges ascending runs. The hash table of `np.unique` takes seconds for a million rows.
    merged = np.sort(np.concatenate([np.empty(0, np.int64), *rows]), kind="stable")
    return merged[np.diff(merged, prepend=-1) > 0]


def check_flags_of_most_rows(file: ArrayFile, flags: Mapping[str, _Index], rows: int) -> None:
    """Check that flags which end episodes are not the inverse of these flags, such as a mask of steps that continue.

    Args:
        file: The file.
        flags: The rows with a set flag, by the name of the array.
        rows: The number of rows.

    Raises:
        ConversionError: If a flag is set in most rows and not in all rows.
    """
    names = [name for name, flagged in flags.items() if rows // 2 < len(flagged) < rows]
    if names and rows > 2:
        problem = (
            f"{join_names(names)} is set in {len(flags[names[0]]):,} of {rows:,} rows, as the inverse of an end flag is"
        )
        options = 'by = "flags" if most episodes have a single step, or correct the flags'
        raise ConversionError(file.name, [problem], hint=f"state in dataset.toml, [episodes], {options}")


def find_ends(file: ArrayFile, plan: Plan, flags: Mapping[Key, _Index]) -> Ends:
    """Return the episodes of a file.

    Args:
        file: The file.
        plan: The plan of the file.
        flags: The end flags, as `read_flags` returns them.

    Raises:
        ConversionError: If the numbers of rows contradict each other, or flags are set within an episode. The error
            names every problem.
    """
    rows, states = _row_counts(file, plan)
    counts: Counter[str] = Counter()
    name = plan.layout.starts
    starts = _read_starts(file, name, rows) if name in file.arrays else np.empty(0, np.int64)
    row_counts, numbers = _episode_rows(file, plan, rows, flags, starts)
    count = len(row_counts)
    alignment = plan.layout.alignment or ("one-more" if states == rows + count else "same-row")
    extra = int(alignment != "same-row" and states == rows)
    allowed = {"same-row": (rows,), "one-more": (rows, rows + count), "action-before": (rows,)}[alignment]
    if states not in allowed:
        expected = " or ".join(f"{number:,}" for number in allowed)
        episodes = f"{count:,} episode{'s' * (count != 1)}"
        problem = f"the observations have {states:,} rows, for {rows:,} rows of steps in {episodes}"
        hint = _hint_for_rows(file, plan, states - rows) if count == 1 else ""
        raise ConversionError(file.name, [f"{problem}, expected {expected} ({alignment})"], hint=hint)
    if plan.by in {"lengths", "ends"} and extra and row_counts.sum() + count == rows:
        row_counts = row_counts + 1  # the array counts steps, not rows
    if row_counts.sum() != rows:
        raise ConversionError(file.name, [f"{plan.marks} counts {row_counts.sum():,} rows, but there are {rows:,}"])
    if plan.by == "flags" and extra and alignment == "one-more":
        problem = "the last row of an episode is not a step, so that the flags of the row cannot mark the end"
        raise ConversionError(file.name, [problem], hint="set [episodes] by to file, column, lengths or ends")
    if plan.following and alignment == "action-before":
        problem = (
            f"{', '.join(plan.following.values())} contradicts the alignment action-before: "
            "the next observation of a step is the observation of the same row"
        )
        raise ConversionError(file.name, [problem], hint="remove next.observation, or the alignment")
    rowless = extra * int((row_counts == 0).sum())
    if rowless:  # an episode without rows has no extra row either
        row_counts, numbers = row_counts[row_counts > 0], numbers[row_counts > 0]
    lengths = row_counts - extra
    extras = _extra_rows(file, plan, lengths, extra)
    known = _read_final_known(file, plan, row_counts)
    lead = int(alignment == "action-before")
    counts[alignment] = rows
    counts["no-transition"] = rowless + int((lengths == 0).sum())
    if plan.layout.starts in file.arrays:
        flagged, before_starts = union(flags.values()), starts[starts > 0] - 1
        counts["index-without-zero"] = int(0 not in starts[:1])
        # The end of the file need not be in the array.
        counts["flag-within-trajectory"] = len(np.setdiff1d(flagged[flagged < rows - 1], before_starts))
        counts["end-by-index"] = len(np.setdiff1d(before_starts, flagged))
    if extra:
        left_out = np.cumsum(row_counts) - (row_counts if lead else 1)
        flags = {key: _steps_of_rows(flag, left_out) for key, flag in flags.items()}
    last_steps = np.cumsum(lengths) - 1
    for key, name in plan.episode_flags.items():
        flags = {**flags, key: union([last_steps[_read_flagged(file, name) if len(lengths) else []]])}
    terminated, truncated = _end_flags(file, plan, flags, lengths, counts)
    counts["end-without-flag"] -= counts["end-by-index"]
    return Ends(int(lengths.sum()), lengths, numbers, lead, extra, extras, terminated, truncated, known, counts)


def _hint_for_rows(file: ArrayFile, plan: Plan, more: int) -> str:
    """Return what the numbers of rows of observations and of actions may mean, where no episode explains both."""
    shapes = [file.arrays[part.array].shape for part in plan.parts if part.column.key in {OBSERVATION, ACTION}]
    if len(shapes) == 2 and shapes[0] == shapes[1] and len(shapes[0]) == 1:
        return f"the rows of both have {shapes[0][0]:,} elements: if these are the steps, save the transposed arrays"
    if more > 1:
        return f"if each of {more:,} episodes has one more observation than steps, add an array of the lengths of the episodes"
    return ""


def _read_final_known(file: ArrayFile, plan: Plan, row_counts: _Index) -> _Flags | None:
    """Return whether the state after the last step of each episode is known, [E], or None without separate arrays."""
    if not plan.finals:
        return None
    name, episodes = next(iter(plan.finals.values())), len(row_counts)
    if file.arrays[name].rows != episodes:
        raise ConversionError(file.name, [f"{name} has {file.arrays[name].rows:,} rows, for {episodes:,} episodes"])
    if not plan.layout.final_known:
        return np.ones(episodes, np.bool_)
    known = read_flags(file, replace(plan, flags={(): plan.layout.final_known}))[()]
    return mask_of_rows(known, 0, episodes)


def _row_counts(file: ArrayFile, plan: Plan) -> tuple[int, int]:
    """Return the number of rows of the arrays of steps, and that of the arrays of observations."""
    steps = [*plan.step_arrays]
    if plan.marks and plan.by in {"column", "steps"}:
        steps.append(plan.marks)
    observed = [part for part in plan.parts if is_observation(part.column.key)]
    states = [part.array for part in observed if part.state or part.column.key[0] == OBSERVATION[0]]
    states = states or [part.array for part in plan.parts if part.state]
    problems = []
    counts = []
    for names in (steps, states):
        rows = {name: file.arrays[name].rows for name in names}
        if len(set(rows.values())) > 1:
            problems.append(
                f"{', '.join(f'{name} has {count:,} rows' for name, count in rows.items())}, expected equal numbers"
            )
        counts.append(next(iter(rows.values())))
    problems += _arrangement_problems(file, [name for name in (*steps, *states) if name in file.lengths])
    if problems:
        raise ConversionError(file.name, problems)
    return counts[0], counts[1]


def _arrangement_problems(file: ArrayFile, names: Sequence[str]) -> Iterator[str]:
    """Yield in which episodes an array has not as many rows as the array of the first name, plus one number for all."""
    for name in names:
        more = file.lengths[name] - file.lengths[names[0]]
        if len(wrong := np.flatnonzero(more != more[:1])):
            first, own = (file.lengths[array][wrong[0]] for array in (names[0], name))
            at = f"in episode {wrong[0]:,}, {name} has {own:,} rows and {names[0]} has {first:,}"
            yield f"{at}, expected {first + more[0]:,} rows of {name}, as in the first episode"


def _steps_of_rows(rows: _Index, left_out: _Index) -> _Index:
    """Return the steps of ascending rows, without the rows that are not steps. `left_out` has the latter, ascending."""
    rows = np.setdiff1d(rows, left_out, assume_unique=True)
    return rows - np.searchsorted(left_out, rows)


def _read_starts(file: ArrayFile, name: str, rows: int) -> _Index:
    """Return the ascending first rows of episodes from an array that has these rows, or a flag for each row.

    The row after the last row may be among the rows. Row 0 may be missing.

    Raises:
        ConversionError: If the array has other rows, or rows that do not ascend.
    """
    array = file.arrays[name]
    if array.shape not in {(), (1,)} or array.dtype.kind not in "biuf":
        raise ConversionError(file.name, [f"{name} is {array}, expected the first row of each trajectory"])
    if array.rows == rows and not _is_index(file, name):
        return _read_flagged(file, name)
    return _read_rows(file, name, rows)


def _read_rows(file: ArrayFile, name: str, rows: int) -> _Index:
    """Return the ascending rows in an array, [E], each from 0 to `rows`."""
    index = np.asarray(file.read_all(name)).reshape(-1).astype(np.float64)
    wrong = np.flatnonzero(~((index >= 0) & (index <= rows) & (index == np.floor(index))))
    back = np.flatnonzero(np.diff(index) <= 0)
    if len(wrong):
        problem = f"{name}[{wrong[0]:,}] is {index[wrong[0]]:g}, expected a row from 0 to {rows:,}"
        raise ConversionError(file.name, [problem])
    if len(back):
        problem = f"{name}[{back[0] + 1:,}] is {index[back[0] + 1]:g} after {index[back[0]]:g}, expected ascending rows"
        raise ConversionError(file.name, [problem])
    return index.astype(np.int64)


def _is_index(file: ArrayFile, name: str) -> bool:
    """Return whether an array with a number for each row has other numbers than 0 and 1."""
    return any(((block != 0) & (block != 1)).any() for _, block in _blocks(file, name))


def _episode_rows(
    file: ArrayFile, plan: Plan, rows: int, flags: Mapping[Key, _Index], starts: _Index
) -> tuple[_Index, _Index]:
    """Return the number of rows of each episode that the file states, [E], and the number of each episode, [E]."""
    if plan.by == "file":
        return np.array([rows], np.int64), np.zeros(1, np.int64)
    if plan.by in ARRANGED:
        counts = arranged_lengths(file, plan)
        return counts, np.arange(len(counts), dtype=np.int64)
    if plan.by not in {"flags", "seams"}:
        return marked_episodes(file, plan.by, plan.marks, rows)
    if not flags and plan.by == "flags":
        raise ConversionError(file.name, ["it has no flags, which mark the ends of episodes"])
    stops = union([starts[starts > 0] - 1, *flags.values()]) + 1
    stops = stops if len(stops) and stops[-1] == rows else np.append(stops, rows)
    return np.diff(stops, prepend=0), np.arange(len(stops), dtype=np.int64)


def arranged_lengths(file: ArrayFile, plan: Plan) -> _Index:
    """Return the number of rows of each episode, [E], of a file with a structure that separates the episodes."""
    return next(file.lengths[name] for name in plan.step_arrays if name in file.lengths)


def marked_episodes(file: ArrayFile, by: str, marks: str, rows: int) -> tuple[_Index, _Index]:
    """Return the number of rows of each episode that an array marks, [E], and the number of each episode, [E].

    Args:
        file: The file.
        by: The way in which the array marks the episodes, an item of `MARKED`.
        marks: The name of the array.
        rows: The number of rows.

    Raises:
        ConversionError: If the array does not mark episodes in this way.
    """
    if by == "column":
        return _equal_runs(file, marks)
    if by == "starts":
        starts = _read_starts(file, marks, rows)
        starts = starts[starts > 0]
        stops = starts if rows in starts[-1:] else np.append(starts, rows)
    elif by == "steps":
        stops = _stops_of_steps(file, marks)
    elif by == "last-rows":
        stops = _read_last_rows(file, marks, rows) + 1
    else:
        raw = np.asarray(file.read_all(marks)).reshape(-1)
        if raw.dtype.kind == "f" and (raw == np.floor(raw)).all() and (np.abs(raw) <= rows).all():
            raw = raw.astype(np.int64)
        if raw.dtype.kind not in "iu" or not len(raw):
            raise ConversionError(file.name, [f"{marks} is {file.arrays[marks]}, expected integers"])
        stops = raw.astype(np.int64) if by == "ends" else np.cumsum(raw, dtype=np.int64)
    counts = np.diff(stops, prepend=0)
    if (counts < 0).any():
        wrong = int(np.argmax(counts < 0))
        problem = f"{marks} states {counts[wrong]:,} rows for episode {wrong}, expected at least 0"
        raise ConversionError(file.name, [problem])
    return counts, np.arange(len(counts), dtype=np.int64)


def _stops_of_steps(file: ArrayFile, name: str) -> _Index:
    """Return the row after each episode, [E], from an array that has the number of each row in its episode.

    Raises:
        ConversionError: If a number is neither the previous number plus 1 nor the first number of the file.
    """
    starts: list[_Index] = []
    first = before = np.empty(0)
    for start, block in _blocks(file, name):
        column = block.reshape(len(block), -1)[:, 0]
        first = first if len(first) else column[:1]
        known = np.concatenate([before if len(before) else first - 1, column])
        is_first = column == first
        wrong = np.flatnonzero(~is_first & (column != known[:-1] + 1))
        if len(wrong):
            row, value = start + wrong[0], column[wrong[0]]
            problem = f"{name} is {value} at row {row:,}, expected {known[wrong[0]] + 1} or {first[0]}"
            raise ConversionError(file.name, [problem])
        starts.append(start + np.flatnonzero(is_first))
        before = column[-1:]
    return np.append(np.concatenate([np.empty(0, np.int64), *starts])[1:], file.arrays[name].rows)


def _read_last_rows(file: ArrayFile, name: str, rows: int) -> _Index:
    """Return the last row of each episode, [E], from an array that has these rows, or a flag for each row."""
    if file.arrays[name].rows != rows:
        last_rows = _read_rows(file, name, rows - 1)
    elif file.arrays[name].shape:
        raise ConversionError(file.name, [f"{name} is {file.arrays[name]}, expected one flag for each row"])
    else:
        last_rows = _read_flagged(file, name)
    if rows - 1 not in last_rows[-1:]:
        problem = f"{name} of the last row, {rows - 1:,}, is 0, expected the end of an episode"
        raise ConversionError(file.name, [problem])
    return last_rows


def _read_flagged(file: ArrayFile, name: str) -> _Index:
    """Return the ascending rows with a flag.

    Raises:
        ConversionError: If a flag is neither 0 nor 1.
    """
    problems: list[str] = []
    rows = _read_set_rows(file, name, problems)
    if problems:
        raise ConversionError(file.name, problems)
    return rows


def _read_set_rows(file: ArrayFile, name: str, problems: list[str]) -> _Index:
    """Return the ascending rows with a set flag, and add what is wrong with the flags to `problems`."""
    set_rows: list[_Index] = []
    others = OtherFlags(name)
    for start, block in _blocks(file, name):
        flags = block.reshape(-1)
        others.count(flags, start)
        set_rows.append(start + np.flatnonzero(flags == 1))
    problems += others.problems()
    return np.concatenate([np.empty(0, np.int64), *set_rows])


def _blocks(file: ArrayFile, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the first row and the rows of each block of an array."""
    start = 0
    for block in file.blocks(name, BLOCK_ROWS):
        yield start, np.asarray(block)
        start += len(block)


def _is_nan(values: NDArray[Any]) -> _Flags:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)


def _equal_runs(file: ArrayFile, name: str) -> tuple[_Index, _Index]:
    """Return the lengths of the runs of equal values of a column, [E], and the values, [E]."""
    starts: list[_Index] = []
    firsts: list[NDArray[Any]] = []
    last: NDArray[Any] | None = None
    for start, block in _blocks(file, name):
        column = block.reshape(len(block), -1)[:, 0]
        if wrong := np.flatnonzero(_is_nan(column)).tolist():  # an empty cell
            raise ConversionError(
                file.name, [f"{name} is {column[wrong[0]]} at row {start + wrong[0]:,}, expected a number"]
            )
        is_first = np.append(last is None or column[:1] != last, column[1:] != column[:-1])
        last = column[-1:]
        starts.append(start + np.flatnonzero(is_first))
        firsts.append(column[is_first])
    begins, values = np.concatenate(starts), np.concatenate(firsts)
    names, counts = np.unique(values, return_counts=True)
    if (counts > 1).any():
        repeated = names[counts > 1][0]
        problem = (
            f"{name} is {repeated} in {counts.max():,} separate ranges of rows, expected a single range per episode"
        )
        raise ConversionError(file.name, [problem])
    numbers = values.astype(np.int64) if values.dtype.kind in "iu" else np.arange(len(begins))
    return np.diff(np.append(begins, file.arrays[name].rows)), numbers


def _extra_rows(file: ArrayFile, plan: Plan, lengths: _Index, extra: int) -> dict[str, int]:
    """Return how many rows per episode each array of states has in addition to the steps."""
    steps, count = int(lengths.sum()), len(lengths)
    extras: dict[str, int] = {}
    problems = []
    for part in plan.parts:
        if not part.state:
            continue
        rows = file.arrays[part.array].rows
        if rows not in {steps * (not extra), steps + count}:
            problems.append(f"{part.array} has {rows:,} rows, for {steps:,} steps in {count:,} episodes")
        extras[part.array] = int(rows == steps + count)
    refuse(file.name, problems)
    return extras


def _end_flags(
    file: ArrayFile, plan: Plan, flags: Mapping[Key, _Index], lengths: _Index, counts: Counter[str]
) -> tuple[_Index, _Index]:
    """Return the steps that are terminated, and the steps that are truncated, ascending."""
    never = np.empty(0, np.int64)
    last = np.cumsum(lengths[lengths > 0]) - 1
    done = flags.get(NEXT_DONE, never)
    truncated = flags.get(NEXT_TRUNCATED, never)
    terminated = flags.get(NEXT_TERMINATED, np.setdiff1d(done, truncated, assume_unique=True))
    open_done = np.setdiff1d(done, union([terminated, truncated]), assume_unique=True)
    truncated = union([truncated, open_done])
    flagged = union([terminated, truncated])
    wrong = np.setdiff1d(flagged, last, assume_unique=True)
    if len(wrong):
        problem = f"a flag is set at step {wrong[0]:,}, within an episode ({len(wrong):,} such steps)"
        raise ConversionError(file.name, [problem], hint=f"the ends of episodes are determined by {plan.by}")
    counts["no-terminated"] = int(not {NEXT_TERMINATED, NEXT_DONE} & set(flags))
    counts["done-as-terminated"] = len(terminated) if NEXT_DONE in flags and NEXT_TERMINATED not in flags else 0
    counts["done-as-truncated"] = len(open_done)
    counts["both-flags"] = len(terminated) + len(truncated) - len(flagged)
    open_ends = np.setdiff1d(last, flagged, assume_unique=True)
    counts["end-without-flag"] = len(open_ends)
    return terminated, union([truncated, open_ends])


def rows_at_limit(ends: NDArray[np.intp], rows: int, run: int, limit: int) -> NDArray[np.intp]:
    """Return the rows in [0, rows) at which the number of steps since the last end reaches `limit`."""
    starts = np.concatenate([[-run], ends + 1])
    stops = np.concatenate([ends, [rows]])
    counts = (stops - starts) // limit
    long = np.flatnonzero(counts)
    cuts = [starts[gap] - 1 + limit * np.arange(1, counts[gap] + 1) for gap in long]
    return np.concatenate([np.empty(0, np.intp), *cuts])
