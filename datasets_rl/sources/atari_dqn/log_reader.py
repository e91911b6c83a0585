"""The logs of a replay buffer as trajectories.

The buffer is circular: the n-th row that was ever added, counted from 0, lies at n % C, and a log is written when the
cursor stands at the last place, C - 1. `add_count` is then A, and the rows are those from A - C to A - 1. With C = 8:

    place                 0   1   2   3   4   5   6   7
    checkpoint 0, A = 7   0   1   2   3   4   5   6   ?      never written: whatever lay in the memory
    checkpoint 1, A = 15  8   9  10  11  12  13  14   7      the row between the two logs, before all others

So the rows of a checkpoint are, in their order, its last one and then the others. The frame of the last one stands at
the end of a file that has gigabytes of frames before it: that row is given first and its frame late.

Each row is a frame, the action taken on it, and the reward and the end flag of that action. The next frame is that of
the next row; behind a flag there is none, but three blank rows and then the next trajectory:

    row        5    6    7    8    9    10   11   12
    frame      f    f    0    0    0    f    f    f
    terminal   0    1    0    0    0    0    0    0
               |-- a --|           |------ b ------

At the end of training what is in the buffer is logged once more, with the cursor c as `add_count`: only the rows
before c are new, and the last one, which lies between this log and the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.gz import GzipNpy
from datasets_rl.sources.base import Decision, EpisodeReader
from datasets_rl.ted.episode import DeferredStates, Episode
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ACTION", "ACTIONS", "COLUMNS", "FRAME", "LogReader"]

ACTION = ("action",)
FRAME = (84, 84)
COLUMNS = (
    Column(OBSERVATION, np.dtype(np.uint8), FRAME, shared=True),
    Column(ACTION, np.dtype(np.int32), ()),
    Column(NEXT_REWARD, np.dtype(np.float32), (1,)),
    Column(NEXT_TERMINATED, np.dtype(np.bool_), (1,)),
    Column(NEXT_TRUNCATED, np.dtype(np.bool_), (1,)),
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
_BLOCK = 256  # frames: what is inflated is copied while the second-level cache still has it
_TEXTS = {
    "blank-rows": "rows of zeros that the buffer puts before each episode were dropped",
    "row-never-written": "the last place of the first checkpoint was never written to; it was dropped",
    "rows-behind-the-cursor": "rows of the last checkpoint that earlier ones have were dropped",
    "rows-of-a-missing-checkpoint": "rows of the last checkpoint that only the checkpoint before has in their order, "
    "which is not here, were dropped",
    "row-between-checkpoints": "the last row of a checkpoint was added before all its others; it was put before them",
    "row-of-another-part": "the last row of a checkpoint follows the checkpoint before, which is not here; it was dropped",
    "episode-over-checkpoints": "episodes that go on in the next checkpoint were joined",
    "begin-missing": "the data begins inside an episode, whose first rows are not here",
    "end-without-flag": "the data ends inside an episode: its last row was marked truncated",
    "nothing-new": "the last checkpoint was logged twice; it was left out",
}


@dataclass(frozen=True, slots=True)
class _Log:
    """A checkpoint without its frames, of C rows."""

    added: int
    """`add_count`."""
    action: NDArray[np.int32]
    """[C]"""
    reward: NDArray[np.float32]
    """[C]"""
    terminal: NDArray[np.uint8]
    """[C]"""

    @property
    def capacity(self) -> int:
        return len(self.action)

    @property
    def cursor(self) -> int:
        return self.added % self.capacity

    @property
    def again(self) -> bool:
        """Whether it has `add_count` of the first checkpoint."""
        return self.added == self.capacity - 1

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.action, self.reward, self.terminal

    def goes_on_with(self, then: _Log) -> bool:
        """Return whether a checkpoint, if it comes next, holds the row behind this one's."""
        if self.cursor != self.capacity - 1 or then.capacity != self.capacity:
            return False
        if then.added >= self.capacity - 1:
            return then.added == self.added + self.capacity
        # The last one counts from 0 again. If no log is missing, the rows behind its cursor are still those of this one.
        old = slice(then.cursor, -1)
        pairs = zip(self.columns, then.columns, strict=True)
        return all(np.array_equal(mine[old], its[old], equal_nan=True) for mine, its in pairs)


