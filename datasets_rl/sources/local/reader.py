"""Reader of custom datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import first_problems, join_names
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader
from datasets_rl.sources.jumps import find_jumps
from datasets_rl.sources.local.description import FILE, Description, Field, no_episode_numbers_error
from datasets_rl.sources.local.files import ArrayFile, RowReader, join_rows, open_arrays
from datasets_rl.sources.local.layout import ColumnSlice, EpisodeBounds, Plan, find_episodes, is_empty, plan_layout
from datasets_rl.sources.selection import Selection
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted_name

_BLOCK_BYTES = 8 << 20
_TEXTS = {
    "same-row": "row i has the observation, the action taken in it, and the reward and flags of that action",
    "one-more": "an episode has one more observation than actions: the last one is the observation after the last "
    "action",
    "action-before": "row i has the observation and the action, reward and flags that led to it: these were moved one "
    "row up",
    "next-observation-rounded": "next observations differ from the observation of the next row only by rounding "
    "(docs/sources/d4rl.md states the limit): the observation of the next row was stored for both",
    "no-terminated": "the files have no flag for terminations: no step is marked terminated",
    "done-as-terminated": "the files do not distinguish terminations from time-outs: every end is marked terminated",
    "both-flags": "steps that are terminated and truncated keep both flags",
    "end-without-flag": "episodes end without a flag: their last step was marked truncated",
    "widened": "unsigned integers of 16 and 32 bits were converted to signed integers of 32 and 64 bits, which torch "
    "can gather",
    "constant-reward": "the files have no rewards: every reward is the constant in the description",
    **NO_TRANSITION,
    "turned": "the axes of images were transposed as the description states",
    "final-observation-kept": "the observation after the last step of an episode was taken from the files",
    "final-observation-unknown": "the files do not store the observation after the last step of an episode",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of their array",
    "not-finite": "values that are NaN or infinite were kept",
    "left-out": "arrays that the description does not mention and that have no usual name were left out",
}


class LocalReader(EpisodeReader):
    """Reader of the files of a custom dataset, one after the other.

    Args:
        dataset_id: Id of the dataset, for messages.
        description: The description of the dataset.
        file_format: The format of the files.
        places: The local files, by name.
        first: Name of the file that defines the columns.
        keys: The selected fields; all by default.
        chosen: Whether episodes were selected by number, which requires one episode per file.

    Raises:
        InvalidArgumentError: If episodes were selected by number, but a file is not a single episode.
        ConversionError: If the first file with a row is damaged, or does not match the description.
    """

    def __init__(
        self,
        dataset_id: str,
        description: Description,
        file_format: str,
        places: Mapping[str, Path],
        first: str,
        keys: Sequence[str] = (),
        *,
        chosen: bool = False,
    ) -> None:
        self._dataset_id = dataset_id
        self._chosen = chosen
        self.columns: Sequence[Column] = ()
        self._description = description
        self._form = file_format
        self._paths = places
        self._plan = self._first_plan(
            [first, *(name for name in places if name not in {first, FILE, description.table})]
        )
        self.columns = self._plan.columns
        self._kept = Selection(keys=tuple(keys)).kept_keys([column.key for column in self.columns])
        self.steps = None
        self.metadata: Mapping[str, Any] = {"environment": description.environment} if description.environment else {}
        self.decisions: list[Decision] = []
        self._counts: Counter[str] = Counter()

    @override
    def specs(self) -> Mapping[str, Any]:
        fields = {field.key: field for field in self._description.fields}
        pairs = ((part, fields.get(part.column.key)) for part in self._plan.parts)
        return {
            dotted_name(part.column.key): spec
            for part, field in pairs
            if field and (spec := _spec_of_field(part, field))
        }

    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        """Yield the episodes of files, in order.

        Args:
            part: The name and the number of each file.

        Raises:
            ConversionError: If files do not match the description; the error also names the problems of all following
                files.
        """
        self._counts = Counter()
        files = part or []
        for index, (name, number) in enumerate(files):
            try:
                with self._open(name) as file:
                    if is_empty(file, self._description):
                        self._counts["no-transition"] += 1
                        continue
                    made = self._plan_checked(file)
                    yield from self._read_episodes(file, made, find_episodes(file, made), number)
            except ConversionError as error:
                problems = [*_problems_with_file(error), *self._problems(files[index + 1 :])]
                hint = error.remedy or f"correct the files, or {FILE}"
                raise ConversionError(self._dataset_id, first_problems(problems), hint=hint) from error
        texts = {**_TEXTS, "left-out": f"{_TEXTS['left-out']}: {join_names(self._plan.left_out)}"}
        self.decisions = [
            Decision(rule, text, self._counts[rule]) for rule, text in texts.items() if self._counts[rule]
        ]

    def _first_plan(self, names: Sequence[str]) -> Plan:
        """Return the plan of the first file that has a row, because an empty one may not show its columns' types."""
        for name in names:
            with self._open(name) as file:
                if not is_empty(file, self._description):
                    return self._plan_checked(file)
        raise ConversionError(self._dataset_id, [f"none of {len(names):,} files has a step: {', '.join(names[:3])}"])

    def _plan_checked(self, file: ArrayFile) -> Plan:
        made = plan_layout(file, self._description, self.columns)
        if self._chosen and made.by != "file":
            raise no_episode_numbers_error(made.by)
        return made

    def _open(self, name: str) -> ArrayFile:
        table = self._paths[self._description.table] if self._description.table else None
        return open_arrays(self._paths[name], self._form, name, table)

    def _problems(self, files: Sequence[tuple[str, int]]) -> Iterator[str]:
        for name, _ in files:
            try:
                with self._open(name) as file:
                    if not is_empty(file, self._description):
                        find_episodes(file, self._plan_checked(file))
            except ConversionError as error:
                yield from _problems_with_file(error)

    def _read_episodes(
        self, file: ArrayFile, plan: Plan, bounds: EpisodeBounds, number: int
    ) -> Iterator[Episode | EpisodeBatch]:
        parts = [part for part in plan.parts if part.column.key in self._kept]
        names = [part.array for part in parts if part.array]
        after = {key: name for key, name in plan.following.items() if key in self._kept}
        row_bytes = sum(file.arrays[name].row_bytes for name in chain(names, after.values()))
        block = max(1, _BLOCK_BYTES // max(row_bytes, 1))
        finals = {key: name for key, name in plan.finals.items() if key in self._kept}
        reading = _FileReader(file, parts, after, finals, bounds, block)
        self._counts += bounds.found
        self._counts["unwritten-chunks"] += file.unwritten
        self._count_decisions(plan, bounds)
        own = np.full(len(bounds.lengths), number) if plan.by == "file" else bounds.numbers
        metadata = {"source": own.astype(np.int64), "file": np.full(len(own), number, np.int64)}
        stops = np.cumsum(bounds.lengths)
        episode = 0
        while episode < len(stops):
            begin = int(stops[episode] - bounds.lengths[episode])
            end = int(np.searchsorted(stops, begin + block, "right")) if reading.can_read_batches else 0
            if end - episode > 1:
                batch = reading.read_batch(range(episode, end), begin, metadata)
                self._counts["not-finite"] += sum(
                    _count_not_finite(values)
                    for columns in (batch.steps, batch.states, batch.final_states)
                    for values in columns.values()
                )
                if len(batch):
                    yield batch
                episode = end
                continue
            length, labels = int(bounds.lengths[episode]), {name: values[episode] for name, values in metadata.items()}
            for first in range(0, length, block):
                last = min(first + block, length)
                steps, states = reading.read_steps(episode, slice(begin + first, begin + last), ends=last == length)
                self._counts["not-finite"] += sum(
                    _count_not_finite(values) for values in chain(steps.values(), states.values())
                )
                yield Episode(steps, states, last < length, labels)
            episode += 1
        reading.finish()
        self._counts["next-observation-rounded"] += int(reading.rounded.sum())

    def _count_decisions(self, plan: Plan, bounds: EpisodeBounds) -> None:
        if bounds.known is not None:
            ends = bounds.known[bounds.lengths > 0]
            self._counts["final-observation-kept"] += int(ends.sum())
            self._counts["final-observation-unknown"] += int((~ends).sum())
        observed = [part.array for part in plan.parts if part.state and part.column.key[0] == OBSERVATION[0]]
        known = bool(plan.following) or all(bounds.extras[name] for name in observed)
        if bounds.known is None:
            self._counts[f"final-observation-{'kept' if known else 'unknown'}"] += int((bounds.lengths > 0).sum())
        self._counts["turned"] += sum(bool(part.turn) for part in plan.parts)
        self._counts["constant-reward"] += len(bounds.terminated) * any(
            part.constant is not None for part in plan.parts
        )


class _FileReader:
    """Reader of the arrays of a file, in one pass."""

    def __init__(
        self,
        file: ArrayFile,
        parts: Sequence[ColumnSlice],
        after: Mapping[Key, str],
        finals: Mapping[Key, str],
        bounds: EpisodeBounds,
        block: int,
    ) -> None:
        self._name = file.name
        self._parts = parts
        self._where = bounds
        self._rows = {part.array: RowReader(file, part.array, block) for part in parts if part.array}
        self._after = {key: RowReader(file, name, block) for key, name in after.items()}
        self._finals = {key: RowReader(file, name, block) for key, name in finals.items()}
        self._reached: dict[Key, Any] = {}
        self.rounded = np.zeros(len(bounds.terminated), np.bool_)
        """Mask of rows whose observation differs by rounding from the next observation of the previous row, [N]."""

    def read_steps(self, episode: int, rows: slice, *, ends: bool) -> tuple[dict[Key, Any], dict[Key, Any]]:
        """Return the columns of a range of steps of one episode, and the columns of their states.

        Args:
            episode: The number of the episode.
            rows: The range of steps among all steps of the file.
            ends: Whether the range includes the last step, so that the states include the final one.
        """
        steps: dict[Key, Any] = {}
        states: dict[Key, Any] = {}
        for part in self._parts:
            key = part.column.key
            if part.constant is not None:
                steps[key] = np.full((rows.stop - rows.start, 1), part.constant, part.column.dtype)
            elif part.state:
                extra = self._where.extras[part.array]
                final = self._read_final(key, episode) if ends else None
                values = self._read_rows(part, rows, episode * extra, extra and ends, final)
                shift = episode * self._where.extra
                compared = key in self._after
                states[key] = self._append_final_state(part, values, rows, shift, ends=ends) if compared else values
            else:
                values = self._read_rows(part, rows, episode * self._where.extra + self._where.lead, 0)
                steps[key] = values.reshape(-1, 1) if key == NEXT_REWARD else values
        return steps | self._flags(rows), states

    def _flags(self, rows: slice) -> dict[Key, Any]:
        bounds = self._where
        return {NEXT_TERMINATED: bounds.terminated[rows, None], NEXT_TRUNCATED: bounds.truncated[rows, None]}

    @property
    def can_read_batches(self) -> bool:
        """Whether `read_batch` supports the arrays: numbers, and observations that all have final states, or none.

        States in arrays of their own, which may be known for some episodes only, are read one episode at a time.
        """
        if self._finals or self._where.known is not None:
            return False
        return len(self._known_finals) < 2 and not any(part.column.text or part.column.encoded for part in self._parts)

    @property
    def _known_finals(self) -> set[bool]:
        """Whether the files have final observations: one value, or two if they have those of some fields only."""
        observed = (part for part in self._parts if part.state and part.column.key[0] == OBSERVATION[0])
        return {self._has_final_states(part) for part in observed}

    def _has_final_states(self, part: ColumnSlice) -> bool:
        return part.column.key in self._after or bool(self._where.extras[part.array])

    def read_batch(self, episodes: range, begin: int, metadata: Mapping[str, NDArray[Any]]) -> EpisodeBatch:
        """Return whole episodes, without those that have no step.

        Args:
            episodes: The numbers of the episodes.
            begin: The first step of the first episode.
            metadata: Metadata of all episodes of the file.
        """
        numbers = np.arange(episodes.start, episodes.stop)
        numbers = numbers[self._where.lengths[numbers] > 0]
        lengths = self._where.lengths[numbers]
        rows = slice(begin, begin + int(lengths.sum()))
        lasts = np.cumsum(lengths) - 1
        steps: dict[Key, Any] = {}
        states: dict[Key, Any] = {}
        finals: dict[Key, Any] = {}
        for part in self._parts if len(numbers) else ():
            key = part.column.key
            if part.constant is not None:
                steps[key] = np.full((rows.stop - rows.start, 1), part.constant, part.column.dtype)
            elif part.state:
                states[key], finals[key] = self._read_states(part, rows, numbers, lasts)
            else:
                shifts = self._where.extra * numbers + self._where.lead
                values = self._read_shifted(self._rows[part.array], part, rows, shifts, lengths)
                steps[key] = values.reshape(-1, 1) if key == NEXT_REWARD else values
        return EpisodeBatch(
            lengths,
            steps | self._flags(rows),
            states,
            finals,
            final_known=np.full(len(numbers), False not in self._known_finals),
            metadata={name: values[numbers] for name, values in metadata.items()},
        )

    def _read_states(
        self, part: ColumnSlice, rows: slice, numbers: NDArray[Any], lasts: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the states before each step of whole episodes, and their final states, zeros if unknown."""
        lengths, key = np.diff(lasts, prepend=-1), part.column.key
        extra = self._where.extras[part.array]
        if extra:
            every = self._read_shifted(self._rows[part.array], part, rows, numbers, lengths, extra=1)
            is_final = np.zeros(len(every), np.bool_)
            is_final[np.cumsum(lengths + 1) - 1] = True
            values, finals = every[~is_final], every[is_final]
        else:
            values = self._read_shifted(self._rows[part.array], part, rows, numbers * 0, lengths)
            finals = np.zeros((len(numbers), *values.shape[1:]), values.dtype)
        if key in self._after:
            after = self._read_shifted(self._after[key], part, rows, self._where.extra * numbers, lengths)
            before = np.concatenate([values[:1], after[:-1]])
            before[lasts[:-1] + 1] = values[lasts[:-1] + 1]
            self._check_next_states(key, before, values, rows)
            finals = finals if extra else after[lasts]
        return values, finals

    def _read_shifted(
        self,
        reader: RowReader,
        part: ColumnSlice,
        rows: slice,
        shifts: NDArray[Any],
        lengths: NDArray[Any],
        *,
        extra: int = 0,
    ) -> NDArray[Any]:
        """Return the rows of whole episodes, each with `extra` further rows.

        Args:
            reader: The reader of the array.
            part: The column of the array.
            rows: The range of the steps of the episodes.
            shifts: Difference between the number of a row and that of its step, for each episode, [E].
            lengths: Number of steps of each episode, [E].
            extra: Number of rows after those of the steps.
        """
        begins = rows.start + np.cumsum(lengths) - lengths + shifts
        first, last = int(begins[0]), int(begins[-1] + lengths[-1]) + extra
        values = self._as_column_values(part, reader.read(first, last))
        if last - first == int(lengths.sum()) + extra * len(lengths):
            return values
        wanted = np.zeros(len(values) + 1, np.int8)  # an episode begins after another's rows, or where they end
        np.add.at(wanted, begins - first, 1)
        np.add.at(wanted, begins - first + lengths + extra, -1)
        return values[np.cumsum(wanted[:-1]) > 0]

    def finish(self) -> None:
        """Read every array to its end, because formats with a checksum compare it there.

        Raises:
            ConversionError: If an array is truncated or damaged.
        """
        for rows in chain(self._rows.values(), self._after.values(), self._finals.values()):
            rows.finish()

    def _read_final(self, key: Key, episode: int) -> Any:
        """Return the state after the last step of an episode, one row of its separate array; None if it is unknown."""
        known = self._where.known
        if key not in self._finals or known is None or not known[episode]:
            return None
        return self._finals[key].read(episode, episode + 1)

    def _read_rows(self, column_slice: ColumnSlice, rows: slice, shift: int, more: int, final: Any = None) -> Any:
        values: Any = self._rows[column_slice.array].read(rows.start + shift, rows.stop + shift + more)
        if final is not None:
            values = join_rows([values, final])
        if column_slice.column.encoded:
            return EncodedImages(values)
        if isinstance(values, list):
            return TextStates.from_texts(values)
        return self._as_column_values(column_slice, values)

    def _append_final_state(
        self, column_slice: ColumnSlice, values: NDArray[Any], rows: slice, shift: int, *, ends: bool
    ) -> NDArray[Any]:
        """Append the state after the last step; within an episode, the next state must equal that of the next row.

        row          0    1    2
        state       s_0  s_1  s_2
        after       s_1  s_2  s_3        s_3 is stored only here
        """
        key = column_slice.column.key
        after = self._as_column_values(column_slice, self._after[key].read(rows.start + shift, rows.stop + shift))
        before = self._reached.pop(key, values[:1])
        self._check_next_states(key, np.concatenate([before, after[:-1]]), values[: len(after)], rows)
        if not ends:
            self._reached[key] = after[-1:]
        return np.concatenate([values, after[-1:]]) if ends and len(values) == len(after) else values

    def _check_next_states(self, key: Key, previous: NDArray[Any], values: NDArray[Any], rows: slice) -> None:
        """Compare the states after the previous rows with those of the rows; they may differ by rounding."""
        jumps, rounded = find_jumps(previous, values)
        self.rounded[rows] |= rounded
        wrong = np.flatnonzero(jumps)
        if len(wrong):
            row = rows.start + int(wrong[0]) - 1
            problem = f"next.{dotted_name(key)} at row {row:,} differs from {dotted_name(key)} at row {row + 1:,}, within an episode"
            raise ConversionError(
                self._name,
                [f"{problem} ({len(wrong):,} such rows)"],
                hint="state in [episodes] how the files mark the ends of episodes",
            )

    @staticmethod
    def _as_column_values(column_slice: ColumnSlice, values: Any) -> NDArray[Any]:
        """Convert values to the dtype and the axes of their column."""
        cast: NDArray[Any] = values.astype(column_slice.column.dtype, copy=False)
        return cast.transpose(0, *(axis + 1 for axis in column_slice.turn)) if column_slice.turn else cast


def _problems_with_file(error: ConversionError) -> list[str]:
    return [f"{error.name}: {problem}" for problem in error.problems]


def _count_not_finite(values: Any) -> int:
    if isinstance(values, (TextStates, EncodedImages)) or values.dtype.kind != "f":
        return 0
    finite = np.isfinite(values)
    return 0 if finite.all() else int((~finite).sum())


def _spec_of_field(column_slice: ColumnSlice, field: Field) -> dict[str, Any] | None:
    plain = {"dtype": column_slice.column.dtype.name, "shape": list(column_slice.column.shape)}
    if field.n is not None:
        return {"kind": "discrete", **plain, "n": field.n}
    if field.binary:
        return {"kind": "binary", **plain}
    if field.low is None:
        return None
    return {
        "kind": "bounded",
        **plain,
        "low": _bound_of_column(column_slice, field.low),
        "high": _bound_of_column(column_slice, field.high),
    }


def _bound_of_column(column_slice: ColumnSlice, value: Any) -> Any:
    bound = np.asarray(value).astype(column_slice.column.dtype)
    if column_slice.turn and bound.ndim:
        shape = [column_slice.column.shape[column_slice.turn.index(axis)] for axis in range(len(column_slice.turn))]
        bound = np.broadcast_to(bound, shape).transpose(column_slice.turn)
    return bound.tolist()
