"""Reader of the logs of a replay buffer.

The buffer is circular: the n-th row ever added, counted from 0, is stored at index n % C, and a log is written when the
cursor is at the last index, C - 1. `add_count` is then A, and the rows are the rows from A - C to A - 1. With C = 8:

    index                 0   1   2   3   4   5   6   7
    checkpoint 0, A = 7   0   1   2   3   4   5   6   ?      never written: uninitialized memory
    checkpoint 1, A = 15  8   9  10  11  12  13  14   7      the row between the two logs, before all others

The rows of a checkpoint in chronological order are therefore the last row and then the others. The frame of the last
row is at the end of a file that has gigabytes of frames before that frame: the row is yielded first, and the frame later.

Each row is a frame, the action taken on the frame, and the reward and the end flag of that action. The next frame is
the frame of the next row. No next frame is stored after an end flag. Three blank rows follow, and then the next trajectory:

    row        5    6    7    8    9    10   11   12
    frame      f    f    0    0    0    f    f    f
    terminal   0    1    0    0    0    0    0    0
               |-- a --|           |------ b ------

At the end of training the buffer is logged once more, with the cursor c as `add_count`: only the rows before c are new,
and the last row, which precedes the new rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.gz import GzipNpyReader
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import EpisodeReader
from datasets_rl.ted.episode import DeferredStates, Episode
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION

ACTION = ("action",)
FRAME = (84, 84)
COLUMNS = (
    Column(OBSERVATION, np.dtype(np.uint8), FRAME, shared=True),
    Column(ACTION, np.dtype(np.int32), ()),
    Column(NEXT_REWARD, np.dtype(np.float32), (1,)),
    *END_COLUMNS,
)
_STACK, _HORIZON = 4, 1
_SHAPES: Mapping[str, tuple[int | None, ...]] = {
    "observation": (None, *FRAME),
    "action": (None,),
    "reward": (None,),
    "terminal": (None,),
    "add_count": (),
    "invalid_range": (_STACK + _HORIZON,),
}
_DTYPES = dict(zip(_SHAPES, map(np.dtype, ("u1", "i4", "f4", "u1", "i8", "i8")), strict=True))
_FIELDS = tuple(_SHAPES)
_BLANKS = _STACK - 1
ACTIONS = 18
_BLOCK = 256  # frames: the decompressed bytes are copied while the second-level cache still has the bytes
_TEXTS = {
    "blank-rows": "rows of zeros that the buffer inserts before each episode were dropped",
    "row-never-written": "the last row of the first checkpoint was never written by the agent and was dropped",
    "rows-behind-the-cursor": "rows of the last checkpoint that are also in earlier checkpoints were dropped",
    "rows-of-a-missing-checkpoint": "rows of the last checkpoint that belong to the previous checkpoint, which is not "
    "selected, were dropped",
    "row-between-checkpoints": "the last row of a checkpoint was added before all other rows, and was moved there",
    "row-of-another-part": "the last row of a checkpoint follows the previous checkpoint, which is not selected. The row was "
    "dropped",
    "episode-over-checkpoints": "episodes that continue in the next checkpoint were joined",
    "begin-missing": "the data begins inside an episode: the first rows are missing",
    "end-without-flag": "the data ends inside an episode: the last row was marked truncated",
    "nothing-new": "the last checkpoint was logged twice. The copy was left out",
}


@dataclass(frozen=True, slots=True)
class _Log:
    """Checkpoint of C rows without the frames."""

    added: int
    """`add_count`."""
    action: NDArray[np.int32]
    """Actions, [C]."""
    reward: NDArray[np.float32]
    """Rewards, [C]."""
    terminal: NDArray[np.uint8]
    """End flags, [C]."""

    @property
    def capacity(self) -> int:
        return len(self.action)

    @property
    def cursor(self) -> int:
        return self.added % self.capacity

    @property
    def is_restart(self) -> bool:
        """Whether `add_count` is that of the first checkpoint."""
        return self.added == self.capacity - 1

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.action, self.reward, self.terminal

    def is_continued_by(self, next_log: _Log) -> bool:
        """Return whether the rows of the next checkpoint `next_log` directly follow the rows of this checkpoint."""
        if self.cursor != self.capacity - 1 or next_log.capacity != self.capacity:
            return False
        if next_log.added >= self.capacity - 1:
            return next_log.added == self.added + self.capacity
        # The last checkpoint restarts the count. If no log is missing, the rows after the cursor are still the rows of
        # this checkpoint.
        old = slice(next_log.cursor, -1)
        pairs = zip(self.columns, next_log.columns, strict=True)
        return all(np.array_equal(own[old], other[old], equal_nan=True) for own, other in pairs)


class LogReader(EpisodeReader):
    """Reader of the files of a checkpoint. The adjacent checkpoints determine the first and the last rows.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by checkpoint and field.
        metadata: `Listing.params`. "frames" is whether to read the observations.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[int, Mapping[str, Path]], metadata: Mapping[str, Any]) -> None:
        self.columns = COLUMNS
        self.metadata = {"upstream": "dqn"}
        self._dataset_id = dataset_id
        self._files = files
        self._frames = bool(metadata["frames"])
        if len(files) == 1:
            (number,) = files
            rows = _Rows.from_logs(self._read_log(number, last=True), None, number, goes_on=False, counts=Counter())
            # This counts rows as blank without reading the frames. `episodes` corrects the number.
            self.steps = int((~rows.blank).sum())

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | DeferredStates]:
        number = part["checkpoint"]
        log = self._read_log(number, last=part["last"])
        self.counts.clear()
        if number and log.is_restart:
            self.counts["nothing-new"] = 1
        else:
            before = self._read_fields(number - 1, _FIELDS[1:5])[0] if part["before"] else None
            before = before if before is not None and before.is_continued_by(log) else None
            goes_on = part["after"] and log.is_continued_by(self._read_fields(number + 1, _FIELDS[1:5])[0])
            rows = _Rows.from_logs(log, before, number, goes_on=goes_on, counts=self.counts)
            if self._frames and rows.unsure and self._last_frame(number).any():
                rows.treat_start_as_step()
            yield from self._split(rows, log, number)
            self.steps = rows.yielded

    def _split(self, rows: _Rows, log: _Log, number: int) -> Iterator[Episode | DeferredStates]:
        if not self._frames:
            for start in range(0, len(rows.action), 1 << 16):
                yield from rows.split(start, min(start + (1 << 16), len(rows.action)), None)
            return
        path = self._files[number]["observation"]
        with GzipNpyReader(path) as file:
            first = int(rows.deferred)
            if rows.deferred:
                for piece in rows.split(0, 1, np.zeros((1, *FRAME), np.uint8)):
                    yield replace(piece, deferred=True)
            for start in range(0, log.cursor, _BLOCK):
                stop = min(start + _BLOCK, log.cursor)
                frames: NDArray[np.uint8] = np.empty((stop - start, *FRAME), np.uint8)
                file.read_into(frames)
                yield from rows.split(start + first, stop + first, frames)
            frames = np.empty((_BLOCK, *FRAME), np.uint8)
            for start in range(log.cursor, log.capacity - 1, _BLOCK):
                file.read_into(frames[: log.capacity - 1 - start])
            file.read_into(frames[:1])
        if rows.deferred and not rows.blank[0]:
            yield DeferredStates({OBSERVATION: frames[:1]}, rows.yielded)
        elif rows.deferred and frames[0].any():
            problem = f"row {log.capacity - 1:,} has a frame, expected a blank row"
            raise ConversionError(path.name, [problem])

    def _last_frame(self, number: int) -> NDArray[np.uint8]:
        """Read the last frame of a file, [84, 84], which decompresses all frames before the last frame."""
        last: NDArray[np.uint8] = np.zeros(FRAME, np.uint8)
        with GzipNpyReader(self._files[number]["observation"]) as file:
            for frames in file.blocks(_BLOCK):
                last = frames[-1]
        return last

    def _read_log(self, number: int, *, last: bool) -> _Log:
        """Read a checkpoint without the frames, and check that the files agree."""
        fields = _FIELDS if self._frames else _FIELDS[1:]
        log, invalid = self._read_fields(number, fields)
        problems = list(_contradictions(log, invalid, first=not number, last=last))
        refuse(f"checkpoint {number} of {self._dataset_id}", problems)
        return log

    def _read_fields(self, number: int, fields: Sequence[str]) -> tuple[_Log, Any]:
        problems: list[str] = []
        arrays: dict[str, Any] = {}
        rows: int | None = None
        for field in fields:
            shape = tuple(rows if size is None else size for size in _SHAPES[field])
            try:
                arrays[field] = array = _read_array(self._files[number][field], field, shape)
                rows = array.shape[0] if None in shape else rows
            except ConversionError as error:
                problems += [f"{error.name} {problem}" for problem in error.problems]
        refuse(f"checkpoint {number} of {self._dataset_id}", problems)
        log = _Log(int(arrays["add_count"]), *(arrays[field] for field in ("action", "reward", "terminal")))
        return log, arrays.get("invalid_range")


