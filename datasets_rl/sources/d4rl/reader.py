"""Reader of HDF5 files in D4RL's layout.

Row i is step i: the state, the action, the reward, and whether the episode ended after the step. The state after the
last step of an episode is in ``next_observations``, or it is not stored; row i + 1 is already the first state of the
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS
from datasets_rl.read.hdf5 import Block, Hdf5File
from datasets_rl.sources.base import NOT_FINITE, EpisodeReader
from datasets_rl.sources.d4rl.layout import FLAGS, ColumnSlice, plan_layout, with_explicit_next
from datasets_rl.sources.rows import rows_in_chunk, split_rows
from datasets_rl.sources.values import WIDENED_INTEGERS, as_column, count_not_finite, find_jumps, flag_problems
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

_PROBES = 4
_PROBE_ROWS = 4096
_JUMP_SHARE_MAX = 0.01

_Array = NDArray[np.generic]
_Flags = NDArray[np.bool_]

_TEXTS = {
    "same-row": "row i of the file is transition i: its reward and its flags belong to its action",
    "no-timeouts-column": "the file has no column of time-outs",
    "flags-cast": "the file stores flags as numbers, 0 or 1; they were converted to booleans",
    "renamed": "dots in names were replaced with underscores, because dots separate the names of a key; an underscore "
    "was appended to names that the metadata already has as a value or a folder",
    **WIDENED_INTEGERS,
    "not-per-step": "datasets that do not have one row per step were stored as metadata",
    "continuing-stream": "the environment was never reset at its time limit: only flagged rows end a trajectory",
    "longer-than-time-limit": "trajectories that are longer than the time limit of the environment were not split",
    "end-by-time-limit": "the file marks no time-outs: a row was marked truncated if the number of steps since the "
    "last end equals the time limit",
    "end-without-flag": "the data ends within an episode: its last row was marked truncated",
    "seam-without-flag": "next_observations differs from the observation of the next row, but the row has no end flag: "
    "the row was marked truncated, because another trajectory begins after it",
    "next-observation-rounded": "next_observations differs from the observation of the next row only by rounding "
    "(docs/sources/d4rl.md states the limit): the observation of the next row was stored for both",
    "next-observation-explicit": "next_observations differs from the observation of the next row so often that the "
    "rows do not form trajectories: it was stored as a separate column",
    "final-observation-kept": "the state after the last step of each trajectory was taken from next_observations",
    "final-observation-unknown": "the file does not store the state after the last step of a trajectory",
    "final-info-unknown": "the file does not store the info after the last step of a trajectory",
    "both-flags": "rows that are terminated and truncated keep both flags",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of their array",
    "zero-observation": "rows whose observation is all zeros were kept",
    **NOT_FINITE,
}


class D4RLReader(EpisodeReader):
    """Reader of an HDF5 file in D4RL's layout.

    Args:
        path: The file.
        dataset_id: Id of the dataset, for messages.
        sizes: Sizes of the observations and actions of the environment, if known.
        time_limit: Number of steps after which the environment is reset; used only if the file marks no time-outs.
        continuing: Whether the environment was never reset at its time limit.

    Raises:
        ConversionError: If the file is damaged, lacks a column, or its columns contradict each other.
    """

    rules = _TEXTS

    def __init__(
        self,
        path: Path,
        dataset_id: str,
        *,
        time_limit: int | None,
        continuing: bool,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._dataset_id = dataset_id
        self._file = Hdf5File(path)
        try:
            self._layout = plan_layout(self._file.arrays, dataset_id, sizes)
            self._limit = None if continuing or "timeouts" in self._layout.flags else time_limit
            self._time_limit = None if continuing else time_limit
            self._flags = self._read_flags()
            self._opening = self._initial_counts(continuing=continuing)
            self.metadata = {stored: self._file.value(name) for name, stored in self._layout.metadata.items()}
        except BaseException:
            self._file.close()
            raise
        self.steps = self._layout.rows
        self.columns = (*(part.column for part in self._layout.parts), *END_COLUMNS)
        self.counts.update(self._opening)

    def __exit__(self, *details: object) -> None:
        self._file.close()

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        del part
        self.counts.clear()
        self.counts.update(self._opening)
        parts = self._layout.parts
        names = [part.name for part in parts]
        names += [part.following for part in parts if part.following]
        row_bytes = sum(self._file.arrays[name].row_bytes for name in names)
        overlap = [part.name for part in parts if part.following]
        run = 0  # rows of the unfinished trajectory in previous blocks
        for block in self._file.blocks(names, rows=rows_in_chunk(row_bytes), overlap=overlap):
            ends, truncated = self._find_ends(block, run)
            self._count_decisions(block)
            yield from self._split_block(block, run, ends, truncated)
            end_rows = np.flatnonzero(ends)
            self.counts["longer-than-time-limit"] += self._count_long_episodes(end_rows, run)
            run = block.stop - block.start - int(end_rows[-1]) - 1 if len(end_rows) else run + block.stop - block.start

    def _find_ends(self, block: Block, run: int) -> tuple[_Flags, _Flags]:
        """Return the masks of last rows of trajectories and of truncated rows in a block, [T] each.

        Args:
            block: The block, of T rows.
            run: Number of rows of the unfinished trajectory in previous blocks.
        """
        terminated, truncated = (flags[block.start : block.stop] for flags in self._flags)
        jumps, rounded = _jump_masks(block, self._layout.parts, terminated | truncated)
        truncated = truncated | jumps
        self.counts["seam-without-flag"] += int(jumps.sum())
        self.counts["next-observation-rounded"] += int(rounded.sum())
        if self._limit is not None:
            cuts = _rows_at_limit(np.flatnonzero(terminated | truncated), len(truncated), run, self._limit)
            truncated[cuts] = True
            self.counts["end-by-time-limit"] += len(cuts)
        if block.stop == self._layout.rows and not (terminated[-1] or truncated[-1]):
            truncated[-1] = True
            self.counts["end-without-flag"] += 1
        ends = terminated | truncated
        outcome = "kept" if any(part.following for part in self._layout.parts) else "unknown"
        self.counts[f"final-observation-{outcome}"] += 0 if self._has_explicit_next else int(ends.sum())
        self.counts["final-info-unknown"] += int(ends.sum()) if self._has_info else 0
        self.counts["both-flags"] += int((terminated & truncated).sum())
        return ends, truncated

    def _count_long_episodes(self, ends: NDArray[np.intp], run: int) -> int:
        if self._time_limit is None or not len(ends):
            return 0
        return int((np.diff(ends, prepend=-1 - run) > self._time_limit).sum())

    def _count_decisions(self, block: Block) -> None:
        rows = block.stop - block.start
        for part in self._layout.parts:
            for name in filter(None, (part.name, part.following)):
                self.counts["not-finite"] += count_not_finite(block.columns[name][:rows])
            if part.column.key == OBSERVATION:
                self.counts["zero-observation"] += _count_zero_rows(block.columns[part.name][:rows])

    def _split_block(self, block: Block, run: int, ends: _Flags, truncated: _Flags) -> Iterator[Episode | EpisodeBatch]:
        """Split a block into trajectories; the arrays of a batch are views of the block.

        Args:
            block: The block, of T rows.
            run: Number of rows of the unfinished trajectory in previous blocks.
            ends: Mask of the last rows of trajectories, [T].
            truncated: Mask of the truncated rows, [T].
        """
        rows = slice(block.start, block.stop)
        steps: dict[Key, _Array] = {NEXT_TERMINATED: self._flags[0][rows, None], NEXT_TRUNCATED: truncated[:, None]}
        states: dict[Key, _Array] = {}
        following: dict[Key, _Array] = {}
        for part in self._layout.parts:
            column = part.column
            array = as_column(block.columns[part.name][: len(ends)], column)
            (states if column.shared else steps)[column.key] = array
            if part.following:
                following[column.key] = as_column(block.columns[part.following][: len(ends)], column)
        # Ends that the file does not mark: code that reproduces D4RL's rules must ignore them.
        metadata = {"repaired": ~(self._flags[0] | self._flags[1])[rows]}
        finals = {key: values[ends] for key, values in following.items()}
        yield from split_rows(steps, states, ends, finals, {"repaired": metadata["repaired"][ends]}, is_begun=run > 0)

    @property
    def _has_info(self) -> bool:
        return any(part.column.key[0] == "info" for part in self._layout.parts)

    @property
    def _has_explicit_next(self) -> bool:
        return "next-observation-explicit" in self._opening

    def _read_flags(self) -> tuple[_Flags, _Flags]:
        """Read terminals and timeouts, [N] each; at two bytes per row, both fit into memory."""
        problems: list[str] = []
        flags = [np.zeros(self._layout.rows, bool), np.zeros(self._layout.rows, bool)]
        for name in self._layout.flags:
            raw = self._file.read(name).reshape(-1)
            problems += flag_problems(name, raw)
            flags[FLAGS.index(name)] = raw == 1
        if problems:
            raise ConversionError(self._dataset_id, problems)
        return flags[0], flags[1]

    def _initial_counts(self, *, continuing: bool) -> Counter[str]:
        """Count the decisions that need no pass over the file."""
        arrays = self._file.arrays
        counts: Counter[str] = Counter({"same-row": self._layout.rows, "renamed": self._layout.renamed})
        cast = [name for name in self._layout.flags if arrays[name].dtype.kind != "b"]
        counts["widened"] = self._layout.rows * self._layout.widened
        counts["flags-cast"] = self._layout.rows * len(cast)
        counts["no-timeouts-column"] = int("timeouts" not in self._layout.flags)
        counts["continuing-stream"] = int(continuing)
        counts["unwritten-chunks"] = self._file.unwritten
        counts["not-per-step"] = sum(not name.startswith("metadata/") for name in self._layout.metadata)
        if self._next_rows_disagree():
            counts["next-observation-explicit"] = self._layout.rows
            self._layout = with_explicit_next(self._layout)
        return +counts

    def _next_rows_disagree(self) -> bool:
        """Return whether next_observations cannot be the observation of the next row.

        The two differ at ends and at jumps, which are few. The check therefore samples a few ranges of the file: if
        more than 1 % of their rows differ without a flag, and more rows than have a flag, then next_observations is not
        a shifted copy. If the sampled ranges miss this case, every such row becomes a jump: each transition is still
        correct, and only the trajectories are short.
        """
        parts = tuple(part for part in self._layout.parts if part.following)
        if not parts or self._layout.rows < 2:
            return False
        jumps = flagged = sampled = 0
        last = max(self._layout.rows - 1 - _PROBE_ROWS, 0)
        for start in sorted({last * number // (_PROBES - 1) for number in range(_PROBES)}):
            stop = min(start + _PROBE_ROWS, self._layout.rows - 1)
            columns = {part.name: self._file.read(part.name, start, stop + 1) for part in parts}
            columns |= {
                part.following: self._file.read(part.following, start, stop) for part in parts if part.following
            }
            ends = self._flags[0][start:stop] | self._flags[1][start:stop]
            jumps += int(_jump_masks(Block(start, stop, columns), parts, ends)[0].sum())
            flagged += int(ends.sum())
            sampled += stop - start
        return jumps > _JUMP_SHARE_MAX * sampled and jumps > flagged


def _jump_masks(block: Block, parts: Sequence[ColumnSlice], flagged: _Flags) -> tuple[_Flags, _Flags]:
    """Return the masks of unflagged rows whose next observation differs from that of the next row, [T] each.

    The first mask marks rows with different states, the second one rows that differ only by rounding.
    """
    jumps, rounded = np.zeros(len(flagged), bool), np.zeros(len(flagged), bool)
    for part in parts:
        if not part.following:
            continue
        begun = block.columns[part.name][1:]
        part_masks = find_jumps(block.columns[part.following][: len(begun)], begun)
        for mask, part_mask in zip((jumps, rounded), part_masks, strict=True):
            mask[: len(part_mask)] |= part_mask
    return jumps & ~flagged, rounded & ~jumps & ~flagged


def _rows_at_limit(ends: NDArray[np.intp], rows: int, run: int, limit: int) -> NDArray[np.intp]:
    """Return the rows in [0, rows) at which the number of steps since the last end reaches `limit`."""
    starts = np.concatenate([[-run], ends + 1])
    stops = np.concatenate([ends, [rows]])
    counts = (stops - starts) // limit
    long = np.flatnonzero(counts)
    cuts = [starts[gap] - 1 + limit * np.arange(1, counts[gap] + 1) for gap in long]
    return np.concatenate([np.empty(0, np.intp), *cuts])


def _count_zero_rows(array: _Array) -> int:
    flat = array.reshape(len(array), -1)
    candidates = np.flatnonzero(flat[:, 0] == 0)
    return int((~flat[candidates].any(axis=1)).sum())
