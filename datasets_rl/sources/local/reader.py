"""A shard of a user's own files as episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import listed
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader
from datasets_rl.sources.local.description import FILE, Description, Field, no_choice
from datasets_rl.sources.local.files import ArrayFile, Rows, open_arrays
from datasets_rl.sources.local.layout import Bounds, ColumnSlice, Plan, bounds, is_empty, plan
from datasets_rl.sources.seams import differences
from datasets_rl.sources.selection import Selection
from datasets_rl.ted.episode import Episode, TextStates
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key, dotted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LocalReader"]

_BLOCK_BYTES = 8 << 20
_FAULTS_MOST = 20
_TEXTS = {
    "same-row": "row i has the observation, the action taken in it, and the reward and flags of that action",
    "one-more": "an episode has an observation more than actions: the last one is that after the last action",
    "action-before": "row i has the observation and what led to it: actions, rewards and flags were moved a row up",
    "next-observation-rounded": "next observations differ from the observation of the next row by rounding alone "
    "(docs/sources/d4rl.md says how much): the observation of the next row was stored for both",
    "no-terminated": "files say of no step that the task ended with it: nothing is marked terminated",
    "done-as-terminated": "the files do not tell terminations from time-outs: every end is marked terminated",
    "both-flags": "steps that are terminated and truncated keep both flags",
    "end-without-flag": "episodes end without a flag: their last step was marked truncated",
    "widened": "unsigned integers of 16 and 32 bits became signed ones of 32 and 64 bits, which torch can gather",
    "constant-reward": "the files have no rewards: every reward is the number that the description gives",
    **NO_TRANSITION,
    "turned": "the axes of pictures were turned as the description says",
    "final-observation-kept": "the observation after the last step of an episode was taken from the files",
    "final-observation-unknown": "the files do not hold the observation after the last step of an episode",
    "unwritten-chunks": "chunks that the file never wrote have the fill value of their array",
    "not-finite": "values that are NaN or infinite were kept",
    "left-out": "arrays that are no field of the description, and have none of the usual names, were left out",
}


class LocalReader(EpisodeReader):
    """Open files of one's own, one after the other.

    Args:
        what: The dataset, for messages.
        said: What its description says.
        form: The format of the files.
        places: Where files lie, by name.
        first: The one that says what the columns are.
        keys: The fields that are wanted; all by default.
        chosen: Whether episodes were chosen by their numbers, which are those of the files.

    Raises:
        InvalidArgumentError: If episodes were chosen and a file is not one episode.
        ConversionError: If the first file with a row is damaged, or has not what the description says.
    """

    def __init__(
        self,
        what: str,
        said: Description,
        form: str,
        places: Mapping[str, Path],
        first: str,
        keys: Sequence[str] = (),
        *,
        chosen: bool = False,
    ) -> None:
        self._what = what
        self._chosen = chosen
        self.columns: Sequence[Column] = ()
        self._said = said
        self._form = form
        self._places = places
        self._plan = self._first_plan([first, *(name for name in places if name not in {first, FILE})])
        self.columns = self._plan.columns
        self._kept = Selection(keys=tuple(keys)).kept_keys([column.key for column in self.columns])
        self.steps = None
        self.metadata: Mapping[str, Any] = {}
        self.decisions: list[Decision] = []
        self._found: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Hold nothing: each file is open while it is read."""

    def specs(self) -> Mapping[str, Any]:
        """Return the bounds and numbers of choices that the description gives."""
        said = {one.key: one for one in self._said.fields}
        found = ((part, said.get(part.column.key)) for part in self._plan.parts)
        return {dotted(part.column.key): spec for part, one in found if one and (spec := _spec(part, one))}

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of files, in order.

        Args:
            part: The name and the number of each file.

        Raises:
            ConversionError: If files break the description; the faults of those behind the first such one are told too.
        """
        self._found = Counter()
        files = part or []
        for place, (name, number) in enumerate(files):
            try:
                with self._open(name) as file:
                    if is_empty(file, self._said):
                        self._found["no-transition"] += 1
                        continue
                    made = self._planned(file)
                    yield from self._of(file, made, bounds(file, made), number)
            except ConversionError as error:
                problems = [*_named(error), *self._faults(files[place + 1 :])]
                if (rest := len(problems) - _FAULTS_MOST) > 0:
                    problems = [*problems[:_FAULTS_MOST], f"and {rest:,} more"]
                raise ConversionError(self._what, problems, hint=error.hint or f"mend the files, or {FILE}") from error
        texts = {**_TEXTS, "left-out": f"{_TEXTS['left-out']}: {listed(self._plan.left_out)}"}
        self.decisions = [Decision(rule, text, self._found[rule]) for rule, text in texts.items() if self._found[rule]]

    def _first_plan(self, names: Sequence[str]) -> Plan:
        """Return what the arrays of the first file become that has a row: an empty one does not tell its types."""
        for name in names:
            with self._open(name) as file:
                if not is_empty(file, self._said):
                    return self._planned(file)
        raise ConversionError(self._what, [f"none of {len(names):,} files has a step: {', '.join(names[:3])}"])

    def _planned(self, file: ArrayFile) -> Plan:
        made = plan(file, self._said, self.columns)
        if self._chosen and made.by != "file":
            raise no_choice(made.by)
        return made

    def _open(self, name: str) -> ArrayFile:
        return open_arrays(self._places[name], self._form, name)

    def _faults(self, files: Sequence[tuple[str, int]]) -> Iterator[str]:
        for name, _ in files:
            try:
                with self._open(name) as file:
                    if not is_empty(file, self._said):
                        bounds(file, self._planned(file))
            except ConversionError as error:
                yield from _named(error)

    def _of(self, file: ArrayFile, made: Plan, where: Bounds, number: int) -> Iterator[Episode]:
        parts = [part for part in made.parts if part.column.key in self._kept]
        wanted = [part.array for part in parts if part.array]
        after = {key: name for key, name in made.following.items() if key in self._kept}
        row_bytes = sum(file.arrays[name].row_bytes for name in chain(wanted, after.values()))
        block = max(1, _BLOCK_BYTES // max(row_bytes, 1))
        reading = _Reading(file, parts, after, where, block)
        self._found += where.found
        self._found["unwritten-chunks"] += file.unwritten
        self._count(made, where)
        start = 0
        for episode, length in enumerate(where.lengths.tolist()):
            own = number if made.by == "file" else int(where.numbers[episode])
            metadata: dict[str, Any] = {"source": np.int64(own), "file": np.int64(number)}
            for first in range(0, length, block):
                last = min(first + block, length)
                rows = slice(start + first, start + last)
                steps, states = reading.piece(episode, rows, ends=last == length)
                steps[NEXT_TERMINATED] = where.terminated[rows, None]
                steps[NEXT_TRUNCATED] = where.truncated[rows, None]
                self._found["not-finite"] += sum(_not_finite(one) for one in chain(steps.values(), states.values()))
                yield Episode(steps, states, last < length, metadata)
            start += length
        reading.finish()
        self._found["next-observation-rounded"] += int(reading.rounded.sum())

    def _count(self, made: Plan, where: Bounds) -> None:
        observed = [part.array for part in made.parts if part.column.key[0] == OBSERVATION[0]]
        known = bool(made.following) or all(where.extras[name] for name in observed)
        self._found[f"final-observation-{'kept' if known else 'unknown'}"] += int((where.lengths > 0).sum())
        self._found["turned"] += sum(bool(part.turn) for part in made.parts)
        self._found["constant-reward"] += len(where.terminated) * any(part.constant is not None for part in made.parts)


class _Reading:
    """A pass over the arrays of a file."""

    def __init__(
        self, file: ArrayFile, parts: Sequence[ColumnSlice], after: Mapping[Key, str], where: Bounds, block: int
    ) -> None:
        self._name = file.name
        self._parts = parts
        self._where = where
        self._rows = {part.array: Rows(file, part.array, block) for part in parts if part.array}
        self._after = {key: Rows(file, name, block) for key, name in after.items()}
        self._reached: dict[Key, Any] = {}
        self.rounded = np.zeros(len(where.terminated), np.bool_)
        """Rows whose observation differs by rounding from the next observation of the row before, [N]."""

    def piece(self, episode: int, rows: slice, *, ends: bool) -> tuple[dict[Key, Any], dict[Key, Any]]:
        """Read the steps `rows`, which are of one episode, and the states around them."""
        steps: dict[Key, Any] = {}
        states: dict[Key, Any] = {}
        for part in self._parts:
            key = part.column.key
            if part.constant is not None:
                steps[key] = np.full((rows.stop - rows.start, 1), part.constant, part.column.dtype)
            elif part.state:
                extra = self._where.extras[part.array]
                values = self._read(part, rows, episode * extra, extra and ends)
                shift = episode * self._where.extra
                final = self._with_final(part, values, rows, shift, ends=ends) if key in self._after else values
                states[key] = final
            else:
                values = self._read(part, rows, episode * self._where.extra + self._where.lead, 0)
                steps[key] = values.reshape(-1, 1) if key == NEXT_REWARD else values
        return steps, states

    def finish(self) -> None:
        """Read every array to its end, where formats with a checksum compare it.

        Raises:
            ConversionError: If an array is cut or damaged.
        """
        for rows in chain(self._rows.values(), self._after.values()):
            rows.finish()

    def _read(self, part: ColumnSlice, rows: slice, shift: int, more: int) -> Any:
        values = self._rows[part.array].read(rows.start + shift, rows.stop + shift + more)
        if isinstance(values, list):
            return TextStates.of(values)
        return self._turned(part, values)

    def _with_final(
        self, part: ColumnSlice, values: NDArray[Any], rows: slice, shift: int, *, ends: bool
    ) -> NDArray[Any]:
        """Add the state after the last step; within an episode it must be that of the next row.

        row          0    1    2
        state       s_0  s_1  s_2
        after       s_1  s_2  s_3        s_3 stands only here
        """
        key = part.column.key
        after = self._turned(part, self._after[key].read(rows.start + shift, rows.stop + shift))
        before = self._reached.pop(key, values[:1])
        jumps, rounded = differences(np.concatenate([before, after[:-1]]), values[: len(after)])
        self.rounded[rows] |= rounded
        wrong = np.flatnonzero(jumps)
        if len(wrong):
            row = rows.start + int(wrong[0]) - 1
            problem = f"next.{dotted(key)} at row {row:,} is not {dotted(key)} of row {row + 1:,}, within an episode"
            raise ConversionError(
                self._name, [f"{problem} ({len(wrong):,} such rows)"], hint="say in [episodes] how their ends are told"
            )
        if not ends:
            self._reached[key] = after[-1:]
        return np.concatenate([values, after[-1:]]) if ends and len(values) == len(after) else values

    @staticmethod
    def _turned(part: ColumnSlice, values: Any) -> NDArray[Any]:
        """Give values the dtype and the axes of their column."""
        cast: NDArray[Any] = values.astype(part.column.dtype, copy=False)
        return cast.transpose(0, *(axis + 1 for axis in part.turn)) if part.turn else cast


def _named(error: ConversionError) -> list[str]:
    return [f"{error.what}: {one}" for one in error.problems]


def _not_finite(values: Any) -> int:
    if isinstance(values, TextStates) or values.dtype.kind != "f":
        return 0
    finite = np.isfinite(values)
    return 0 if finite.all() else int((~finite).sum())


def _spec(part: ColumnSlice, one: Field) -> dict[str, Any] | None:
    plain = {"dtype": part.column.dtype.name, "shape": list(part.column.shape)}
    if one.n is not None:
        return {"kind": "discrete", **plain, "n": one.n}
    if one.low is None:
        return None
    return {"kind": "bounded", **plain, "low": _bound(part, one.low), "high": _bound(part, one.high)}


def _bound(part: ColumnSlice, given: Any) -> Any:
    bound = np.asarray(given).astype(part.column.dtype)
    if part.turn and bound.ndim:
        shape = [part.column.shape[part.turn.index(axis)] for axis in range(len(part.turn))]
        bound = np.broadcast_to(bound, shape).transpose(part.turn)
    return bound.tolist()
