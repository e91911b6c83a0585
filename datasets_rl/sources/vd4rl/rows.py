"""V-D4RL's rows as transitions. A row holds a picture, and the action and the reward that led to it.

row        0        1    2    3   ...  500
picture    p_0      p_1  p_2  p_3      p_500
action     nothing  a_0  a_1  a_2      a_499      row 0 is the reset: its action and its reward mean nothing
reward     nothing  r_0  r_1  r_2      r_499
flags      first                       last, and terminal if it is no time-out

transition t:  p_t  --a_t-->  r_t, p_t+1          from the rows t and t + 1: 501 rows are 500 transitions
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader, Selection
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BLOCK_BYTES", "PIXELS", "USUAL_ROWS", "Marks", "RowReader", "described"]

BLOCK_BYTES = 8 << 20
USUAL_ROWS = 501
PIXELS: Key = ("pixels",)
_IS_INIT: Key = ("is_init",)
_FLAG = np.dtype(np.bool_)
_FLAGS = (Column(NEXT_TERMINATED, _FLAG, (1,)), Column(NEXT_TRUNCATED, _FLAG, (1,)), Column(_IS_INIT, _FLAG, ()))
_TYPES = frozenset(np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4"))
_KEYS: Mapping[str, Key] = {"image": PIXELS, "observation": PIXELS, "action": ACTION, "reward": NEXT_REWARD}
_TEXTS = {
    "action-before-frame": "actions and rewards stand beside the picture that they led to: they were moved to the row of "
    "the picture before it, and the reset, whose action and reward mean nothing, is no transition of its own",
    "end-without-flag": "episodes end without a flag: their last row was marked truncated",
    "flags-one-longer": "files have one flag more than pictures, as the upstream's tool wrote them: the last flag was cut",
    "unusual-length": f"files have another number of rows than {USUAL_ROWS}",
    "reset-inside-file": "files begin with the end of an earlier episode, and the reset, the only row whose action and "
    "reward are zeros, stands inside: they were cut there",
    "row-without-step": "rows stand alone between two cuts: no transition can be made of them",
    "terminal-from-discount": "files have no is_terminal: an episode is terminated if its last discount is 0",
    "unwritten-chunks": "chunks that the file never wrote have the fill value of their array",
    **NO_TRANSITION,
    "not-finite": "values that are NaN or infinite were kept",
    "rounded": "values of 64 bits changed when they were stored with 32",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """What rows are, [R] each."""

    first: NDArray[np.bool_]
    """A reset."""
    ends: NDArray[np.bool_]
    """The last row of an episode, marked by the file or not."""
    terminal: NDArray[np.bool_]
    """Whether an end is one of the environment's own, and no time-out."""

    def __getitem__(self, rows: slice) -> Marks:
        """Return those of some rows."""
        return Marks(self.first[rows], self.ends[rows], self.terminal[rows])


