"""A file in D4RL's layout as trajectories.

Row i is what happened at step i: the state, the action in it, the reward for it, and whether the episode ended there.
The state after the last step of an episode is in ``next_observations`` or nowhere; row i + 1 is then the first state
of the next episode:

    observations        s_0  s_1  s_2 | s_0' s_1' ...
    actions             a_0  a_1  a_2 | a_0' a_1'
    rewards             r_0  r_1  r_2 | r_0' r_1'
    terminals/timeouts   0    0    1  |  0    0
    next_observations   s_1  s_2  s_3 | s_1' s_2'        s_3 stands only here

No row is dropped, added or moved: row i of the trajectories, end to end, is row i of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Block, Hdf5File
from datasets_rl.sources.base import Decision, EpisodeReader
from datasets_rl.sources.d4rl.layout import FLAGS, WIDENED, ColumnSlice, explicit, layout
from datasets_rl.sources.seams import differences
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["D4RLReader"]

_BLOCK_BYTES = 8 << 20
_PROBES = 4
_PROBE_ROWS = 4096
_SEAMS_MOST = 0.01

_Array = NDArray[np.generic]
_Flags = NDArray[np.bool_]

_TEXTS = {
    "same-row": "row i of the file is transition i: its reward and its flags belong to its action",
    "no-timeouts-column": "the file has no column of time-outs",
    "flags-cast": "the file stores flags as numbers, 0 or 1; they were turned into booleans",
    "renamed": "a dot in a name became an underscore, because dots separate the names of a key; a name that the "
    "metadata has already, as a value or a folder, got one behind it",
    "widened": "unsigned integers of 16 and 32 bits became signed ones of 32 and 64 bits, which torch can gather",
    "not-per-step": "datasets that have no row for each step were put with the metadata",
    "continuing-stream": "the environment was never reset at its time limit: only flagged rows end a trajectory",
    "longer-than-time-limit": "trajectories that are longer than the time limit of the environment were left whole",
    "end-by-time-limit": "the file marks no time-outs: after so many steps as the time limit without a flag, "
    "the row was marked truncated",
    "end-without-flag": "the data ends within an episode: its last row was marked truncated",
    "seam-without-flag": "next_observations is not the observation of the next row, and no flag stands between them: "
    "two trajectories meet there, and the row was marked truncated",
    "next-observation-rounded": "next_observations differs from the observation of the next row by rounding alone "
    "(docs/sources/d4rl.md says how much): the observation of the next row was stored for both",
    "next-observation-explicit": "next_observations so often is not the observation of the next row that the rows are "
    "no trajectories: it was stored as a column of its own",
    "final-observation-kept": "the state after the last step of each trajectory was taken from next_observations",
    "final-observation-unknown": "the file does not hold the state after the last step of a trajectory",
    "final-info-unknown": "the file does not hold the info after the last step of a trajectory",
    "both-flags": "rows that are terminated and truncated keep both flags",
    "unwritten-chunks": "chunks that the file never wrote have the fill value of their array",
    "zero-observation": "rows whose observation is all zeros were kept",
    "not-finite": "values that are NaN or infinite were kept",
}


class D4RLReader(EpisodeReader):
    """An open file in D4RL's layout.

    Args:
        path: The file.
        what: The dataset, for messages.
        sizes: How many numbers the environment's observations and actions have, where that is known.
        time_limit: Steps after which the environment is reset; used only where the file marks no time-outs.
        continuing: Whether the environment was never reset at its time limit.

    Raises:
        ConversionError: If the file is damaged, lacks a column, or its columns contradict each other.
    """

    def __init__(
        self, path: Path, what: str, *, time_limit: int | None, continuing: bool, sizes: Sequence[int] | None = None
    ) -> None:
        self._what = what
        self._file = Hdf5File(path)
        try:
            self._layout = layout(self._file.arrays, what, sizes)
            self._limit = None if continuing or "timeouts" in self._layout.flags else time_limit
            self._time_limit = None if continuing else time_limit
            self._flags = self._read_flags()
            self._opening = self._decide_opening(continuing=continuing)
            self.metadata = self._read_metadata()
        except BaseException:
            self._file.close()
            raise
        self.steps = self._layout.rows
        self.columns = self._all_columns()
        self.decisions: list[Decision] = _as_decisions(self._opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the trajectories in the order of the file; one that spans blocks comes in pieces."""
        del part
        found: Counter[str] = Counter()
        parts = self._layout.parts
        names = [part.name for part in parts]
        names += [part.following for part in parts if part.following]
        row_bytes = sum(self._file.arrays[name].row_bytes for name in names)
        overlap = [part.name for part in parts if part.following]
        run = 0
        for block in self._file.blocks(names, rows=max(1, _BLOCK_BYTES // max(row_bytes, 1)), overlap=overlap):
            ends, truncated = self._ends(block, run, found)
            self._inspect(block, found)
            yield from self._cut(block, ends, truncated)
            where = np.flatnonzero(ends)
            found["longer-than-time-limit"] += self._longer(where, run)
            run = block.stop - block.start - int(where[-1]) - 1 if len(where) else run + block.stop - block.start
        self.decisions = _as_decisions(self._opening + found)

    def _ends(self, block: Block, run: int, found: Counter[str]) -> tuple[_Flags, _Flags]:
        """Find the last rows of trajectories in a block; `run` rows of the one that is open came before it."""
        terminated, truncated = (flags[block.start : block.stop] for flags in self._flags)
        seams, rounded = _seams(block, self._layout.parts, terminated | truncated)
        truncated = truncated | seams
        found["seam-without-flag"] += int(seams.sum())
        found["next-observation-rounded"] += int(rounded.sum())
        if self._limit is not None:
            cuts = _limit_cuts(np.flatnonzero(terminated | truncated), len(truncated), run, self._limit)
            truncated[cuts] = True
            found["end-by-time-limit"] += len(cuts)
        if block.stop == self._layout.rows and not (terminated[-1] or truncated[-1]):
            truncated[-1] = True
            found["end-without-flag"] += 1
        ends = terminated | truncated
        known = "kept" if any(part.following for part in self._layout.parts) else "unknown"
        found[f"final-observation-{known}"] += 0 if self._explicit else int(ends.sum())
        found["final-info-unknown"] += int(ends.sum()) if self._has_info else 0
        found["both-flags"] += int((terminated & truncated).sum())
        return ends, truncated

    def _longer(self, ends: NDArray[np.intp], run: int) -> int:
        if self._time_limit is None or not len(ends):
            return 0
        return int((np.diff(ends, prepend=-1 - run) > self._time_limit).sum())

    def _inspect(self, block: Block, found: Counter[str]) -> None:
        rows = block.stop - block.start
        for part in self._layout.parts:
            for name in filter(None, (part.name, part.following)):
                found["not-finite"] += _not_finite(block.columns[name][:rows])
            if part.column.key == OBSERVATION:
                found["zero-observation"] += _zero_rows(block.columns[part.name][:rows])

    def _cut(self, block: Block, ends: _Flags, truncated: _Flags) -> Iterator[Episode]:
        """Cut a block into trajectories; all arrays are views of the block."""
        rows = block.stop - block.start
        where = np.flatnonzero(ends)
        # Ends that the file does not mark: readers that reproduce D4RL's own rules must not see them.
        repaired = ~(self._flags[0] | self._flags[1])[block.start : block.stop][where]
        steps: list[tuple[Key, _Array]] = [
            (NEXT_TERMINATED, self._flags[0][block.start : block.stop, None]),
            (NEXT_TRUNCATED, truncated[:, None]),
        ]
        states: list[tuple[Key, _Array]] = []
        joined: list[tuple[Key, _Array]] = []
        for part in self._layout.parts:
            array = block.columns[part.name][:rows].reshape(rows, *part.column.shape)
            if array.dtype in WIDENED:
                array = array.astype(part.column.dtype)
            if part.following:
                joined.append((part.column.key, _with_finals(array, block.columns[part.following], where)))
            else:
                (states if part.column.shared else steps).append((part.column.key, array))
        start = 0
        for number, stop in enumerate((where + 1).tolist()):
            now, ahead = slice(start, stop), slice(start + number, stop + number + 1)
            metadata = {"repaired": bool(repaired[number])}
            yield Episode(_sliced(steps, now), {**_sliced(joined, ahead), **_sliced(states, now)}, metadata=metadata)
            start = stop
        if start < rows:
            now, ahead = slice(start, rows), slice(start + len(where), rows + len(where))
            yield Episode(_sliced(steps, now), {**_sliced(joined, ahead), **_sliced(states, now)}, continues=True)

    @property
    def _has_info(self) -> bool:
        return any(part.column.key[0] == "info" for part in self._layout.parts)

    @property
    def _explicit(self) -> bool:
        return "next-observation-explicit" in self._opening

    def _all_columns(self) -> tuple[Column, ...]:
        flag = np.dtype(bool)
        flags = (Column(NEXT_TERMINATED, flag, (1,)), Column(NEXT_TRUNCATED, flag, (1,)))
        return (*(part.column for part in self._layout.parts), *flags)

    def _read_flags(self) -> tuple[_Flags, _Flags]:
        """Read terminals and timeouts, [N] each; at two bytes a row they are held as a whole."""
        problems: list[str] = []
        flags = [np.zeros(self._layout.rows, bool), np.zeros(self._layout.rows, bool)]
        for name in self._layout.flags:
            raw = self._file.read(name).reshape(-1)
            bad = np.flatnonzero((raw != 0) & (raw != 1))
            if len(bad):
                problems.append(f"{name} is {raw[bad[0]]} at row {bad[0]:,}; expected 0 or 1 ({len(bad):,} such rows)")
            flags[FLAGS.index(name)] = raw == 1
        if problems:
            raise ConversionError(self._what, problems)
        return flags[0], flags[1]

    def _read_metadata(self) -> dict[str, NDArray[np.generic] | str | float | bool]:
        return {given: self._file.value(name) for name, given in self._layout.metadata.items()}

    def _decide_opening(self, *, continuing: bool) -> Counter[str]:
        """Make the decisions that need no pass over the file."""
        arrays = self._file.arrays
        found: Counter[str] = Counter({"same-row": self._layout.rows, "renamed": self._layout.renamed})
        cast = [name for name in self._layout.flags if arrays[name].dtype.kind != "b"]
        found["widened"] = self._layout.rows * self._layout.widened
        found["flags-cast"] = self._layout.rows * len(cast)
        found["no-timeouts-column"] = int("timeouts" not in self._layout.flags)
        found["continuing-stream"] = int(continuing)
        found["unwritten-chunks"] = self._file.unwritten
        found["not-per-step"] = sum(not name.startswith("metadata/") for name in self._layout.metadata)
        if self._rows_disagree():
            found["next-observation-explicit"] = self._layout.rows
            self._layout = explicit(self._layout)
        return +found

    def _rows_disagree(self) -> bool:
        """Whether next_observations cannot be the observation of the next row.

        It is not at ends and at seams, which are few. So: if in a few stretches of the file more than 1 % of the
        rows, and more than have a flag, disagree without a flag, there is no shift to rely on. Where the stretches
        miss it, every such row becomes a seam: that is right for each transition, only the trajectories are short.
        """
        parts = tuple(part for part in self._layout.parts if part.following)
        if not parts or self._layout.rows < 2:
            return False
        wrong = flagged = looked = 0
        last = max(self._layout.rows - 1 - _PROBE_ROWS, 0)
        for start in sorted({last * number // (_PROBES - 1) for number in range(_PROBES)}):
            stop = min(start + _PROBE_ROWS, self._layout.rows - 1)
            columns = {part.name: self._file.read(part.name, start, stop + 1) for part in parts}
            columns |= {
                part.following: self._file.read(part.following, start, stop) for part in parts if part.following
            }
            ends = self._flags[0][start:stop] | self._flags[1][start:stop]
            wrong += int(_seams(Block(start, stop, columns), parts, ends)[0].sum())
            flagged += int(ends.sum())
            looked += stop - start
        return wrong > _SEAMS_MOST * looked and wrong > flagged


def _seams(block: Block, parts: Sequence[ColumnSlice], flagged: _Flags) -> tuple[_Flags, _Flags]:
    """Mark the rows without a flag whose next observation is another state than the next row's, [T], or rounded, [T]."""
    seams, rounded = np.zeros(len(flagged), bool), np.zeros(len(flagged), bool)
    for part in parts:
        if not part.following:
            continue
        begun = block.columns[part.name][1:]
        found = differences(block.columns[part.following][: len(begun)], begun)
        for marks, more in zip((seams, rounded), found, strict=True):
            marks[: len(more)] |= more
    return seams & ~flagged, rounded & ~seams & ~flagged


def _limit_cuts(ends: NDArray[np.intp], rows: int, run: int, limit: int) -> NDArray[np.intp]:
    """Return the rows of [0, rows) after which `limit` steps have passed since the last end."""
    starts = np.concatenate([[-run], ends + 1])
    stops = np.concatenate([ends, [rows]])
    counts = (stops - starts) // limit
    long = np.flatnonzero(counts)
    cuts = [starts[gap] - 1 + limit * np.arange(1, counts[gap] + 1) for gap in long]
    return np.concatenate([np.empty(0, np.intp), *cuts])


def _with_finals(array: _Array, following: _Array, ends: NDArray[np.intp]) -> _Array:
    """Put the state after each end behind its row.

    Args:
        array: The states, [T, ...].
        following: The states after each step, [T, ...].
        ends: The last rows of trajectories, [K].

    Returns:
        [T + K, ...]
    """
    out: _Array = np.empty((len(array) + len(ends), *array.shape[1:]), array.dtype)
    final_states = ends + np.arange(1, len(ends) + 1)
    rows = np.ones(len(out), bool)
    rows[final_states] = False
    out[rows] = array
    out[final_states] = following[ends]
    return out


def _sliced(arrays: Sequence[tuple[Key, _Array]], rows: slice) -> dict[Key, _Array]:
    return {key: array[rows] for key, array in arrays}


def _not_finite(array: _Array) -> int:
    if array.dtype.kind != "f":
        return 0
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):
            return 0
    return int((~np.isfinite(array)).sum())


def _zero_rows(array: _Array) -> int:
    flat = array.reshape(len(array), -1)
    maybe = np.flatnonzero(flat[:, 0] == 0)
    return int((~flat[maybe].any(axis=1)).sum())


def _as_decisions(found: Counter[str]) -> list[Decision]:
    return [Decision(rule, text, found[rule]) for rule, text in _TEXTS.items() if found[rule] > 0]
