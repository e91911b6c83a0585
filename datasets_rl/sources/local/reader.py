"""Reader of custom datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import ITEMS_MAX, first_problems
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.local.description import FILE, Description, Field, no_episode_numbers_error
from datasets_rl.sources.local.files import ArrayFile, RowReader, join_rows, open_arrays
from datasets_rl.sources.local.layout import ColumnSlice, EpisodeBounds, Plan, find_episodes, is_empty, plan_layout
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.values import WIDENED_INTEGERS, count_not_finite, find_jumps
from datasets_rl.ted.episode import EncodedImages, Episode, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name, is_observation

_Index = NDArray[np.int64]
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
    **WIDENED_INTEGERS,
    "constant-reward": "the files have no rewards: every reward is the constant in the description",
    **NO_TRANSITION,
    "turned": "the axes of images were transposed as the description states",
    "final-observation-kept": "the observation after the last step of an episode was taken from the files",
    "final-observation-unknown": "the files do not store the observation after the last step of an episode",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of their array",
    **NOT_FINITE,
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
        self.rules = {**_TEXTS, "left-out": f"{_TEXTS['left-out']}: {join_names(self._plan.left_out, ITEMS_MAX)}"}
        self.metadata: Mapping[str, Any] = {"environment": description.environment} if description.environment else {}

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

        Raises:
            ConversionError: If files do not match the description; the error also names the problems of all following
                files.
        """
        self.counts.clear()
        files = part or []
        for index, (name, number) in enumerate(files):
            try:
                with self._open(name) as file:
                    if is_empty(file, self._description):
                        self.counts["no-transition"] += 1
                        continue
                    made = self._plan_checked(file)
                    yield from self._read_episodes(file, made, find_episodes(file, made), number)
            except ConversionError as error:
                problems = [*_problems_with_file(error), *self._problems(files[index + 1 :])]
                hint = error.remedy or f"correct the files, or {FILE}"
                raise ConversionError(self._dataset_id, first_problems(problems), hint=hint) from error

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
        parts = [part for part in plan.parts if part.column.key in self.kept]
        after = {key: name for key, name in plan.following.items() if key in self.kept}
        finals = {key: name for key, name in plan.finals.items() if key in self.kept}
        names = [*(part.array for part in parts if part.array), *after.values()]
        block = rows_in_chunk(sum(file.arrays[name].row_bytes for name in names))
        reading = _FileReader(file, parts, after, finals, bounds, block, self._limits())
        self.counts.update(bounds.found)
        self.counts["unwritten-chunks"] += file.unwritten
        self._count_decisions(plan, bounds)
        own = np.full(len(bounds.lengths), number) if plan.by == "file" else bounds.numbers
        metadata = {"source": own.astype(np.int64), "file": np.full(len(own), number, np.int64)}
        stops = np.cumsum(bounds.lengths)
        encoded = any(part.column.encoded for part in parts)
        episode = 0
        while episode < len(stops):
            begin = int(stops[episode] - bounds.lengths[episode])
            end = int(np.searchsorted(stops, begin + block, "right"))
            if end > episode and not encoded:
                numbers = np.arange(episode, end)[bounds.lengths[episode:end] > 0]
                if len(numbers):
                    yield reading.read_batch(numbers, slice(begin, int(stops[end - 1])), metadata)
                episode = end
                continue
            # Longer than a block, or with images, whose headers the writer checks in episodes only.
            length, labels = int(bounds.lengths[episode]), {name: values[episode] for name, values in metadata.items()}
            for first in range(0, length, block):
                last = min(first + block, length)
                rows = slice(begin + first, begin + last)
                yield reading.read_piece(episode, rows, labels, continues=last < length)
            episode += 1
        reading.finish()
        self.counts["not-finite"] += reading.not_finite
        self.counts["next-observation-rounded"] += int(reading.rounded.sum())

    def _limits(self) -> dict[Key, tuple[NDArray[Any], NDArray[Any]]]:
        """Return the least and the greatest value that the description states of fields, each for one step."""
        limits: dict[Key, tuple[Any, Any]] = {}
        for field in self._description.fields:
            spec = self.specs().get(dotted_name(field.key), {})
            if spec.get("kind") == "bounded":
                limits[field.key] = (spec["low"], spec["high"])
            elif spec:
                limits[field.key] = (0, spec.get("n", 2) - 1)
        return {key: (np.asarray(low), np.asarray(high)) for key, (low, high) in limits.items()}

    def _count_decisions(self, plan: Plan, bounds: EpisodeBounds) -> None:
        if bounds.known is not None:
            ends = bounds.known[bounds.lengths > 0]
            self.counts["final-observation-kept"] += int(ends.sum())
            self.counts["final-observation-unknown"] += int((~ends).sum())
        observed = [part for part in plan.parts if part.state and is_observation(part.column.key)]
        known = all(part.column.key in plan.following or bounds.extras[part.array] for part in observed)
        if bounds.known is None:
            self.counts[f"final-observation-{'kept' if known else 'unknown'}"] += int((bounds.lengths > 0).sum())
        self.counts["turned"] += sum(bool(part.turn) for part in plan.parts)
        self.counts["constant-reward"] += len(bounds.terminated) * any(part.constant is not None for part in plan.parts)


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
        limits: Mapping[Key, tuple[NDArray[Any], NDArray[Any]]],
    ) -> None:
        self._name = file.name
        self._limits = limits
        self._parts = parts
        self._bounds = bounds
        self._rows = {part.array: RowReader(file, part.array, block) for part in parts if part.array}
        self._after = {key: RowReader(file, name, block) for key, name in after.items()}
        self._finals = {key: RowReader(file, name, block) for key, name in finals.items()}
        self._reached: dict[Key, Any] = {}
        self.rounded = np.zeros(len(bounds.terminated), np.bool_)
        """Mask of rows whose observation differs by rounding from the next observation of the previous row, [N]."""
        self.not_finite = 0

    def read_batch(self, numbers: _Index, rows: slice, metadata: Mapping[str, NDArray[Any]]) -> EpisodeBatch:
        """Return whole episodes without encoded images.

        Args:
            numbers: The numbers of the episodes in the file, [E]; each has a step.
            rows: The range of their steps among all steps of the file.
            metadata: Metadata of all episodes of the file.
        """
        lengths, vocabulary = self._bounds.lengths[numbers], {}
        columns, finals = self._read(numbers, lengths, rows, ends=True)
        for part in self._parts:
            key = part.column.key
            if part.state and finals[key] is None:
                finals[key] = _blank(part, len(numbers))
            if part.column.text:
                texts = TextStates.from_texts([*columns[key], *finals.get(key, [])])
                columns[key], final = np.split(texts.codes, [len(columns[key])])
                finals |= {key: final} if part.state else {}
                vocabulary[key] = texts.vocabulary
        if self._bounds.known is None:
            known = np.full(len(numbers), all(self._has_final_states(part) for part in self._parts))
        else:
            known = self._bounds.known[numbers]
        states = {part.column.key: columns.pop(part.column.key) for part in self._parts if part.state}
        chosen = {name: values[numbers] for name, values in metadata.items()}
        return EpisodeBatch(lengths, columns, states, finals, known, chosen, vocabulary)

    def read_piece(self, episode: int, rows: slice, metadata: Mapping[str, Any], *, continues: bool) -> Episode:
        """Return a range of the steps of one episode, with the state after the last step unless it `continues`."""
        numbers, lengths = np.array([episode]), np.array([rows.stop - rows.start])
        columns, finals = self._read(numbers, lengths, rows, ends=not continues)
        unknown = self._bounds.known is not None and not self._bounds.known[episode]
        for part in self._parts:
            key = part.column.key
            if finals.get(key) is not None and not unknown:
                columns[key] = join_rows([columns[key], finals[key]])
            if part.column.encoded:
                columns[key] = EncodedImages(columns[key])
            elif part.column.text:
                columns[key] = TextStates.from_texts(columns[key])
        states = {part.column.key: columns.pop(part.column.key) for part in self._parts if part.state}
        return Episode(columns, states, continues, metadata)

    def _read(
        self, numbers: _Index, lengths: _Index, rows: slice, *, ends: bool
    ) -> tuple[dict[Key, Any], dict[Key, Any]]:
        """Return the columns of a range of steps, [N, ...] each, and the states after the last steps, [E, ...] or None.

        Args:
            numbers: The numbers of the E episodes of the steps.
            lengths: Number of their steps in the range, [E].
            rows: The range of the steps among all steps of the file.
            ends: Whether the range ends with the last step of an episode.
        """
        bounds = self._bounds
        columns = {NEXT_TERMINATED: bounds.terminated[rows, None], NEXT_TRUNCATED: bounds.truncated[rows, None]}
        finals: dict[Key, Any] = {}
        for part in self._parts:
            key = part.column.key
            if part.constant is not None:
                columns[key] = np.full((rows.stop - rows.start, 1), part.constant, part.column.dtype)
            elif part.state:
                columns[key], finals[key] = self._read_states(part, numbers, lengths, rows, ends=ends)
            else:
                shifts = bounds.extra * numbers + bounds.lead
                values = self._read_shifted(self._rows[part.array], part, rows, shifts, lengths)
                columns[key] = values.reshape(-1, 1) if key == NEXT_REWARD else values
        self._check_limits(columns, rows)
        every = (*columns.values(), *finals.values())
        self.not_finite += sum(count_not_finite(values) for values in every if isinstance(values, np.ndarray))
        return columns, finals

    def _check_limits(self, columns: Mapping[Key, Any], rows: slice) -> None:
        """Check the values of a range of steps, [N, ...] each; NaN and infinity are in no bounds, and counted elsewhere."""
        problems = []
        for key, (low, high) in self._limits.items():
            if not isinstance(values := columns.get(key), np.ndarray):
                continue
            outside = (values < low) | (values > high)
            if values.dtype.kind == "f":
                outside &= np.isfinite(values)
            if not outside.any():
                continue
            row, *element = place = tuple(np.argwhere(outside)[0].tolist())
            least, most = (np.broadcast_to(limit, values.shape)[place] for limit in (low, high))
            problems.append(
                f"{dotted_name(key)}{element or ''} is {values[place]} at row {rows.start + row:,}; "
                f"{FILE} states {least} to {most} ({outside.sum():,} such values)"
            )
        if problems:
            raise ConversionError(self._name, problems, hint=f"correct the bounds in {FILE}, or the file")

    def _has_final_states(self, part: ColumnSlice) -> bool:
        """Return whether the file has the states after the last steps, if the array is an observation."""
        key = part.column.key
        return not (part.state and is_observation(key)) or key in self._after or bool(self._bounds.extras[part.array])

    def _read_states(
        self, part: ColumnSlice, numbers: _Index, lengths: _Index, rows: slice, *, ends: bool
    ) -> tuple[Any, Any]:
        """Return the states before each step, and those after the last steps, or None if the file has none.

        row          0    1    2
        state       s_0  s_1  s_2
        after       s_1  s_2  s_3        within an episode, it must equal the state of the next row
        """
        key, extra = part.column.key, self._bounds.extras[part.array]
        more = int(extra and ends)
        values = self._read_shifted(self._rows[part.array], part, rows, extra * numbers, lengths, extra=more)
        final = None
        if more:
            is_final = np.zeros(len(values), np.bool_)
            is_final[np.cumsum(lengths + 1) - 1] = True
            values, final = _chosen(values, ~is_final), _chosen(values, is_final)
        if key in self._after:
            after = self._read_shifted(self._after[key], part, rows, self._bounds.extra * numbers, lengths)
            firsts = np.cumsum(lengths) - lengths
            before = np.concatenate([values[:1], after[:-1]])
            before[firsts] = values[firsts]
            before[:1] = self._reached.pop(key, before[:1])
            self._check_next_states(key, before, values, rows)
            if not ends:
                self._reached[key] = after[-1:]
            elif final is None:
                final = after[np.cumsum(lengths) - 1]
        if ends and key in self._finals:
            final = self._read_finals(part, numbers)
        return values, final

    def _read_finals(self, part: ColumnSlice, numbers: _Index) -> Any:
        """Return the states after the last steps, [E, ...], from their separate array; blank where they are unknown."""
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        every = self._as_column_values(part, self._finals[part.column.key].read(first, stop))
        final = _chosen(every, np.isin(np.arange(first, stop), numbers))
        if self._bounds.known is not None and not part.column.encoded:
            (blank,) = _blank(part, 1)
            for row in np.flatnonzero(~self._bounds.known[numbers]):
                final[row] = blank
        return final

    def _read_shifted(
        self, reader: RowReader, part: ColumnSlice, rows: slice, shifts: _Index, lengths: _Index, *, extra: int = 0
    ) -> Any:
        """Return the rows of episodes, each with `extra` further rows.

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
        return _chosen(values, np.cumsum(wanted[:-1]) > 0)

    def finish(self) -> None:
        """Read every array to its end, because formats with a checksum compare it there."""
        for rows in chain(self._rows.values(), self._after.values(), self._finals.values()):
            rows.finish()

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
    def _as_column_values(column_slice: ColumnSlice, values: Any) -> Any:
        """Convert values to the dtype and the axes of their column; texts and images are lists."""
        if isinstance(values, list):
            return values
        cast: NDArray[Any] = values.astype(column_slice.column.dtype, copy=False)
        return cast.transpose(0, *(axis + 1 for axis in column_slice.turn)) if column_slice.turn else cast


def _chosen(values: Any, mask: NDArray[np.bool_]) -> Any:
    """Return the rows of a mask, of an array or of a list."""
    return list(compress(values, mask.tolist())) if isinstance(values, list) else values[mask]


def _blank(part: ColumnSlice, count: int) -> Any:
    """Return unknown states: empty texts, or zeros."""
    return [""] * count if part.column.text else np.zeros((count, *part.column.shape), part.column.dtype)


def _problems_with_file(error: ConversionError) -> list[str]:
    return [f"{error.name}: {problem}" for problem in error.problems]


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