class RowReader(EpisodeReader):
    """Opened files of a shard, of either kind.

    Args:
        what: The dataset, for messages.
        files: The files by path.
        metadata: What of the selection is needed.

    Raises:
        ConversionError: If the first file lacks what every file must have; every fault that was found.
    """

    def __init__(self, what: str, files: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        self._what = what
        self._files = files
        self.found: Counter[str] = Counter()
        self.steps = None
        self.metadata = {}
        self.decisions: list[Decision] = []
        self.stored = self._stored(next(iter(files)))
        self.columns = [*self.stored, *_FLAGS]
        self.wanted = Selection(keys=tuple(metadata.get("keys", ()))).kept_keys([one.key for one in self.columns])
        self._by_key = {column.key: column for column in self.columns}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Do nothing: a file is open only while it is read."""

    @abstractmethod
    def _stored(self, path: str) -> Sequence[Column]:
        """Return the columns that a file holds."""

    @abstractmethod
    def pieces(self, part: Any) -> Iterator[Episode]:
        """Yield the trajectories of a part; `found` counts what was met."""

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the trajectories of a part, which is the files' own way to say it."""
        self.found.clear()
        yield from self.pieces(part)
        self.decisions = [Decision(rule, text, self.found[rule]) for rule, text in _TEXTS.items() if self.found[rule]]

    def specs(self) -> Mapping[str, Any]:
        """Return what pictures may be."""
        shape = list(self._by_key[PIXELS].shape)
        return {"pixels": {"kind": "bounded", "shape": shape, "dtype": "uint8", "low": 0, "high": 255}}

    def failed(self, path: str, problems: Sequence[str]) -> ConversionError:
        """Make the error for a file."""
        return ConversionError(self._what, [f"{path.rpartition('/')[2]}: {one}" for one in problems])

    def unlike_others(self, columns: Sequence[Column]) -> Iterator[str]:
        """Yield how the columns of a file differ from those of the first one."""
        here, there = ({column.key: column for column in one} for one in (columns, self.stored))
        for key in sorted(here.keys() | there.keys()):
            if here.get(key) != there.get(key):
                said = [
                    f"{one.dtype.name} {list(one.shape)}" if one else "absent"
                    for one in (here.get(key), there.get(key))
                ]
                yield f"{dotted(key)} is {said[0]} a row; in other files {said[1]}"

    def value(self, key: Key, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows as the dataset holds them."""
        column = self._by_key[key]
        values = rows.reshape(len(rows), *column.shape)
        if values.dtype != column.dtype:
            with np.errstate(over="ignore"):
                narrow = values.astype(column.dtype)
            self.found["rounded"] += int(np.count_nonzero((narrow != values) & ~np.isnan(values)))
            values = narrow
        if values.dtype.kind == "f":
            self.found["not-finite"] += int(np.count_nonzero(~np.isfinite(values)))
        return values

    def transitions(
        self, rows: Mapping[Key, NDArray[Any]], marks: Marks, metadata: Mapping[str, Any]
    ) -> Iterator[Episode]:
        """Yield the transitions between rows that follow each other, [R, ...]; the row behind an end begins anew.

        rows       0  1  2  3  4  5  6      ends at 3
        pieces     [0 ---- 3]  [4 ---- 6    the second one goes on: its last row must be the first of the next rows
        """
        cuts = [0, *(np.flatnonzero(marks.ends) + 1).tolist(), len(marks.ends)]
        for start, stop in pairwise(cuts):
            if stop - start < 2:
                continue
            continues = not marks.ends[stop - 1]
            now, then = slice(start, stop - 1), slice(start + 1, stop)
            steps = {
                NEXT_TERMINATED: (marks.ends & marks.terminal)[then, None],
                NEXT_TRUNCATED: (marks.ends & ~marks.terminal)[then, None],
            }
            if _IS_INIT in self.wanted:
                steps[_IS_INIT] = marks.first[now]
            states: dict[Key, NDArray[Any]] = {}
            for key, values in rows.items():
                if self._by_key[key].shared:
                    states[key] = values[now] if continues else values[start:stop]
                else:
                    steps[key] = values[then]
            self.found["action-before-frame"] += stop - start - 1
            yield Episode(steps, states, continues, metadata)


def described(stored: Mapping[str, Any], faults: list[str]) -> dict[str, Column]:
    """Describe arrays [R, ...] by their names in a file; `faults` gets what is wrong with their types and axes."""
    columns = {name: _column(name, one.dtype, one.shape[1:]) for name, one in stored.items()}
    for name, column in columns.items():
        shape, dtype = stored[name].shape[1:], stored[name].dtype
        if column.key == PIXELS and (dtype != np.uint8 or len(shape) != 3 or 3 not in {shape[0], shape[2]}):
            faults.append(f"{name} is {dtype.name} {list(shape)} a row; expected uint8 [H, W, 3] or [3, H, W]")
        elif column.key == ACTION and (dtype.kind != "f" or len(shape) != 1):
            faults.append(f"action is {dtype.name} {list(shape)} a row; expected floats [A]")
        elif column.key == NEXT_REWARD and (dtype.kind != "f" or prod(shape) != 1):
            faults.append(f"reward is {dtype.name} {list(shape)} a row; expected a float")
        elif column.dtype not in _TYPES:
            faults.append(f"{name} holds {dtype.name}; expected numbers")
    return columns


def _column(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    key = _KEYS.get(name, ("state", name.replace(".", "_").replace("/", "_")))
    kind = np.dtype(np.float32) if dtype == np.float64 else dtype.newbyteorder("=")
    return Column(key, kind, (1,) if key == NEXT_REWARD else shape, shared=key == PIXELS or key[0] == "state")