class LogReader(EpisodeReader):
    """The files of a checkpoint, and what its ends depend on of the ones around it.

    Args:
        what: The dataset, for messages.
        files: For each checkpoint, the files by what they hold.
        metadata: Whether frames are wanted.
    """

    def __init__(self, what: str, files: Mapping[int, Mapping[str, Path]], metadata: Mapping[str, Any]) -> None:
        self.columns = COLUMNS
        self.metadata = {"upstream": "dqn"}
        self.decisions: list[Decision] = []
        self._what = what
        self._files = files
        self._frames = bool(metadata["frames"])
        self.steps = None
        if len(files) == 1:
            (number,) = files
            rows = _Rows.of(self._log(number, last=True), None, number, goes_on=False, found=Counter())
            # Blank rows are known without their frames, as far as the buffer made them; `episodes` corrects it.
            self.steps = int((~rows.blank).sum())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Do nothing: files are open only while they are read."""

    def episodes(self, part: Any = None) -> Iterator[Episode | DeferredStates]:
        """Yield the trajectories of a checkpoint."""
        number = part["checkpoint"]
        log = self._log(number, last=part["last"])
        found: Counter[str] = Counter()
        if number and log.again:
            found["nothing-new"] = 1
        else:
            before = self._read(number - 1, _FIELDS[1:5])[0] if part["before"] else None
            before = before if before is not None and before.goes_on_with(log) else None
            goes_on = part["after"] and log.goes_on_with(self._read(number + 1, _FIELDS[1:5])[0])
            rows = _Rows.of(log, before, number, goes_on=goes_on, found=found)
            if self._frames and rows.unsure and self._last_frame(number).any():
                rows.begin_with_a_step()
            yield from self._pieces(rows, log, number)
            self.steps = rows.given
        self.decisions = [Decision(rule, text, found[rule]) for rule, text in _TEXTS.items() if found[rule]]

    def _pieces(self, rows: _Rows, log: _Log, number: int) -> Iterator[Episode | DeferredStates]:
        if not self._frames:
            for start in range(0, len(rows.action), 1 << 16):
                yield from rows.pieces(start, min(start + (1 << 16), len(rows.action)), None)
            return
        place = self._files[number]["observation"]
        with GzipNpy(place) as file:
            first = int(rows.late)
            if rows.late:
                yield from rows.pieces(0, 1, np.zeros((1, *FRAME), np.uint8))
            for start in range(0, log.cursor, _BLOCK):
                stop = min(start + _BLOCK, log.cursor)
                frames: NDArray[np.uint8] = np.empty((stop - start, *FRAME), np.uint8)
                file.read_into(frames)
                yield from rows.pieces(start + first, stop + first, frames)
            frames = np.empty((_BLOCK, *FRAME), np.uint8)
            for start in range(log.cursor, log.capacity - 1, _BLOCK):
                file.read_into(frames[: log.capacity - 1 - start])
            file.read_into(frames[:1])
        if rows.late and not rows.blank[0]:
            yield DeferredStates({OBSERVATION: frames[:1]}, rows.given)
        elif rows.late and frames[0].any():
            row = f"row {log.capacity - 1:,} stands where a blank row must, and has a frame"
            raise ConversionError(place.name, [row])

    def _last_frame(self, number: int) -> NDArray[np.uint8]:
        """Read the frame at the end of a file, [84, 84], for which all frames before it are inflated."""
        last: NDArray[np.uint8] = np.zeros(FRAME, np.uint8)
        with GzipNpy(self._files[number]["observation"]) as file:
            for frames in file.blocks(_BLOCK):
                last = frames[-1]
        return last

    def _log(self, number: int, *, last: bool) -> _Log:
        """Read a checkpoint without its frames, and hold it against itself.

        Raises:
            ConversionError: If files are damaged or contradict each other; every fault that was found.
        """
        fields = _FIELDS if self._frames else _FIELDS[1:]
        log, invalid = self._read(number, fields)
        faults = list(_contradictions(log, invalid, first=not number, last=last))
        if faults:
            raise ConversionError(f"checkpoint {number} of {self._what}", faults)
        return log

    def _read(self, number: int, fields: Sequence[str]) -> tuple[_Log, Any]:
        faults: list[str] = []
        found: dict[str, Any] = {}
        rows: int | None = None
        for field in fields:
            shape = tuple(rows if size is None else size for size in _SHAPES[field])
            try:
                found[field] = one = _array(self._files[number][field], field, shape)
                rows = one.shape[0] if None in shape else rows
            except ConversionError as error:
                faults += [f"{error.what} {problem}" for problem in error.problems]
        if faults:
            raise ConversionError(f"checkpoint {number} of {self._what}", faults)
        log = _Log(int(found["add_count"]), *(found[field] for field in ("action", "reward", "terminal")))
        return log, found.get("invalid_range")


def _array(place: Path, field: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Read a small file whole, and of the frames the shape alone."""
    with GzipNpy(place) as file:
        fits = len(file.shape) == len(shape)
        fits = fits and all(one in {None, size} for one, size in zip(shape, file.shape, strict=True))
        if not fits or file.dtype.newbyteorder("=") != _DTYPES[field]:
            shown = ", ".join("rows" if size is None else str(size) for size in shape)
            told = f"is {file.dtype} [{', '.join(map(str, file.shape))}]; expected {_DTYPES[field]} [{shown}]"
            raise ConversionError(place.name, [told])
        return np.broadcast_to(np.uint8(0), file.shape) if field == "observation" else file.read()


