"""Checks of the rows of a file whose ends of episodes and fields were inferred, before the file is converted."""

from __future__ import annotations

import re

import numpy as np

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.measured import (
    MIN_STEPS,
    Match,
    check_matches,
    elements,
    first_steps,
    is_vector,
    measure,
    next_rows,
)
from datasets_rl.sources.flat.names import last_name
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.local.jumps import jump_steps
from datasets_rl.sources.local.seams import check_seams
from datasets_rl.ted.keys import is_observation

_ROWS = 1 << 17
_BYTES = 64 << 20
"""Maximum number of bytes of observations in which jumps are searched."""
_SHOWN = 3
_LIMITS = re.compile(r"^(max_episode_(steps|length)|max_path_length|episode_limit|time_limit)$", re.IGNORECASE)
_CLOCKS = re.compile(r"^(time|timestamps?|time_stamp)$", re.IGNORECASE)


def check_rows(file: ArrayFile, plan: Plan, ends: Ends, *, alone: bool) -> list[Match]:
    """Return the measured matches of states and next observations with the observations.

    Args:
        file: The file.
        plan: The plan of the file.
        ends: The episodes that the file marks.
        alone: Whether the file is the only file of the dataset. Otherwise a file may be an episode.

    Raises:
        ConversionError: If an array is shifted, or the rows may have more episodes than the file marks.
    """
    matches = measure(file, plan, ends)
    check_matches(file, matches, alone=alone)
    check_seams(file, plan, ends)
    if not plan.layout.by and plan.by in {"file", "flags"}:
        _check_episodes(file, plan, ends, alone=alone)
    elif not plan.layout.by and (problems := _resets_of_clocks(file, plan, ends)):
        options = (
            f'[episodes], by = "{plan.by}"{plan.marks and f" and array = {plan.marks!r}"} if the rows are in order'
        )
        hint = f"sort the rows of each episode, or state in dataset.toml, {options}"
        raise ConversionError(file.name, problems, hint=hint)
    return matches


def _check_episodes(file: ArrayFile, plan: Plan, ends: Ends, *, alone: bool) -> None:
    problems = []
    longest = int(ends.lengths.max(initial=0))
    for name, number in file.scalars.items():
        limit = number.item()
        if _LIMITS.search(last_name(name)) and limit > 1 and longest > limit:
            problems.append(f"an episode has {longest:,} steps, but {name} is {limit:,}")
    problems += _resets_of_clocks(file, plan, ends)
    if plan.by == "file" and (problem := _transposed_problem(file, plan)):
        raise ConversionError(file.name, [problem], hint='save the transposed arrays, or state [episodes], by = "file"')
    if not problems and (alone or plan.by == "flags"):
        problems += _jump_problems(file, plan, ends)
        if problems and (problem := _seam_problem(file, plan, ends)):
            hint = 'state in dataset.toml, [episodes], by = "seams", or correct the file'
            raise ConversionError(file.name, [problem], hint=hint)
    if problems:
        options = f'by = "{plan.by}" if the episodes are whole. Otherwise add an array that marks the episodes'
        hint = f"state in dataset.toml, [episodes], {options}, such as episode_lengths"
        raise ConversionError(file.name, problems, hint=hint)


def _resets_of_clocks(file: ArrayFile, plan: Plan, ends: Ends) -> list[str]:
    """Return at which steps within an episode the time goes back."""
    problems = []
    names = [part.array for part in plan.parts if not part.state and part.array] + [*plan.left_out]
    for name in names:
        array = file.arrays[name]
        if not _CLOCKS.search(last_name(name)) or array.text or array.dtype.kind not in "iuf":
            continue
        if array.shape not in {(), (1,)} or array.rows != ends.steps or ends.extra:
            continue
        times = np.asarray(file.read_all(name)).reshape(-1)
        back = np.flatnonzero(times[1:] < times[:-1])
        back = np.setdiff1d(back, np.cumsum(ends.lengths) - 1)
        if len(back):
            row = int(back[0])
            problems.append(
                f"{name} goes back from {times[row]} at row {row:,} to {times[row + 1]}, within an episode "
                f"({len(back):,} such rows)"
            )
    return problems


def _transposed_problem(file: ArrayFile, plan: Plan) -> str:
    """Return why the rows of a file may be elements, if only observations and actions are there, or an empty text."""
    arrays = {part.array: file.arrays[part.array] for part in plan.parts if part.array}
    shapes = {array.shape for array in arrays.values()}
    fewest = min(array.rows for array in arrays.values())
    width = next(iter(shapes))[0] if len(shapes) == 1 and all(shapes) else 0
    if plan.flags or len(arrays) < 2 or width <= fewest + 1:
        return ""
    stated = ", ".join(f"{name} is {array}" for name, array in arrays.items())
    return f"{stated}: the axes may be those of elements and rows"


def _seam_problem(file: ArrayFile, plan: Plan, ends: Ends) -> str:
    """Return at which of the first rows within an episode another state follows than the next observation, or an empty text."""
    own = [part for part in plan.parts if part.column.key in plan.following]
    vectors = {part.array for part in own if is_vector(file, part)}
    for first in next_rows(file, plan, ends, _ROWS, _BYTES):
        if first.own in vectors and len(seams := first.seams):
            row = int(seams[0])
            number = "the only such row" if len(seams) == 1 else f"the first of {len(seams):,} such rows"
            return f"{first.name} of row {row:,} is not {first.own} of row {row + 1:,} ({number}): an episode ends there without a flag"
    return ""


def _jump_problems(file: ArrayFile, plan: Plan, ends: Ends) -> list[str]:
    parts = [part for part in plan.parts if part.state and is_observation(part.column.key) and is_vector(file, part)]
    if not parts:
        return []
    steps, episodes = first_steps(file, ends, [part.array for part in parts], _ROWS, _BYTES // len(parts))
    if len(steps) < MIN_STEPS:
        return []
    states = elements(file, ends, parts, steps, episodes)
    within = episodes[1:] == episodes[:-1]
    jumps = jump_steps(states, within)
    if plan.by == "flags":
        with_jumps = np.isin(np.arange(len(ends.lengths)), episodes[jumps])
        rest = int(ends.lengths[~with_jumps].max(initial=0))
        jumps = jumps[ends.lengths[episodes[jumps]] > rest] if rest else jumps
    if not len(jumps):
        return []
    rows = join_names([f"{row:,}" for row in (jumps + 1).tolist()], _SHOWN)
    names = join_names([part.array for part in parts], _SHOWN)
    return [f"{names} jumps before row {rows}, as between two episodes: no other step is a third as large"]
