"""Reader of files of flat rows: the arrays of a file are read in blocks of steps, which are split into episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, Remedy
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.base import EpisodeReader
from datasets_rl.sources.flat.arrays import ArrayFile, RowReader
from datasets_rl.sources.flat.ends import Ends, find_ends, mask_of_rows, read_flags
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.flat.layout import Field, Layout
from datasets_rl.sources.flat.measured import check_next
from datasets_rl.sources.flat.plan import ColumnSlice, Plan, is_empty, plan_layout
from datasets_rl.sources.rows import rows_in_chunk, split_rows
from datasets_rl.sources.values import count_not_finite, find_jumps
from datasets_rl.ted.episode import EncodedImages, Episode, StoredImages, TextStates
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name, is_observation

_Flags = NDArray[np.bool_]
_Index = NDArray[np.int64]


@dataclass
class Block:
    """Rows [start, stop) of the T steps of a file, before the rows are split into episodes."""

    name: str
    """Name of the file, for messages."""
    start: int
    stop: int
    episodes: _Index
    """Numbers of the episodes of `Ends` that end in the block, [n]."""
    terminated: _Flags
    truncated: _Flags
    """End flags, [T] each."""
    steps: dict[Key, Any] = field(default_factory=dict)
    """The values of the fields of steps, [T, ...], without flags."""
    states: dict[Key, Any] = field(default_factory=dict)
    """The states before the steps, [T, ...]."""
    finals: dict[Key, Any] = field(default_factory=dict)
    """The states after the last steps, [n, ...], of the fields with such states in the file."""
    following: dict[Key, Any] = field(default_factory=dict)
    """The states after all steps, [T, ...], of the fields with such states in the file."""

    @property
    def ends(self) -> _Flags:
        """Mask of the last steps of episodes, [T]."""
        return self.terminated | self.truncated


class FlatReader(EpisodeReader):
    """Reader of files of flat rows, in order. A part is a list of the name and the number of each file.

    Args:
        dataset_id: Id of the dataset, for messages.
        layout: The layout of the files.
        file_format: The format of the files, as in `open_arrays`.
        paths: The local files, by name.
        facts: What the source states about the dataset, as `Source.reader_facts` returns it. ``first`` is the name of the
            file that defines the columns, by default the first file.

    Raises:
        ConversionError: If the first file with a row is damaged, or does not match the layout.
    """

    stated_in = "the layout"
    """Where the fields and the ends of episodes are stated, for messages."""

    def __init__(
        self, dataset_id: str, layout: Layout, file_format: str, paths: Mapping[str, Path], facts: Mapping[str, Any]
    ) -> None:
        self._dataset_id = dataset_id
        self._layout = layout
        self._format = file_format
        self._paths = {name: Path(path) for name, path in paths.items()}
        self._known: Sequence[Column] | None = None
        first = facts.get("first", "")
        names = [name for name in paths if name not in {first, layout.table}]
        self._plan = self._first_plan([first, *names] if first else names)
        self.columns: Sequence[Column] = self._plan.columns
        self._known = self.columns
        self._limits = self._read_limits()

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        self.counts.clear()
        files = part or [(name, number) for number, name in enumerate(self._paths)]
        for index, (name, number) in enumerate(files):
            try:
                with self.open_file(name) as file:
                    if is_empty(file, self._layout):
                        self.counts["no-transition"] += 1
                        continue
                    plan = self.plan(file)
                    yield from self._read_file(file, plan, self.find_ends(file, plan), number)
            except ConversionError as error:
                raise self.failure(error, [name for name, _ in files[index + 1 :]]) from error

    @override
    def specs(self) -> Mapping[str, Any]:
        fields = {field.key: field for field in self._layout.fields}
        pairs = ((part, fields.get(part.column.key)) for part in self._plan.parts)
        return {
            dotted_name(part.column.key): spec
            for part, field in pairs
            if field and (spec := _spec_of_field(part, field))
        }

    @property
    def layout(self) -> Layout:
        """The layout of the files."""
        return self._layout

    def open_file(self, name: str) -> ArrayFile:
        """Open a file by name."""
        table = self._paths[self._layout.table] if self._layout.table else None
        last, columns = name.rpartition("/")[2], self._layout.columns
        shown = last if self._last_names[last] == 1 else name
        return open_arrays(self._paths[name], self._format, shown, table, columns)

    @cached_property
    def _last_names(self) -> Counter[str]:
        """How many files have the same last name of their paths."""
        return Counter(name.rpartition("/")[2] for name in self._paths)

    def plan(self, file: ArrayFile) -> Plan:
        """Map the arrays of a file to the columns of the first file."""
        return plan_layout(file, self._layout, self._known)

    def find_ends(self, file: ArrayFile, plan: Plan) -> Ends:
        """Return the episodes that a file marks.

        Raises:
            ConversionError: If arrays contradict each other, or next observations are not those of the following rows.
        """
        ends = find_ends(file, plan, read_flags(file, plan))
        check_next(file, plan, ends)
        return ends

    def failure(self, error: ConversionError, others: Sequence[str]) -> ConversionError:
        """Return the error for an error in a file, with the problems of the files after the file."""
        problems = _problems_with_file(error)
        for name in others:
            try:
                with self.open_file(name) as file:
                    if not is_empty(file, self._layout):
                        self.find_ends(file, self.plan(file))
            except ConversionError as other:
                problems += _problems_with_file(other)
        return ConversionError(self._dataset_id, first_problems(problems), hint=error.remedy)

    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        """Count the decisions about a whole file."""
        rows = ends.steps
        self.counts.update(ends.found)
        self.counts.update(file.decisions)
        self.counts["unwritten-chunks"] += file.unwritten
        self.counts["widened"] += plan.widened * rows
        self.counts["flags-cast"] += sum(file.arrays[name].dtype.kind != "b" for name in plan.flags.values()) * rows

    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        """Change a block before the rows are split, and return metadata of the episodes that end in the block, [n].

        Args:
            block: The block.
            ends: The episodes that the file marks.
            number: The number of the file.
        """
        del block, ends, number
        return {}

    def _first_plan(self, names: Sequence[str]) -> Plan:
        """Return the plan of the first file that has a row, because an empty file may not show the types of the columns."""
        for name in names:
            with self.open_file(name) as file:
                if not is_empty(file, self._layout):
                    return self.plan(file)
        raise ConversionError(self._dataset_id, [f"none of {len(names):,} files has a step: {', '.join(names[:3])}"])

    def _read_file(self, file: ArrayFile, plan: Plan, ends: Ends, number: int) -> Iterator[Episode | EpisodeBatch]:
        needed = {key for key in plan.following if self._layout.seams} | self.needed
        parts = [part for part in plan.parts if part.column.key in needed]
        rows = _Rows(file, plan, parts, ends)
        self.count_file(file, plan, ends)
        is_begun = False
        for start in range(0, ends.steps, rows.block):
            block = rows.read(start)
            self._end_at_seams(block, rows)
            self._check_limits(block)
            metadata = self.before(block, ends, number)
            self._count_block(block, plan, ends)
            # Whether the final states are known is about the stored fields.
            block.states = {key: values for key, values in block.states.items() if key in self.kept}
            block.finals = {key: values for key, values in block.finals.items() if key in self.kept}
            yield from rows.split(block, metadata, is_begun=is_begun)
            is_begun = not block.ends[-1]
        rows.finish()

    @property
    def seams_remedy(self) -> Remedy:
        """What to do if next states are not the states of the following rows, where no end of an episode is marked."""
        return Remedy(
            "state in {} how the files mark the ends of episodes, "
            'or [episodes] by = "seams" if an episode ends in each such row',
            self.stated_in,
        )

    @property
    def needed(self) -> set[Key]:
        """Keys of the fields to read: the stored fields, and the fields that `before` needs."""
        return {*self.kept}

    def _end_at_seams(self, block: Block, rows: _Rows) -> None:
        """Compare the states after the steps with the states of the next rows. An episode ends where the two differ.

        Raises:
            ConversionError: If two states differ within an episode, and the layout has no seams.
        """
        if not block.following:
            return
        flagged = block.ends
        jumps, rounded = np.zeros(len(flagged), np.bool_), np.zeros(len(flagged), np.bool_)
        for key, after in block.following.items():
            begun = block.states[key][1:]
            masks = [find_jumps(after[: len(begun)], begun)]
            if block.stop < rows.ends.steps and not flagged[-1]:
                masks.append(find_jumps(after[-1:], rows.peek(key, block.stop)))
            found = [np.concatenate(parts) for parts in zip(*masks, strict=True)]
            jumps[: len(found[0])] |= found[0]
            rounded[: len(found[1])] |= found[1]
            jumps &= ~flagged
            if jumps.any() and not self._layout.seams:
                row, name = block.start + int(np.argmax(jumps)), dotted_name(key)
                problem = f"next.{name} at row {row:,} differs from {name} at row {row + 1:,}, within an episode"
                raise ConversionError(rows.name, [f"{problem} ({jumps.sum():,} such rows)"], hint=self.seams_remedy)
        block.truncated |= jumps
        self.counts["seam-without-flag"] += int(jumps.sum())
        self.counts["next-observation-rounded"] += int((rounded & ~jumps & ~flagged).sum())

    def _count_block(self, block: Block, plan: Plan, ends: Ends) -> None:
        """Count the values of a block that are not finite, and the states after the last steps that are known."""
        last = np.flatnonzero(block.ends)
        for key, after in block.following.items():
            block.finals.setdefault(key, after[last])
        after = block.following if self._layout.seams else block.finals
        counted = chain(block.steps.values(), block.states.values(), after.values())
        self.counts["not-finite"] += sum(count_not_finite(one) for one in counted if isinstance(one, np.ndarray))
        states = [part for part in plan.parts if part.state]
        observed = [part for part in states if is_observation(part.column.key)] or states
        is_kept = all(part.column.key in plan.following or ends.extras[part.array] for part in observed)
        known = len(last) * is_kept if ends.known is None else int(ends.known[block.episodes].sum())
        self.counts["final-observation-kept"] += known
        self.counts["final-observation-unknown"] += len(last) - known

    def _read_limits(self) -> dict[Key, tuple[NDArray[Any], NDArray[Any]]]:
        """Return the least and the greatest value that the layout states of fields, each for a step."""
        limits: dict[Key, tuple[Any, Any]] = {}
        specs = self.specs()
        for key in (stated.key for stated in self._layout.fields):
            spec = specs.get(dotted_name(key), {})
            if spec.get("kind") == "bounded":
                limits[key] = (spec["low"], spec["high"])
            elif spec:
                limits[key] = (0, spec.get("n", 2) - 1)
        return {key: (np.asarray(low), np.asarray(high)) for key, (low, high) in limits.items()}

    def _check_limits(self, block: Block) -> None:
        """Check the values of a block, [T, ...] each.

        NaN and infinity are outside of all bounds, and are counted elsewhere.
        """
        problems, columns = [], {**block.steps, **block.states}
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
                f"{dotted_name(key)}{element or ''} is {values[place]} at row {block.start + row:,}, but "
                f"{self.stated_in} states {least} to {most} ({outside.sum():,} such values)"
            )
        if problems:
            raise ConversionError(block.name, problems, hint=f"correct the bounds in {self.stated_in}, or the file")


class _Rows:
    """Reader of the steps of a file in blocks, in a single pass."""

    def __init__(self, file: ArrayFile, plan: Plan, parts: Sequence[ColumnSlice], ends: Ends) -> None:
        keys = {part.column.key for part in parts}
        following = {key: name for key, name in plan.following.items() if key in keys}
        finals = {key: name for key, name in plan.finals.items() if key in keys}
        names = [*(part.array for part in parts if part.array), *following.values()]
        self.name = file.name
        self.ends = ends
        self.block = rows_in_chunk(sum(file.arrays[name].row_bytes for name in names))
        """Number of steps of a block."""
        self._parts = parts
        self._by_key = {part.column.key: part for part in parts}
        # Several fields may have the same array, and each reads the array from the first row.
        self._rows = {part.column.key: RowReader(file, part.array, self.block) for part in parts if part.array}
        self._following = {key: RowReader(file, name, self.block) for key, name in following.items()}
        self._finals = {key: RowReader(file, name, self.block) for key, name in finals.items()}
        self._stops = np.cumsum(ends.lengths)

    def read(self, start: int) -> Block:
        """Return the block that begins with a step."""
        ends = self.ends
        stop = min(start + self.block, ends.steps)
        first, last = np.searchsorted(self._stops, (start, stop - 1), "right").tolist()
        numbers = np.arange(first, last + 1)
        numbers = numbers[ends.lengths[numbers] > 0]
        stops = self._stops[numbers]
        lengths = np.minimum(stops, stop) - np.maximum(stops - ends.lengths[numbers], start)
        is_whole = stops <= stop
        terminated, truncated = (mask_of_rows(steps, start, stop) for steps in (ends.terminated, ends.truncated))
        block = Block(self.name, start, stop, numbers[is_whole], terminated, truncated)
        for part in self._parts:
            key = part.column.key
            if part.constant is not None:
                block.steps[key] = np.full((stop - start, 1), part.constant, part.column.dtype)
            elif part.state:
                self._read_states(part, block, numbers, lengths, is_whole)
            else:
                shifts = ends.extra * numbers + ends.lead
                values = self._read_shifted(self._rows[part.column.key], part, start, shifts, lengths)
                block.steps[key] = values
        return block

    def peek(self, key: Key, step: int) -> Any:
        """Return the state before a step, [1, ...], that is the first state of the next block."""
        part = self._by_key[key]
        episode = int(np.searchsorted(self._stops, step, "right"))
        row = step + self.ends.extras[part.array] * episode
        return _as_column_values(part, self._rows[part.column.key].peek(row))

    def split(
        self, block: Block, metadata: Mapping[str, NDArray[Any]], *, is_begun: bool
    ) -> Iterator[Episode | EpisodeBatch]:
        """Split a block into the rest of an episode, whole episodes, and the first piece of another episode."""
        blanks = [""] * int(block.ends.sum())
        for part in self._parts:
            key, group = part.column.key, block.states if part.state else block.steps
            if key not in group:
                continue
            if part.column.text:
                texts = TextStates.from_texts([*group[key], *block.finals.get(key, blanks if part.state else [])])
                rows, finals = np.split(texts.codes, [len(group[key])])
                group[key] = TextStates(rows, texts.vocabulary)
                if key in block.finals:
                    block.finals[key] = TextStates(finals, texts.vocabulary)
            elif part.column.encoded:
                group[key] = EncodedImages(group[key])
                if key in block.finals:
                    block.finals[key] = EncodedImages(block.finals[key])
        flags = {NEXT_TERMINATED: block.terminated[:, None], NEXT_TRUNCATED: block.truncated[:, None]}
        known = None if self.ends.known is None else self.ends.known[block.episodes]
        steps = block.steps | flags
        yield from split_rows(steps, block.states, block.ends, block.finals, metadata, is_begun=is_begun, known=known)

    def finish(self) -> None:
        """Read every array to the end, because formats with a checksum compare the checksum there."""
        for rows in chain(self._rows.values(), self._following.values(), self._finals.values()):
            rows.finish()

    def _read_states(self, part: ColumnSlice, block: Block, numbers: _Index, lengths: _Index, is_whole: _Flags) -> None:
        """Read the states before the steps of a block, and the states after the last steps.

        row          0    1    2
        state       s_0  s_1  s_2
        following   s_1  s_2  s_3        within an episode, the state of the next row
        """
        key, extra = part.column.key, self.ends.extras[part.array]
        more = extra * is_whole
        values = self._read_shifted(self._rows[part.column.key], part, block.start, extra * numbers, lengths, more)
        if extra:
            is_final = np.zeros(len(values), np.bool_)
            is_final[(np.cumsum(lengths + more) - 1)[is_whole]] = True
            block.finals[key] = _chosen(values, is_final)
            values = _chosen(values, ~is_final)
        block.states[key] = values
        if key in self._following:
            shifts = self.ends.extra * numbers
            block.following[key] = self._read_shifted(self._following[key], part, block.start, shifts, lengths)
        if key in self._finals and len(block.episodes):
            block.finals[key] = self._read_finals(part, block.episodes)

    def _read_finals(self, part: ColumnSlice, numbers: _Index) -> Any:
        """Return the states after the last steps, [n, ...], from a separate array, blank where the states are unknown."""
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        every = _as_column_values(part, self._finals[part.column.key].read(first, stop))
        final = _chosen(every, np.isin(np.arange(first, stop), numbers))
        if self.ends.known is not None and not part.column.encoded:
            blank = "" if part.column.text else np.zeros(part.column.shape, part.column.dtype)
            for row in np.flatnonzero(~self.ends.known[numbers]):
                final[row] = blank
        return final

    @staticmethod
    def _read_shifted(
        reader: RowReader,
        part: ColumnSlice,
        start: int,
        shifts: _Index,
        lengths: _Index,
        more: _Index | None = None,
    ) -> Any:
        """Return the rows of the steps of episodes, each with further rows after the steps.

        Args:
            reader: The reader of the array.
            part: The column of the array.
            start: The first step.
            shifts: Difference between the number of a row and the number of its step, for each episode, [E].
            lengths: Number of steps of each episode, [E].
            more: Number of further rows of each episode, [E], by default none.
        """
        more = np.zeros_like(lengths) if more is None else more
        begins = start + np.cumsum(lengths) - lengths + shifts
        first, last = int(begins[0]), int(begins[-1] + lengths[-1] + more[-1])
        values = _as_column_values(part, reader.read(first, last))
        if last - first == int(lengths.sum() + more.sum()):
            return values
        wanted = np.zeros(len(values) + 1, np.int8)  # an episode begins after another's rows, or where they end
        np.add.at(wanted, begins - first, 1)
        np.add.at(wanted, begins - first + lengths + more, -1)
        return _chosen(values, np.cumsum(wanted[:-1]) > 0)


def _as_column_values(part: ColumnSlice, values: Any) -> Any:
    """Convert values to the dtype and the axes of their column. Texts and images are not changed."""
    if isinstance(values, (list, StoredImages)):
        return values
    cast: NDArray[Any] = values.astype(part.column.dtype, copy=False)
    if part.turn:
        return cast.transpose(0, *(axis + 1 for axis in part.turn))
    return cast.reshape(len(cast), *part.column.shape)


def _chosen(values: Any, mask: NDArray[np.bool_]) -> Any:
    """Return the rows of a mask, of an array or of a list."""
    return list(compress(values, mask.tolist())) if isinstance(values, list) else values[mask]


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
