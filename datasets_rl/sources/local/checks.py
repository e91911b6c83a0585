"""Checks of the rows of a file whose ends of episodes and fields were inferred, before the file is converted."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.measured import Match, check_matches, is_vector, measure, rows_of
from datasets_rl.sources.flat.names import last_name
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.local.jumps import jump_steps
from datasets_rl.sources.local.seams import check_seams
from datasets_rl.sources.values import find_jumps
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
    for part in plan.parts:
        name = plan.following.get(part.column.key, "")
        if not name or not is_vector(file, part):
            continue
        count = min(ends.steps, _ROWS, _BYTES // max(file.arrays[name].row_bytes, 1))
        episodes = np.searchsorted(np.cumsum(ends.lengths), np.arange(count), "right").astype(np.int64)
        after = rows_of(file, name, np.arange(count) + ends.extra * episodes)
        observed = rows_of(file, part.array, np.arange(count) + ends.extras[part.array] * episodes)
        seams = np.flatnonzero(find_jumps(after[:-1], observed[1:])[0] & (episodes[1:] == episodes[:-1]))
        if len(seams):
            row = int(seams[0])
            number = "the only such row" if len(seams) == 1 else f"the first of {len(seams):,} such rows"
            return f"{name} of row {row:,} is not {part.array} of row {row + 1:,} ({number}): an episode ends there without a flag"
    return ""


def _jump_problems(file: ArrayFile, plan: Plan, ends: Ends) -> list[str]:
    parts = [part for part in plan.parts if part.state and is_observation(part.column.key) and is_vector(file, part)]
    if not parts:
        return []
    width = sum(file.arrays[part.array].row_bytes for part in parts)
    count = min(ends.steps, _ROWS, _BYTES // max(width, 1))
    if count < 2:
        return []
    episodes = np.searchsorted(np.cumsum(ends.lengths), np.arange(count), "right").astype(np.int64)
    values = [rows_of(file, part.array, np.arange(count) + ends.extras[part.array] * episodes) for part in parts]
    states: NDArray[np.float64] = np.concatenate(
        [value.reshape(count, -1).astype(np.float64) for value in values], axis=1
    )
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