def _contradictions(log: _Log, invalid: NDArray[np.int64], *, first: bool, last: bool) -> Iterator[str]:
    capacity = log.capacity
    if capacity <= _STACK + _HORIZON or log.added < 0:
        yield f"add_count is {log.added:,}, and there are {capacity:,} rows; expected more than {_STACK + _HORIZON}"
        return
    if log.cursor != capacity - 1 and not (last and log.added == log.cursor):
        yield (
            f"add_count is {log.added:,}: the cursor stood at {log.cursor:,} of {capacity:,}; "
            f"expected {capacity - 1:,}, or in the last checkpoint the cursor alone"
        )
    if log.again and not (first or last):
        yield f"add_count is {log.added:,}, that of the first checkpoint"
    expected = (log.cursor - _HORIZON + np.arange(_STACK + _HORIZON)) % capacity
    if invalid.tolist() != expected.tolist():
        yield f"invalid_range is {invalid.tolist()}; with add_count {log.added:,} expected {expected.tolist()}"
    # The rows behind the cursor, and the last one of the first checkpoint, may hold anything.
    real = np.arange(capacity) < log.cursor
    real[-1] = not first or log.added >= capacity
    for name, values, wrong, wanted in (
        ("terminal", log.terminal, log.terminal > 1, "0 or 1"),
        ("reward", log.reward, ~np.isfinite(log.reward), "a finite number"),
        ("action", log.action, (log.action < 0) | (log.action >= ACTIONS), f"0 to {ACTIONS - 1}"),
    ):
        rows = np.flatnonzero(wrong & real)
        if len(rows):
            more = f" (and {len(rows) - 1:,} more rows)" if len(rows) > 1 else ""
            yield f"{name} is {values[rows[0]]} at row {rows[0]:,}; expected {wanted}{more}"


