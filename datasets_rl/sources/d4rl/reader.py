"""Reader of HDF5 files in D4RL's layout.

Row i is step i: the state, the action, the reward, and whether the episode ended after the step. The state after the
last step of an episode is in ``next_observations``, or not stored. Row i + 1 is already the first state of the
next episode:

    observations        s_0  s_1  s_2 | s_0' s_1' ...
    actions             a_0  a_1  a_2 | a_0' a_1'
    rewards             r_0  r_1  r_2 | r_0' r_1'
    terminals/timeouts   0    0    1  |  0    0
    next_observations   s_1  s_2  s_3 | s_1' s_2'        s_3 is stored only here

No row is dropped, added or moved: row i of the concatenated trajectories is row i of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.sources.base import NOT_FINITE
from datasets_rl.sources.d4rl.layout import plan_file, with_explicit_next
from datasets_rl.sources.flat.arrays import ArrayFile, Hdf5Arrays
from datasets_rl.sources.flat.ends import (
    Ends,
    check_flags_of_most_rows,
    find_ends,
    mask_of_rows,
    read_flags,
    rows_at_limit,
    union,
)
from datasets_rl.sources.flat.equal import EQUAL, EqualEpisodes
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.measured import check_matches, match_of_rows
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.values import WIDENED_INTEGERS, find_jumps
from datasets_rl.ted.keys import NEXT_TRUNCATED, OBSERVATION

_PROBES = 4
_PROBE_ROWS = 4096
_JUMP_SHARE_MAX = 0.01

_LAYOUT = Layout(alignment="same-row", by="flags", seams=True)
_TEXTS = {
    **EQUAL,
    "same-row": "row i of the file is transition i: the reward and the flags of the row belong to the action of the row",
    "no-timeouts-column": "the file has no column of time-outs",
    "flags-cast": "the file stores flags as numbers, 0 or 1, which were converted to booleans",
    "renamed": "dots in names were replaced with underscores, because dots separate the names of a key. An underscore "
    "was appended to names that the metadata already has as a value or a folder",
    **WIDENED_INTEGERS,
    "not-per-step": "datasets that do not have one row per step were stored as metadata",
    "continuing-stream": "the environment was never reset at the time limit: only flagged rows end a trajectory",
    "longer-than-time-limit": "trajectories that are longer than the time limit of the environment were not split",
    "end-by-time-limit": "the file marks no time-outs: a row was marked truncated if the number of steps since the "
    "last end equals the time limit",
    "end-without-flag": "the data ends within an episode: the last row was marked truncated",
    "seam-without-flag": "next_observations differs from the observation of the next row, but the row has no end flag: "
    "the row was marked truncated, because another trajectory begins after the row",
    "next-observation-rounded": "next_observations differs from the observation of the next row only by rounding "
    "(docs/sources/d4rl.md states the limit): the observation of the next row was stored for both",
    "next-observation-explicit": "next_observations differs from the observation of the next row so often that the "
    "rows do not form trajectories: next_observations was stored as a separate column",
    "final-observation-kept": "the state after the last step of each trajectory was taken from next_observations",
    "final-observation-unknown": "the file does not store the state after the last step of a trajectory",
    "final-info-unknown": "the file does not store the info after the last step of a trajectory",
    "both-flags": "rows that are terminated and truncated keep both flags",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of the array",
    "zero-observation": "rows with an observation of zeros were kept",
    **NOT_FINITE,
}


class D4RLReader(FlatReader):
    """Reader of an HDF5 file in D4RL's layout.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The file, by path.
        facts: What the catalog states. ``sizes`` are the sizes of the observations and the actions of the environment,
            ``time_limit`` is the number of steps after which the environment is reset, which is used only if the file marks
            no time-outs, ``continuing`` is whether the environment was never reset at its time limit, and ``required`` are
            the names of further HDF5 datasets that the file must have.

    Raises:
        ConversionError: If the file is damaged, lacks a column, or the columns contradict each other.
    """

    rules = _TEXTS
    _equal: EqualEpisodes | None = None

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._time_limit = None if facts.get("continuing") else facts.get("time_limit")
        self._opening: Counter[str] = Counter()
        super().__init__(dataset_id, _LAYOUT, "hdf5", files, facts)
        self.counts.update(self._opening)

    @override
    def plan(self, file: ArrayFile) -> Plan:
        if self._known is not None:
            return self._plan  # there is one file
        file = cast("Hdf5Arrays", file)
        made = plan_file(file.file.arrays, _LAYOUT, self._dataset_id, self._facts)
        plan, self.steps = made.plan, made.rows
        self.metadata = {stored: file.file.value(name) for name, stored in made.metadata.items()}
        self._opening["renamed"] = made.renamed
        self._opening["not-per-step"] = sum(not name.startswith("metadata/") for name in made.metadata)
        self._opening["no-timeouts-column"] = int(NEXT_TRUNCATED not in plan.flags)
        self._opening["continuing-stream"] = int(self._facts.get("continuing", False))
        if _next_rows_disagree(file, plan, made.rows):
            _check_rows_of_next(file, plan, made.rows)
            self._opening["next-observation-explicit"] = made.rows
            self.rules = {name: text for name, text in _TEXTS.items() if name != "final-observation-unknown"}
            plan = with_explicit_next(plan)
        self._limit = None if NEXT_TRUNCATED in plan.flags else self._time_limit
        return plan

    @override
    def find_ends(self, file: ArrayFile, plan: Plan) -> Ends:
        flags = read_flags(file, plan)
        self._equal = EqualEpisodes() if "time_limit" not in self._facts else None
        if self._equal is not None:  # a file of the user, which the catalog does not state
            rows = file.arrays[next(iter(plan.flags.values()))].rows
            check_flags_of_most_rows(file, {plan.flags[key]: set_rows for key, set_rows in flags.items()}, rows)
        self._flagged = union(flags.values())
        self._run = 0  # rows of the unfinished trajectory in previous blocks
        return find_ends(file, plan, flags)

    @override
    def failure(self, error: ConversionError, others: Sequence[str]) -> ConversionError:
        return ConversionError(error.name, error.problems, hint=error.remedy)  # there is one file

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        super().count_file(file, plan, ends)
        self.counts.update(self._opening)

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        flagged = mask_of_rows(self._flagged, block.start, block.stop)
        if self._limit is not None:
            self._end_at_limit(block, is_open=block.stop == ends.steps and not flagged[-1])
        last = np.flatnonzero(block.ends)
        self.counts["final-info-unknown"] += len(last) * any(column.key[0] == "info" for column in self.columns)
        if OBSERVATION in block.states:
            self.counts["zero-observation"] += _count_zero_rows(block.states[OBSERVATION])
        if self._equal is not None and self.kept == {column.key for column in self.columns}:
            self.counts.update(self._equal.counts([*block.steps.values(), *block.states.values()], block.ends))
        if self._time_limit is not None:
            self.counts["longer-than-time-limit"] += int(
                (np.diff(last, prepend=-1 - self._run) > self._time_limit).sum()
            )
        rows = block.stop - block.start
        self._run = rows - int(last[-1]) - 1 if len(last) else self._run + rows
        # Ends that the file does not mark: code that reproduces D4RL's rules must ignore such ends.
        return {"repaired": ~flagged[last]}

    def _end_at_limit(self, block: Block, *, is_open: bool) -> None:
        """Truncate the rows at which the number of steps since the last end reaches the time limit.

        Args:
            block: The block.
            is_open: Whether the last row is an end only because the data ends there.
        """
        marked = np.flatnonzero(block.ends)
        cuts = rows_at_limit(marked[:-1] if is_open else marked, block.stop - block.start, self._run, self._limit or 0)
        block.truncated[cuts] = True
        self.counts["end-by-time-limit"] += len(cuts)
        self.counts["end-without-flag"] -= int(is_open and block.stop - block.start - 1 in cuts)


def _next_rows_disagree(file: Hdf5Arrays, plan: Plan, rows: int) -> bool:
    """Return whether next_observations cannot be the observation of the next row.

    The two differ at ends and at jumps, which are few. The check therefore samples a few ranges of the file: if
    more than 1 % of the rows differ without a flag, and more rows than have a flag, then next_observations is not
    a shifted copy. If the sampled ranges miss this case, every such row becomes a jump: each transition is still
    correct, and only the trajectories are short.
    """
    if not plan.following or rows < 2:
        return False
    flags = union(read_flags(file, plan).values())
    names = [(part.array, plan.following[part.column.key]) for part in plan.parts if part.column.key in plan.following]
    jumps = flagged = sampled = 0
    last = max(rows - 1 - _PROBE_ROWS, 0)
    for start in sorted({last * number // (_PROBES - 1) for number in range(_PROBES)}):
        stop = min(start + _PROBE_ROWS, rows - 1)
        found = np.zeros(stop - start, np.bool_)
        for name, following in names:
            found |= find_jumps(file.file.read(following, start, stop), file.file.read(name, start + 1, stop + 1))[0]
        is_flagged = mask_of_rows(flags, start, stop)
        jumps += int((found & ~is_flagged).sum())
        flagged += int(is_flagged.sum())
        sampled += stop - start
    return jumps > _JUMP_SHARE_MAX * sampled and jumps > flagged


def _check_rows_of_next(file: Hdf5Arrays, plan: Plan, rows: int) -> None:
    """Check that next_observations is not the observation of the same or of the preceding row.

    Raises:
        ConversionError: If next_observations is shifted.
    """
    stop = min(rows, _PROBE_ROWS)
    for part in plan.parts:
        if part.column.key in plan.following:
            name = plan.following[part.column.key]
            after, observed = file.file.read(name, 0, stop), file.file.read(part.array, 0, stop)
            match = match_of_rows(name, part.array, after, observed, np.zeros(stop, np.int64), seams=True)
            check_matches(file, filter(None, [match]))


def _count_zero_rows(array: NDArray[Any]) -> int:
    flat = array.reshape(len(array), -1)
    candidates = np.flatnonzero(flat[:, 0] == 0)
    return int((~flat[candidates].any(axis=1)).sum())