def _read_array(path: Path, field: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Read a small file. For the frames, return an array of the same shape without reading the frames."""
    with GzipNpyReader(path) as file:
        fits = len(file.shape) == len(shape)
        fits = fits and all(expected in {None, size} for expected, size in zip(shape, file.shape, strict=True))
        if not fits or file.dtype.newbyteorder("=") != _DTYPES[field]:
            expected_shape = ", ".join("rows" if size is None else str(size) for size in shape)
            actual_shape = ", ".join(map(str, file.shape))
            problem = f"is {file.dtype} [{actual_shape}], expected {_DTYPES[field]} [{expected_shape}]"
            raise ConversionError(path.name, [problem])
        return np.broadcast_to(np.uint8(0), file.shape) if field == "observation" else file.read()


def _contradictions(log: _Log, invalid: NDArray[np.int64], *, first: bool, last: bool) -> Iterator[str]:
    capacity = log.capacity
    if capacity <= _STACK + _HORIZON or log.added < 0:
        yield (
            f"add_count is {log.added:,}, and there are {capacity:,} rows, "
            f"expected add_count >= 0 and more than {_STACK + _HORIZON} rows"
        )
        return
    if log.cursor != capacity - 1 and not (last and log.added == log.cursor):
        yield (
            f"add_count is {log.added:,}: the cursor was at {log.cursor:,} of {capacity:,}, "
            f"expected {capacity - 1:,}, or in the last checkpoint an add_count equal to the cursor"
        )
    if log.is_restart and not (first or last):
        yield f"add_count is {log.added:,}, which is that of the first checkpoint"
    expected = (log.cursor - _HORIZON + np.arange(_STACK + _HORIZON)) % capacity
    if invalid.tolist() != expected.tolist():
        yield f"invalid_range is {invalid.tolist()}, but with add_count {log.added:,} expected {expected.tolist()}"
    # The rows after the cursor, and the last row of the first checkpoint, may have any values.
    real = np.arange(capacity) < log.cursor
    real[-1] = not first or log.added >= capacity
    for name, values, wrong, expected_values in (
        ("terminal", log.terminal, log.terminal > 1, "0 or 1"),
        ("reward", log.reward, ~np.isfinite(log.reward), "a finite number"),
        ("action", log.action, (log.action < 0) | (log.action >= ACTIONS), f"0 to {ACTIONS - 1}"),
    ):
        rows = np.flatnonzero(wrong & real)
        if len(rows):
            more = f" (and {len(rows) - 1:,} more rows)" if len(rows) > 1 else ""
            yield f"{name} is {values[rows[0]]} at row {rows[0]:,}, expected {expected_values}{more}"


@dataclass(slots=True)
class _Rows:
    """New rows of a checkpoint in chronological order, [n]."""

    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    blank: NDArray[np.bool_]
    """Mask of the rows that are dropped if the frames are zeros too."""
    ends: NDArray[np.intp]
    """Last rows of trajectories, ascending."""
    deferred: bool
    """Whether the first row is the last row of the file, so that the frame is read last."""
    checkpoint: int
    counts: Counter[str]
    unsure: bool = False
    """Whether the first rows are blank only if the frame of the row before, the last row of the file, is zeros."""
    yielded: int = 0
    """Number of rows yielded so far."""

    @classmethod
    def from_logs(cls, log: _Log, before: _Log | None, number: int, *, goes_on: bool, counts: Counter[str]) -> _Rows:
        order = np.arange(log.cursor)
        deferred = before is not None
        cut = not deferred and (number > 0 or log.added >= log.capacity)
        if deferred:
            order = np.append(log.capacity - 1, order)
            counts["row-between-checkpoints"] = 1
        elif cut:
            counts["row-of-another-part"] = 1
        else:
            counts["row-never-written"] = 1
        counts[f"rows-{'of-a-missing-checkpoint' if cut else 'behind-the-cursor'}"] = log.capacity - 1 - log.cursor
        action, reward, terminated = log.action[order], log.reward[order], log.terminal[order] == 1
        blanks_left = _initial_blanks(log, before) if cut or deferred else _BLANKS
        blank = _blank_mask(terminated, ~terminated & (action == 0) & (reward == 0), blanks_left)
        unsure = cut and 0 < blanks_left < _BLANKS and bool(blank[:1].any())
        truncated = np.zeros(len(order), np.bool_)
        truncated[-1:] = ~terminated[-1:] & (not goes_on)
        if len(order) and cut and not blank[0]:
            counts["begin-missing"] = 1
        return cls(
            action, reward, terminated, truncated, blank, np.flatnonzero(terminated), deferred, number, counts, unsure
        )

    def treat_start_as_step(self) -> None:
        """Treat the first rows as steps, because the row before is a step."""
        self.blank[: int(self.blank.argmin()) or None] = False
        self.counts["begin-missing"] = 1

    def split(self, start: int, stop: int, frames: NDArray[np.uint8] | None) -> Iterator[Episode]:
        """Yield the rows [start, stop) with the frames [stop - start, 84, 84], split at the ends of episodes."""
        dropped: set[int] = set()
        for row in (start + np.flatnonzero(self.blank[start:stop])).tolist():
            if not self.blank[row]:
                continue
            if frames is None or not frames[row - start].any():
                dropped.add(row)
            else:  # a frame shows that this row is a step, and so are the rows after this row
                rest = self.blank[row:]
                rest[: int(rest.argmin()) or None] = False
        self.counts["blank-rows"] += len(dropped)
        ends = self.ends[slice(*np.searchsorted(self.ends, (start, stop)))] + 1
        for first, last in pairwise(sorted({start, stop, *ends.tolist(), *dropped, *(row + 1 for row in dropped)})):
            if first not in dropped:
                yield self._chunk(first, last, None if frames is None else frames[first - start : last - start])
                self.yielded += last - first

    def _chunk(self, first: int, last: int, frames: NDArray[np.uint8] | None) -> Episode:
        rows = slice(first, last)
        steps = {
            ACTION: self.action[rows],
            NEXT_REWARD: self.reward[rows, None],
            NEXT_TERMINATED: self.terminated[rows, None],
            NEXT_TRUNCATED: self.truncated[rows, None],
        }
        states = {} if frames is None else {OBSERVATION: frames}
        ends = bool(self.terminated[last - 1] or self.truncated[last - 1])
        self.counts["end-without-flag"] += int(self.truncated[last - 1])
        self.counts["episode-over-checkpoints"] += int(last == len(self.action) and not ends)
        metadata: dict[str, Any] = {"checkpoint": np.int32(self.checkpoint)}
        return Episode(steps, states, continues=not ends, metadata=metadata)


def _initial_blanks(log: _Log, before: _Log | None) -> int:
    """Return how many blank rows may begin a checkpoint that is not the first checkpoint of the training."""
    # At least one previous row is known: the row between the two logs, which is the last row of this log.
    rows = slice(-1, None) if before is None else slice(before.cursor)
    action, reward, terminal = (column[rows] for column in (before or log).columns)
    ends = np.flatnonzero(terminal == 1)
    since = int(ends[-1]) + 1 if len(ends) else 0
    count = len(action) - since
    return 0 if count >= _BLANKS or action[since:].any() or reward[since:].any() else _BLANKS - count


def _blank_mask(ends: NDArray[np.bool_], zero: NDArray[np.bool_], blanks_left: int) -> NDArray[np.bool_]:
    """Return the mask of blank rows, [n]: up to `_BLANKS` consecutive rows of zeros that follow the end of an episode.

    Args:
        ends: Whether an episode ends at each row.
        zero: Whether each row holds only zeros.
        blanks_left: Maximum number of blank rows at the beginning, which follow the end of an earlier checkpoint.
    """
    blank = np.zeros(len(ends), np.bool_)
    after_end = np.append(False, ends[:-1])[: len(ends)]
    for _ in range(_BLANKS):
        after_end &= zero
        blank |= after_end
        after_end = np.append(False, after_end[:-1])[: len(ends)]
    blank[:blanks_left] |= np.logical_and.accumulate(zero[:blanks_left])
    return blank