@dataclass(slots=True)
class _Rows:
    """The rows of a checkpoint that are new, in the order in which they were added, [n]."""

    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    blank: NDArray[np.bool_]
    """Rows that are dropped if their frames are zeros too."""
    ends: NDArray[np.intp]
    """The rows behind which something else begins, ascending."""
    late: bool
    """Whether the first one is the last of the file."""
    checkpoint: int
    found: Counter[str]
    unsure: bool = False
    """Whether the first rows are blank only if the frame of the row before them, the last one of the file, is zeros."""
    given: int = 0
    """How many were given so far."""

    @classmethod
    def of(cls, log: _Log, before: _Log | None, number: int, *, goes_on: bool, found: Counter[str]) -> _Rows:
        order = np.arange(log.cursor)
        late = before is not None
        cut = not late and (number > 0 or log.added >= log.capacity)
        if late:
            order = np.append(log.capacity - 1, order)
            found["row-between-checkpoints"] = 1
        elif cut:
            found["row-of-another-part"] = 1
        else:
            found["row-never-written"] = 1
        found[f"rows-{'of-a-missing-checkpoint' if cut else 'behind-the-cursor'}"] = log.capacity - 1 - log.cursor
        action, reward, terminated = log.action[order], log.reward[order], log.terminal[order] == 1
        owed = _owed(log, before) if cut or late else _BLANKS
        blank = _blank(terminated, ~terminated & (action == 0) & (reward == 0), owed)
        unsure = cut and 0 < owed < _BLANKS and bool(blank[:1].any())
        truncated = np.zeros(len(order), np.bool_)
        truncated[-1:] = ~terminated[-1:] & (not goes_on)
        if len(order) and cut and not blank[0]:
            found["begin-missing"] = 1
        return cls(
            action, reward, terminated, truncated, blank, np.flatnonzero(terminated), late, number, found, unsure
        )

    def begin_with_a_step(self) -> None:
        """Take the first rows for steps: the row before them is one."""
        self.blank[: int(self.blank.argmin()) or None] = False
        self.found["begin-missing"] = 1

    def pieces(self, start: int, stop: int, frames: NDArray[np.uint8] | None) -> Iterator[Episode]:
        """Yield the rows from start to stop, with their frames [stop - start, 84, 84], cut where episodes end."""
        dropped: set[int] = set()
        for row in (start + np.flatnonzero(self.blank[start:stop])).tolist():
            if not self.blank[row]:
                continue
            if frames is None or not frames[row - start].any():
                dropped.add(row)
            else:  # it is a step, and so are the rows after it
                rest = self.blank[row:]
                rest[: int(rest.argmin()) or None] = False
        self.found["blank-rows"] += len(dropped)
        ends = self.ends[slice(*np.searchsorted(self.ends, (start, stop)))] + 1
        for first, last in pairwise(sorted({start, stop, *ends.tolist(), *dropped, *(row + 1 for row in dropped)})):
            if first not in dropped:
                yield self._piece(first, last, None if frames is None else frames[first - start : last - start])
                self.given += last - first

    def _piece(self, first: int, last: int, frames: NDArray[np.uint8] | None) -> Episode:
        rows = slice(first, last)
        steps = {
            ACTION: self.action[rows],
            NEXT_REWARD: self.reward[rows, None],
            NEXT_TERMINATED: self.terminated[rows, None],
            NEXT_TRUNCATED: self.truncated[rows, None],
        }
        states = {} if frames is None else {OBSERVATION: frames}
        ends = bool(self.terminated[last - 1] or self.truncated[last - 1])
        self.found["end-without-flag"] += int(self.truncated[last - 1])
        self.found["episode-over-checkpoints"] += int(last == len(self.action) and not ends)
        metadata: dict[str, Any] = {"checkpoint": np.int32(self.checkpoint)}
        return Episode(steps, states, continues=not ends, metadata=metadata)


def _owed(log: _Log, before: _Log | None) -> int:
    """Return how many blank rows may stand at the beginning of a checkpoint that does not begin the training."""
    # Of what came before, there is at least the row between the two logs, the last one of this one.
    rows = slice(-1, None) if before is None else slice(before.cursor)
    action, reward, terminal = (column[rows] for column in (before or log).columns)
    ends = np.flatnonzero(terminal == 1)
    since = int(ends[-1]) + 1 if len(ends) else 0
    count = len(action) - since
    return 0 if count >= _BLANKS or action[since:].any() or reward[since:].any() else _BLANKS - count


def _blank(ends: NDArray[np.bool_], zero: NDArray[np.bool_], owed: int) -> NDArray[np.bool_]:
    """Return which rows are zeros and stand behind an end, or behind others that do, [n]."""
    blank = np.zeros(len(ends), np.bool_)
    behind = np.append(False, ends[:-1])[: len(ends)]
    for _ in range(_BLANKS):
        behind &= zero
        blank |= behind
        behind = np.append(False, behind[:-1])[: len(ends)]
    blank[:owed] |= np.logical_and.accumulate(zero[:owed])
    return blank
