"""Reader of robomimic's demonstrations: every demonstration is an episode, which ends where the group ends.

    file row        0     1     2    ...   T-1
    actions        a_0   a_1   a_2   ...  a_T-1
    obs            o_0   o_1   o_2   ...  o_T-1       robomimic, MimicGen: T steps. The last next_obs is o_T
    rewards, dones r_1   r_2   r_3   ...   r_T        of the state after the action

    obs            o_1   o_2   o_3   ...   o_T        LIBERO: T - 1 steps, from a_1. o_0 was not stored
    states         s_0   s_1   s_2   ...  s_T-1       of the simulator, before the action, in both

``dones`` may be set in several rows, for states of success, or in the last row of every demonstration. The last step is
terminated if dones is set there and the reward is positive, and else truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import Argument, Call, ConversionError, InvalidArgumentError, Remedy
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.hdf5 import Hdf5Array
from datasets_rl.read.streams import first_problems, refuse
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.robomimic.demonstrations import (
    DEMONSTRATION_HINT,
    DONES,
    LANGUAGE,
    ROBOT_STATES,
    STATES,
    Demonstration,
    DemonstrationError,
    DemonstrationFile,
)
from datasets_rl.sources.rows import end_flags, split_episode
from datasets_rl.sources.values import WIDENED, as_column, count_not_finite, find_jumps
from datasets_rl.ted.episode import Episode, TextStates
from datasets_rl.ted.keys import NEXT_REWARD, OBSERVATION, Key, dotted_name

_STORABLE = frozenset(np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8"))
_ONE_VALUE = (NEXT_REWARD, DONES)
_METADATA = ("env_args", "problem_info", "bddl_file_name", "bddl_file_content")
_ALIGNMENTS = {
    "next_obs": "the observation beside an action is from before the action, and the last next_obs is the final observation",
    "final": "the observation beside an action is from before the action. The files have no next_obs, so that the final "
    "observation is not known",
    "before": "the observation beside an action is from before the action, as in files of LIBERO that were generated again. "
    "the final observation is not known",
    "after": "the observation beside an action is from after the action, as in LIBERO's own files: the step of the first "
    "action was left out, because the observation before that action was not stored",
}
_EVIDENCE = {
    "next_obs": "the alignment follows from next_obs",
    "keys": "the alignment follows from the names in the files, which are not the names of LIBERO",
    "states": "the alignment was measured: the joints of the observations were compared with the simulator states",
    "image-size": "the alignment follows from the size of the images: 128 pixels in LIBERO's own files, 256 in files "
    "that were generated again",
    "given": "the alignment was stated in the selection",
}
_TEXTS = {
    **{f"alignment-{name.replace('_', '-')}": text for name, text in _ALIGNMENTS.items()},
    **{f"alignment-by-{name.replace('_', '-')}": text for name, text in _EVIDENCE.items()},
    "states-after-actions": "states of the simulator are from after each action, as Isaac Lab records them: the initial "
    "state and the states were stored as the states before the actions",
    "states-measured": "files in which the states of the simulator were compared with the observations, and are of the "
    "expected rows",
    "total-differs": "the file states another number of rows than the demonstrations have, as after the deletion of a "
    "demonstration: the rows of the demonstrations were stored",
    "end-without-success": "demonstrations do not end in a success: the last step was marked truncated",
    "dones-inside": "rows before the last row have dones set, for states of success: the demonstration continues",
    "rewards-missing": "demonstrations have no rewards: zeros were stored",
    "next-obs-rounded": "rows with a next_obs that differs by rounding from the next obs, which was stored",
    "next-obs-differs": "rows with a next_obs that differs from the next obs, which was stored, as the "
    "selection states",
    "states-left-out": "simulator states were left out, because the size depends on the scene",
    "arrays-left-out": "arrays without a row per action were left out",
    "instruction-of-name": "the instruction was taken from the name of the file, as LIBERO does",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of the array",
    **NO_TRANSITION,
    "widened": "values of unsigned integers of 16 and 32 bits were widened to signed integers of 32 and 64 bits",
    **NOT_FINITE,
}
_SHIFTED_HINT = Remedy(
    "leave the states out, {}, or take the rows as stored, {}",
    Argument("selection", Call("Selection", keys=...)),
    Argument("selection", Call("Selection", options={"alignment": "before"})),
)
_ALIGN = Remedy(
    "{} takes the rows as stored",
    Argument("selection", Call("Selection", options={"alignment": "before"})),
)


class RobomimicReader(EpisodeReader):
    """Reader of the files of a shard.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path: the files of the shard, and the first file of the dataset: the first
            demonstration of that file defines the columns.
        params: `Listing.params`: the number of each path, whether the dataset is a folder, and the options.

    Raises:
        ConversionError: If a file has other contents, or the columns differ. The error names every problem.
        InvalidArgumentError: If the files do not have the selected filter key.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], params: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        self._files = dict(files)
        self._numbers: Mapping[str, int] = params.get("files") or {path: row for row, path in enumerate(sorted(files))}
        self._alignment: str = params.get("alignment", "")
        self._split: str = params.get("split", "")
        first = min(files, key=self._numbers.__getitem__)
        with self._open(first, threads=1) as file:
            opened = file.first
            self._filter_keys = sorted(file.filter_keys)
            if self._split and self._split not in self._filter_keys:
                names = ", ".join(self._filter_keys) or "none"
                raise InvalidArgumentError(
                    f"split is {self._split!r}, but the filter keys of {self.label(first)} are {names}"
                )
            self._attributes = {name: type(value) for name, value in file.metadata(opened.number).items()}
            self._has_instruction = file.instruction(opened.number) is not None or file.is_libero
            # In a folder, each file is another task.
            self._keeps_states = STATES in opened.arrays and not params.get("folder", False) and file.one_state_size
            self._left_out = STATES in opened.arrays and not self._keeps_states
            self._expected = self._file_columns(opened, f"{self.label(first)}: {file.label(opened.number)}")
            columns = [*self._expected.values(), *END_COLUMNS]
            if NEXT_REWARD not in self._expected:
                columns.append(Column(NEXT_REWARD, np.dtype(np.float32), (1,)))
            if self._has_instruction:
                columns.append(Column(LANGUAGE, np.dtype(np.int32), (), text=True))
            self.columns = columns
            self.metadata = {f"files/{number}": path for path, number in self._numbers.items()}
            if not params.get("folder", False):
                self.metadata |= {name: text for name in _METADATA if (text := file.attribute(name))}
                self.metadata |= {"environment": file.environment} if file.environment else {}

    @cached_property
    def _kept_columns(self) -> list[Column]:
        return [column for column in self.columns if column.key in self.kept]

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the demonstrations of some files.

        Args:
            part: Path of each file, the number of the piece of demonstrations, and the number of pieces. By default,
                all files.

        Raises:
            ConversionError: If a demonstration violates the format. The error names all such demonstrations.
        """
        self.counts.clear()
        problems: list[str] = []
        whole = [(path, 0, 1) for path in sorted(self._files, key=self._numbers.__getitem__)]
        for path, piece, pieces in whole if part is None else part:
            with self._open(path) as file:
                self.counts["total-differs"] += int(not piece and file.has_other_total)
                if not piece:
                    self._measure_states(file)
                if sorted(file.filter_keys) != self._filter_keys:
                    expected = ", ".join(self._filter_keys) or "none"
                    problem = (
                        f"the filter keys are {', '.join(file.filter_keys) or 'none'}, in the first file {expected}"
                    )
                    raise self.error(self.label(path), [problem])
                chosen = [one for one in file.numbers if not self._split or one in file.filter_keys[self._split]]
                for number in chosen[len(chosen) * piece // pieces : len(chosen) * (piece + 1) // pieces]:
                    try:
                        yield from self._convert(file, self._numbers[path], number)
                    except DemonstrationError as error:
                        problems += [f"{self.label(path)}: {file.label(number)}: {problem}" for problem in error.args]
        if problems:
            as_they_stand = any("next_obs" in problem and "differs" in problem for problem in problems)
            raise ConversionError(
                self._dataset_id, first_problems(problems), hint=_ALIGN if as_they_stand else DEMONSTRATION_HINT
            )

    def _open(self, path: str, threads: int | None = None) -> DemonstrationFile:
        return DemonstrationFile(self._files[path], self.label(path), alignment=self._alignment, threads=threads)

    def _measure_states(self, file: DemonstrationFile) -> None:
        """Compare the simulator states with the observations, if both are stored and the files show the alignment.

        Raises:
            ConversionError: If the states are of other rows than the file says.
        """
        is_kept = any(key[: len(STATES)] == STATES for key in self.kept)
        if self._alignment or not is_kept or file.alignment.name not in {"final", "next_obs"}:
            return
        # The states of Isaac Lab are from after the actions: the file has the state before the first action, too.
        expected = int(bool(file.first.initial))
        if file.state_lag not in {None, expected}:
            found = {-1: "the preceding row", 0: "the same row", 1: "the following row"}[file.state_lag or 0]
            where = "after the action, beside initial_state" if expected else "before the action"
            problem = f"states equal obs of {found}, but are expected from {where}"
            error = self.error(self.label(file.name), [problem])
            error.hint = _SHIFTED_HINT
            raise error
        self.counts["states-measured"] += int(file.state_lag is not None)

    def _file_columns(self, opened: Demonstration, where: str) -> dict[Key, Column]:
        problems = []
        columns = {}
        for key, array in opened.arrays.items():
            dtype = WIDENED.get(array.dtype, array.dtype)
            if dtype not in _STORABLE:
                problems.append(f"{array.name} has dtype {array.dtype.name}, which cannot be stored")
            if key in _ONE_VALUE and array.shape[1:] not in {(), (1,)}:
                problems.append(f"{array.name} is {list(array.shape)}, expected a number per action")
            if key != STATES or self._keeps_states:
                shape = (1,) if key == NEXT_REWARD else () if key == DONES else array.shape[1:]
                shared = key[0] == OBSERVATION[0] or key[: len(STATES)] == STATES or key == ROBOT_STATES
                columns[key] = Column(key, dtype, shape, shared=shared)
        refuse(where, problems)
        return columns

    def _convert(self, file: DemonstrationFile, file_number: int, number: int) -> Iterator[Episode]:
        """Yield the pieces of a demonstration."""
        alignment = file.alignment
        opened = file.open(number)
        shift = int(alignment.name == "after")
        steps = opened.rows - shift
        if steps < 1:
            self.counts["no-transition"] += 1
            return
        self._check(opened, has_next=alignment.name == "next_obs")
        instruction = self._instruction(file, number)
        attributes = self._read_attributes(file, number)
        success = self._read_success(file, opened, attributes)
        self._count(opened, file, success=success)
        names = {f"mask.{name}": number in file.filter_keys[name] for name in self._filter_keys}
        metadata: dict[str, Any] = {"demo": np.int64(number), "file": np.int64(file_number), **names}
        metadata |= {f"{name}_" if name in metadata else name: value for name, value in attributes.items()}
        columns = {column.key: column for column in self._kept_columns}

        def read(key: Key, start: int, stop: int) -> Any:
            column = columns[key]
            if key == LANGUAGE:
                return TextStates(np.zeros(stop - start, np.int32), (instruction,))
            if key not in opened.arrays:
                return np.zeros((stop - start, *column.shape), column.dtype)
            if key in opened.initial:
                raw = _states_before(file, opened, key, start + shift, min(stop + shift, opened.rows))
            elif key[: len(STATES)] == STATES or not column.shared:
                # The simulator states after the last action are not stored.
                raw = file.read(opened.arrays[key], start + shift, min(stop + shift, opened.rows))
            else:
                raw = self._read_states(file, opened, key, start, min(stop, opened.rows))
            return self._stored(raw, column)

        flags = end_flags(steps, terminated=success)
        yield from split_episode(flags, self._kept_columns, read, metadata)

    def _read_states(
        self, file: DemonstrationFile, opened: Demonstration, key: Key, start: int, stop: int
    ) -> NDArray[Any]:
        """Read the states [start, stop), and with next_obs also the state after the last action.

        Raises:
            DemonstrationError: If next_obs differs from the obs of the following row.
        """
        array, after = opened.arrays[key], opened.next_obs.get(key)
        if after is None or file.alignment.name == "after":
            return file.read(array, start, stop)
        states = file.read(array, start, min(stop + 1, opened.rows))
        next_states = file.read(after, start, stop)
        following = states[1:]
        self._compare(array, after, next_states[: len(following)], following, start)
        return states[: stop - start] if stop < opened.rows else np.concatenate([states, next_states[-1:]])

    def _compare(
        self, array: Hdf5Array, after: Hdf5Array, next_states: NDArray[Any], following: NDArray[Any], start: int
    ) -> None:
        if not len(following) or np.array_equal(next_states, following):
            return
        jumps, rounded = find_jumps(next_states, following)
        self.counts["next-obs-rounded"] += int(rounded.sum())
        self.counts["next-obs-differs"] += int(jumps.sum())
        if jumps.any() and not self._alignment:
            row = start + int(jumps.argmax())
            problem = f"{after.name} in row {row:,} differs from {array.name} in row {row + 1:,}"
            raise DemonstrationError(f"{problem} ({int(jumps.sum()):,} such rows)")

    def _stored(self, values: NDArray[Any], column: Column) -> NDArray[Any]:
        if values.dtype in WIDENED:
            self.counts["widened"] += len(values)
        self.counts["not-finite"] += count_not_finite(values)
        return as_column(values, column)

    def _instruction(self, file: DemonstrationFile, number: int) -> str:
        """Return the instruction, or an empty text if the dataset has no instructions.

        Raises:
            DemonstrationError: If only other demonstrations have an instruction.
        """
        found = file.instruction(number)
        if found is None and file.is_libero:
            self.counts["instruction-of-name"] += 1
            found = file.instruction_of_name
        if (found is not None) != self._has_instruction:
            verb = "has no instruction" if found is None else "has an instruction"
            raise DemonstrationError(f"it {verb}, unlike the first demonstration")
        return found or ""

    def _read_attributes(self, file: DemonstrationFile, number: int) -> dict[str, np.generic]:
        """Return the attributes that are metadata of an episode.

        Raises:
            DemonstrationError: If an attribute is missing, or is not a number as in the first demonstration.
        """
        found = file.metadata(number)
        missing = [name for name in self._attributes if name not in found]
        if missing:
            raise DemonstrationError(f"it has no attribute {', '.join(missing)}, unlike the first demonstration")
        types = {name: np.bool_ if kind is bool else np.float64 for name, kind in self._attributes.items()}
        types |= {name: np.int64 for name, kind in self._attributes.items() if kind is int}
        return {name: types[name](found[name]) for name in self._attributes}

    def _read_success(
        self, file: DemonstrationFile, opened: Demonstration, attributes: Mapping[str, np.generic]
    ) -> bool:
        """Return whether the last action succeeded: the attribute says so, or dones and the reward.

        Raises:
            DemonstrationError: If dones has other values than 0 and 1.
        """
        if "success" in attributes:
            return bool(attributes["success"])
        if DONES not in opened.arrays:
            return False
        dones = file.read(opened.arrays[DONES]).reshape(-1)
        if not np.isin(dones, (0, 1)).all():
            raise DemonstrationError("dones has numbers other than 0 and 1")
        self.counts["dones-inside"] += int(np.count_nonzero(dones[:-1]))
        if NEXT_REWARD not in opened.arrays or not dones[-1]:
            return False
        return bool(file.read(opened.arrays[NEXT_REWARD], opened.rows - 1).reshape(-1)[0] > 0)

    def _count(self, opened: Demonstration, file: DemonstrationFile, *, success: bool) -> None:
        """Count the decisions on a demonstration."""
        alignment = file.alignment
        self.counts[f"alignment-{alignment.name.replace('_', '-')}"] += 1
        self.counts[f"alignment-by-{alignment.evidence.replace('_', '-')}"] += 1
        self.counts["end-without-success"] += int(not success)
        self.counts["states-after-actions"] += int(bool(opened.initial))
        self.counts["rewards-missing"] += int(NEXT_REWARD not in opened.arrays)
        self.counts["states-left-out"] += int(self._left_out)
        self.counts["arrays-left-out"] += opened.left_out
        self.counts["unwritten-chunks"] += file.unwritten

    def _check(self, opened: Demonstration, *, has_next: bool) -> None:
        """Check that a demonstration has the columns of the first demonstration.

        Raises:
            DemonstrationError: If it does not. The error names every problem.
        """
        problems = []
        if bool(opened.next_obs) != has_next:
            problems.append(f"it has {'no ' if has_next else ''}next_obs, unlike the first demonstration")
        for key, column in self._expected.items():
            array, after = opened.arrays.get(key), opened.next_obs.get(key)
            if key not in self.kept and key not in _ONE_VALUE:
                continue
            if array is None:
                problems.append(f"it has no {dotted_name(key)}, unlike the first demonstration")
                continue
            problems += _column_problems(key, array, column)
            if after is not None and (after.shape, after.dtype) != (array.shape, array.dtype):
                problems.append(
                    f"{after.name} is {after.dtype.name} {list(after.shape)}, but "
                    f"{array.name} is {array.dtype.name} {list(array.shape)}"
                )
        extra = opened.arrays.keys() - self._expected.keys() - ({STATES} if self._left_out else set())
        if len(self._kept_columns) == len(self.columns):
            problems += [f"it has {dotted_name(key)}, unlike the first demonstration" for key in sorted(extra)]
        if problems:
            raise DemonstrationError(*problems)


def _states_before(file: DemonstrationFile, opened: Demonstration, key: Key, start: int, stop: int) -> NDArray[Any]:
    """Return the simulator states before the actions [start, stop), where the states of the rows are from after them.

    action          a_0   a_1   a_2
    initial_state   s_0
    states          s_1   s_2   s_3
    returned        s_0   s_1   s_2
    """
    later = file.read(opened.arrays[key], max(start - 1, 0), stop - 1)
    return later if start else np.concatenate([file.read(opened.initial[key]), later])


def _column_problems(key: Key, array: Hdf5Array, column: Column) -> Iterator[str]:
    shape = column.shape if key in _ONE_VALUE and array.shape[1:] in {(), (1,)} else array.shape[1:]
    dtype = WIDENED.get(array.dtype, array.dtype)
    if shape != column.shape or not np.can_cast(dtype, column.dtype):
        yield (
            f"{array.name} is {array.dtype.name} {list(array.shape[1:])} per row, "
            f"in the first demonstration {column.dtype.name} {list(column.shape)}"
        )
