"""Reader of the npz files of NeoRL and NeoRL-2: rows of all trajectories, one after the other.

obs, action   s_0 a_0   s_1 a_1   s_2 a_2 | s_0' a_0'
next_obs      s_1       s_2       s_3     | s_1'           s_3 is stored only here
reward        r_0       r_1       r_2     | r_0'           of the action in the same row
done          0         0         1       | 0              0 at time limits
truncated     0         0         0       | 0              NeoRL-2 only
index         (0)                            3 ...         first rows of trajectories, as floats; the 0 may be missing

A trajectory ends where `index` starts the next one, at a flag, and where next_obs is not the observation of the next row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.rows import rows_in_chunk, split_rows
from datasets_rl.sources.values import WIDENED, WIDENED_INTEGERS, as_column, count_not_finite, find_jumps, flag_problems
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

_FLAGS = ("done", "truncated")
_ARRAYS: Mapping[str, Key] = {"obs": OBSERVATION, "action": ACTION, "reward": NEXT_REWARD}
_FOLLOWING = "next_obs"
_REQUIRED = (*_ARRAYS, _FOLLOWING, "done")

_Flags = NDArray[np.bool_]


class NeoRLReader(EpisodeReader):
    """Reader of a file.

    Args:
        dataset_id: Id of the dataset, for messages.
        path: The file.

    Raises:
        ConversionError: If the file is damaged, lacks an array, or its arrays contradict each other; the error names every
            problem.
    """

    rules: Mapping[str, str] = {
        "same-row": "row i of the file is transition i: its reward and its flags belong to its action",
        "index-without-zero": "index does not begin with 0: the first trajectory begins there, as in NeoRL's own loader",
        "end-by-index": "the trajectory ends without a flag, because index starts another one: its last row was marked "
        "truncated",
        "end-without-flag": "the data ends without a flag: its last row was marked truncated",
        "flag-within-trajectory": "a flag within a trajectory of index ends the episode, too",
        "seam-without-flag": "next_obs differs from the observation of the next row: the row was marked truncated, because "
        "another trajectory begins after it",
        "next-observation-rounded": "next_obs differs from the observation of the next row only by rounding: the "
        "observation of the next row was stored for both",
        "both-flags": "rows that are terminated and truncated keep both flags",
        "flags-cast": "the file stores flags as numbers, 0 or 1; they were converted to booleans",
        **WIDENED_INTEGERS,
        **NOT_FINITE,
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, path: Path) -> None:
        self._dataset_id = dataset_id
        self._file = NpzFile(path)
        try:
            self._raise([*self._problems()])
            self._rows = self._file.arrays["obs"].shape[0]
            self._done, self._truncated, self._starts = self._read_ends()
        except BaseException:
            self._file.__exit__()
            raise
        self.columns = self._all_columns()

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        del part
        self._count_file()
        readers = {name: self._file.open(name) for name in (*_ARRAYS, _FOLLOWING)}
        block = rows_in_chunk(sum(reader.row_bytes for reader in readers.values()))
        observation = readers["obs"].read_rows(min(1, self._rows))  # read a row ahead, to compare next_obs with
        is_begun = False
        for start in range(0, self._rows, block):
            stop = min(start + block, self._rows)
            ahead = readers["obs"].read_rows(min(stop + 1, self._rows) - start - len(observation))
            observations = np.concatenate([observation, ahead])
            arrays = {name: reader.read_rows(stop - start) for name, reader in readers.items() if name != "obs"}
            arrays["obs"], observation = observations[: stop - start], observations[stop - start :]
            self.counts["not-finite"] += sum(count_not_finite(values) for values in arrays.values())
            truncated = self._find_truncated(start, arrays[_FOLLOWING], observations[1:])
            yield from self._split(arrays, self._done[start:stop], truncated, is_begun=is_begun)
            is_begun = not (self._done[stop - 1] or truncated[-1])

    def _raise(self, problems: list[str]) -> None:
        if problems:
            name = self._file.name
            raise ConversionError(self._dataset_id, first_problems([f"{name}: {problem}" for problem in problems]))

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the names, shapes and dtypes of the arrays."""
        arrays = self._file.arrays
        if missing := [name for name in _REQUIRED if name not in arrays]:
            yield f"it has no array {', '.join(missing)}; it has {', '.join(arrays) or 'none'}"
            return
        rows = arrays["obs"].shape[:1]
        for name in (*_REQUIRED, "truncated"):
            array = arrays.get(name)
            if array is None:
                continue
            if array.shape[:1] != rows or not rows:
                yield f"{name} is {array}; obs is {arrays['obs']}: expected one row for each step"
            elif array.dtype.kind not in "biuf":
                yield f"{name} is {array}; expected numbers"
            elif name in {*_FLAGS, "reward"} and prod(array.shape[1:]) != 1:
                yield f"{name} is {array}; expected one value for each step"
        if arrays[_FOLLOWING].shape[1:] != arrays["obs"].shape[1:]:
            yield f"next_obs is {arrays[_FOLLOWING]}; obs is {arrays['obs']}"
        if "index" in arrays and (len(arrays["index"].shape) != 1 or arrays["index"].dtype.kind not in "iuf"):
            yield f"index is {arrays['index']}; expected the first row of each trajectory"

    def _read_ends(self) -> tuple[_Flags, _Flags, _Flags]:
        """Return the masks of `done`, of `truncated`, and of the first rows of trajectories in `index`, [N] each."""
        problems: list[str] = []
        flags = [np.zeros(self._rows, np.bool_), np.zeros(self._rows, np.bool_)]
        for number, name in enumerate(one for one in _FLAGS if one in self._file.arrays):
            raw = self._file.read(name).reshape(-1)
            problems += flag_problems(name, raw)
            flags[number] = raw == 1
        starts = np.zeros(self._rows + 1, np.bool_)
        if "index" in self._file.arrays:
            index = self._file.read("index").astype(np.float64)
            if len(index) and not ((index >= 0) & (index <= self._rows) & (index == np.floor(index))).all():
                wrong = np.flatnonzero(~((index >= 0) & (index <= self._rows) & (index == np.floor(index))))
                problems.append(f"index[{wrong[0]:,}] is {index[wrong[0]]:g}; expected a row from 0 to {self._rows:,}")
            elif (np.diff(index) <= 0).any():
                at = int(np.flatnonzero(np.diff(index) <= 0)[0])
                problems.append(f"index[{at + 1:,}] is {index[at + 1]:g} after {index[at]:g}; expected ascending rows")
            else:
                starts[index.astype(np.int64)] = True
        self._raise(problems)
        return flags[0], flags[1], starts

    def _all_columns(self) -> list[Column]:
        columns = []
        for name, key in _ARRAYS.items():
            array = self._file.arrays[name]
            columns.append(Column(key, _dtype(array), array.shape[1:] or (1,), shared=key == OBSERVATION))
        return [*columns, *END_COLUMNS]

    def _count_file(self) -> None:
        """Count the decisions that need no pass over the arrays."""
        arrays = self._file.arrays
        self.counts.clear()
        self.counts["same-row"] = self._rows
        self.counts["no-transition"] = int(not self._rows)
        self.counts["index-without-zero"] = int("index" in arrays and self._rows > 0 and not self._starts[0])
        self.counts["both-flags"] = int((self._done & self._truncated).sum())
        self.counts["flags-cast"] = (
            sum(arrays[name].dtype.kind != "b" for name in _FLAGS if name in arrays) * self._rows
        )
        self.counts["widened"] = sum(arrays[name].dtype.newbyteorder("=") in WIDENED for name in _ARRAYS) * self._rows

    def _find_truncated(self, start: int, following: NDArray[Any], observations: NDArray[Any]) -> _Flags:
        """Return the mask of the truncated rows of a block, [T], and count why.

        Args:
            start: The first row of the block.
            following: next_obs of the block, [T, ...].
            observations: The observations of the rows after those of the block, [T, ...], or [T - 1, ...] at the end.
        """
        rows = len(following)
        flagged = self._done[start : start + rows] | self._truncated[start : start + rows]
        is_last = self._starts[start + 1 : start + rows + 1]
        jumps, rounded = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        jumps[: len(observations)], rounded[: len(observations)] = find_jumps(
            following[: len(observations)], observations
        )
        seams = jumps & ~flagged & ~is_last
        ends = flagged | is_last | seams
        truncated: _Flags = self._truncated[start : start + rows] | (ends & ~flagged)
        self.counts["end-by-index"] += int((is_last & ~flagged).sum())
        self.counts["seam-without-flag"] += int(seams.sum())
        self.counts["next-observation-rounded"] += int((rounded & ~ends).sum())
        if "index" in self._file.arrays:
            inside = flagged & ~is_last
            inside[self._rows - 1 - start :] = False  # the end of the file need not be in the index
            self.counts["flag-within-trajectory"] += int(inside.sum())
        if start + rows == self._rows and not ends[-1]:
            truncated[-1] = True
            self.counts["end-without-flag"] += 1
        return truncated

    def _split(
        self, arrays: Mapping[str, NDArray[Any]], done: _Flags, truncated: _Flags, *, is_begun: bool
    ) -> Iterator[Episode | EpisodeBatch]:
        """Split the rows of a block into the rest of an episode, whole episodes, and the first piece of another one.

        Args:
            arrays: The rows of each array, [T, ...].
            done: Mask of the terminated rows, [T].
            truncated: Mask of the truncated rows, [T].
            is_begun: Whether an episode of the block before continues.
        """
        columns = {column.key: column for column in self.columns}
        stored = {key: as_column(arrays[name], columns[key]) for name, key in _ARRAYS.items()}
        states = {OBSERVATION: stored.pop(OBSERVATION)}
        following = {OBSERVATION: as_column(arrays[_FOLLOWING], columns[OBSERVATION])}
        steps = {**stored, NEXT_TERMINATED: done[:, None], NEXT_TRUNCATED: truncated[:, None]}
        yield from split_rows(steps, states, done | truncated, following, {}, is_begun=is_begun)


def _dtype(array: NpyReader) -> np.dtype[Any]:
    dtype = array.dtype.newbyteorder("=")
    return WIDENED.get(dtype, dtype)
