"""Reader of OGBench's files: flat arrays of all episodes, one after the other.

observations, qpos, ...   s_0  s_1  ...  s_T      T + 1 rows for T steps
actions                   a_0  a_1  ...  a_T      a_T was applied, but its result is not in the file: it is left out
terminals                  0    0   ...   1       the last row of a recording, which is never the end of a task

The reward and the mask of a task at step t are those of s_t, as in OGBench's own loader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.ogbench.tasks import Task
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.values import count_not_finite, flag_problems
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT_MASK, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

_KEYS: Mapping[str, Key] = {
    "observations": OBSERVATION,
    "actions": ACTION,
    "qpos": ("info", "qpos"),
    "qvel": ("info", "qvel"),
    "button_states": ("info", "button_states"),
}
_REQUIRED = ("observations", "actions", "terminals")
_INFO = ("qpos", "qvel", "button_states")
_ORACLE: Key = ("info", "oracle_reps")
_FLOAT = np.dtype(np.float32)


class OGBenchReader(EpisodeReader):
    """Reader of the files of a dataset; a part is the path and the number of each file.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local file of each path; the first one defines the columns.
        task: The task that gives the rewards and the representations of goals; None for none.
        oracle: Whether to add the representations of goals instead of the rewards.
    """

    rules: Mapping[str, str] = {
        "last-action-left-out": "the action of the last row of an episode has no result in the file: it was left out, and "
        "the last observation is the final one",
        "no-rewards": "the files have no rewards: next.reward is 0; take a single-task id or a sampler of goals",
        "task-rewards": "rewards and masks were computed from the state before each step, as OGBench's loader does; a "
        "solved task ends no episode",
        "never-solved": "no state of a file solves the task: its mask is 1 everywhere",
        "floats-narrowed": "observations and actions of doubles were converted to float32, as by OGBench's loader",
        **NOT_FINITE,
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, files: Mapping[str, Path], task: Task | None, *, oracle: bool) -> None:
        self._dataset_id = dataset_id
        self._paths = files
        self._task = task
        self._oracle = oracle
        with self._open(next(iter(files))) as file:
            problems = [*self._problems(file)]
            self._raise(file, problems)
            self._arrays = [name for name in _KEYS if name in file.arrays]
            self._dtypes = {name: _stored_dtype(name, file.arrays[name].dtype) for name in self._arrays}
            self._shapes = {name: file.arrays[name].shape[1:] for name in self._arrays}
            self.columns = self._all_columns()

    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        """Yield the episodes of files, in order; by default those of all files.

        Raises:
            ConversionError: If a file is damaged, or has other arrays than the first one; the error names every problem.
        """
        self.counts.clear()
        names: list[tuple[str, int]] = [part] if part else [(name, number) for number, name in enumerate(self._paths)]
        for name, number in names:
            with self._open(name) as file:
                self._raise(file, [*self._problems(file), *self._differences(file)])
                ends = self._find_ends(file)
                if len(ends):
                    yield from self._read_episodes(file, ends, number)

    def _open(self, name: str) -> NpzFile:
        return NpzFile(self._paths[name], name)

    def _raise(self, file: NpzFile, problems: Sequence[str]) -> None:
        if problems:
            raise ConversionError(self._dataset_id, first_problems([f"{file.name}: {text}" for text in problems]))

    def _all_columns(self) -> list[Column]:
        columns = [
            Column(_KEYS[name], self._dtypes[name], self._shapes[name] or (1,), shared=name != "actions")
            for name in self._arrays
        ]
        columns += [Column(NEXT_REWARD, _FLOAT, (1,)), *END_COLUMNS]
        if self._task is None:
            return columns
        if not self._oracle:
            return [*columns, Column(NEXT_MASK, _FLOAT, (1,))]
        example = {name: np.zeros((1, width)) for name, width in self._task.widths.items()}
        return [*columns, Column(_ORACLE, _FLOAT, self._task.oracle_reps(example).shape[1:], shared=True)]

    def _problems(self, file: NpzFile) -> Iterator[str]:
        """Yield what is wrong with the arrays of a file."""
        arrays = file.arrays
        if missing := [name for name in _REQUIRED if name not in arrays]:
            yield f"it has no array {', '.join(missing)}; it has {', '.join(arrays) or 'none'}"
            return
        rows = arrays["terminals"].shape[:1]
        if arrays["terminals"].shape != rows or arrays["terminals"].dtype.kind not in "biuf":
            yield f"terminals is {arrays['terminals']}; expected one flag for each row"
        for name in (name for name in _KEYS if name in arrays):
            array = arrays[name]
            if array.shape[:1] != rows:
                yield f"{name} has {array.shape[0] if array.shape else 0:,} rows; terminals has {rows[0] if rows else 0:,}"
            if array.dtype.kind not in "biuf" or (name == "observations" and len(array.shape) < 2):
                yield f"{name} is {array}; expected numbers"
        if self._task is None:
            return
        for name, width in self._task.widths.items():
            if name not in arrays:
                yield f"it has no array {name}, from which the rewards of a task are computed"
            elif arrays[name].shape[1:] != (width,):
                yield f"{name} is {arrays[name]}; the task needs {width} elements in each row"

    def _differences(self, file: NpzFile) -> Iterator[str]:
        """Yield how the arrays of a file differ from those of the first file."""
        found = [name for name in _KEYS if name in file.arrays]
        if found != self._arrays:
            yield f"it has the arrays {', '.join(found)}; the first file has {', '.join(self._arrays)}"
            return
        for name in self._arrays:
            array = file.arrays[name]
            if (_stored_dtype(name, array.dtype), array.shape[1:]) != (self._dtypes[name], self._shapes[name]):
                expected = f"{list(self._shapes[name])} of {self._dtypes[name]}"
                yield f"{name} has rows of {list(array.shape[1:])} of {array.dtype}; the first file has {expected}"

    def _find_ends(self, file: NpzFile) -> NDArray[np.int64]:
        """Return the last row of each episode."""
        flags = file.read("terminals")
        ends = np.flatnonzero(flags)
        problems = flag_problems("terminals", flags)
        if len(flags) and (not len(ends) or ends[-1] != len(flags) - 1):
            problems.append(f"terminals of the last row, {len(flags) - 1:,}, is 0; expected the end of an episode")
        self._raise(file, problems)
        self.counts["no-transition"] += not len(flags)
        return ends

    def _read_episodes(self, file: NpzFile, ends: NDArray[np.int64], number: int) -> Iterator[Episode | EpisodeBatch]:
        readers = {name: file.open(name) for name in self._arrays if self._reads(name)}
        block = max(2, rows_in_chunk(sum(reader.row_bytes for reader in readers.values())))
        rows = np.diff(ends, prepend=-1)  # T + 1 in each episode
        self.counts["floats-narrowed"] += sum(
            reader.dtype.newbyteorder("=") != self._dtypes[name] for name, reader in readers.items()
        )
        self.counts["no-transition"] += int((rows == 1).sum())
        self.counts["last-action-left-out"] += int((rows > 1).sum())
        self.counts["no-rewards" if self._task is None or self._oracle else "task-rewards"] += int((rows - 1).sum())
        solved = False
        first = 0
        while first < len(ends):
            start = int(ends[first] - rows[first] + 1)
            last = max(first + 1, int(np.searchsorted(ends, start + block)))
            if rows[first] <= block:
                arrays = self._read_rows(readers, int(rows[first:last].sum()))
                batch = self._batch(arrays, rows[first:last], number)
                if batch is not None:
                    solved |= self._is_solved(batch.steps)
                    yield batch
                first = last
                continue
            for piece in self._pieces(readers, int(rows[first]), block, number):
                solved |= self._is_solved(piece.steps)
                yield piece
            first += 1
        self.counts["never-solved"] += NEXT_MASK in self.kept and not solved

    def _reads(self, name: str) -> bool:
        """Return whether an array is needed."""
        return _KEYS[name] in self.kept or (self._task is not None and name in self._task.widths)

    def _read_rows(self, readers: Mapping[str, NpyReader], count: int) -> dict[str, NDArray[Any]]:
        """Return the next rows of each array, in the dtype of its column."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, reader in readers.items():
            arrays[name] = reader.read_rows(count).astype(self._dtypes[name], copy=False)
            self.counts["not-finite"] += count_not_finite(arrays[name])
        return arrays

    def _batch(self, arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.int64], number: int) -> EpisodeBatch | None:
        """Return whole episodes from their rows, [E]; None if none has a step."""
        kept = np.flatnonzero(rows > 1)
        if not len(kept):
            return None
        lasts = np.cumsum(rows) - 1
        is_step = np.ones(int(rows.sum()), np.bool_)
        is_step[lasts] = False
        steps, states = self._fields(arrays, is_step)
        lengths = rows[kept] - 1
        finals = {key: values[lasts[kept]] for key, values in states.items()}
        truncated = np.zeros((int(lengths.sum()), 1), np.bool_)
        truncated[np.cumsum(lengths) - 1] = True
        return EpisodeBatch(
            lengths,
            {**steps, NEXT_TERMINATED: np.zeros_like(truncated), NEXT_TRUNCATED: truncated},
            {key: values[is_step] for key, values in states.items()},
            finals,
            np.ones(len(kept), np.bool_),
            {"file": np.full(len(kept), number)},
        )

    def _pieces(self, readers: Mapping[str, NpyReader], rows: int, block: int, number: int) -> Iterator[Episode]:
        """Yield an episode of more than `block` rows in pieces; the last one has the final state."""
        start = 0
        while start < rows:
            # A last piece of one row would have no step.
            stop = rows if rows - start <= block + 1 else start + block
            is_step = np.arange(start, stop) < rows - 1
            steps, states = self._fields(self._read_rows(readers, stop - start), is_step)
            truncated = (np.arange(start, stop) == rows - 2)[is_step, None]
            steps |= {NEXT_TERMINATED: np.zeros_like(truncated), NEXT_TRUNCATED: truncated}
            yield Episode(steps, states, stop < rows, {"file": number})
            start = stop

    def _fields(
        self, arrays: Mapping[str, NDArray[Any]], is_step: NDArray[np.bool_]
    ) -> tuple[dict[Key, Any], dict[Key, Any]]:
        """Return the fields of the steps, [N, ...], without the flags, and the states of all rows, [N + E, ...]."""
        states = {_KEYS[name]: values for name, values in arrays.items() if name != "actions"}
        steps: dict[Key, Any] = {NEXT_REWARD: np.zeros((int(is_step.sum()), 1), np.float32)}
        if "actions" in arrays:
            steps[ACTION] = arrays["actions"][is_step].reshape(-1, *(self._shapes["actions"] or (1,)))
        if self._task is not None and self._oracle:
            states[_ORACLE] = self._task.oracle_reps(arrays)
        elif self._task is not None:
            rewards, masks = self._task.rewards({name: arrays[name][is_step] for name in self._task.widths})
            steps |= {NEXT_REWARD: rewards[:, None], NEXT_MASK: masks[:, None]}
        return steps, {key: values for key, values in states.items() if key in self.kept}

    @staticmethod
    def _is_solved(steps: Mapping[Key, Any]) -> bool:
        return NEXT_MASK in steps and not steps[NEXT_MASK].all()


def _stored_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a column: observations and actions of floats are float32, as in OGBench's loader."""
    return _FLOAT if dtype.kind == "f" and name not in _INFO else dtype.newbyteorder("=")
