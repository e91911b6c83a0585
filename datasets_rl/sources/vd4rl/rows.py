"""Conversion of V-D4RL's rows to transitions. A row has an image, and the action and the reward that led to the image.

row        0        1    2    3   ...  500
image      p_0      p_1  p_2  p_3      p_500
action     ignored  a_0  a_1  a_2      a_499      row 0 is the reset: the action and the reward have no meaning
reward     ignored  r_0  r_1  r_2      r_499
flags      first                       last, and terminal unless the row is a time-out

transition t:  p_t  --a_t-->  r_t, p_t+1          from the rows t and t + 1: 501 rows are 500 transitions
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.values import column_differences, pixel_spec
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

USUAL_ROWS = 501
PIXELS: Key = ("pixels",)
_IS_INIT: Key = ("is_init",)
_FLAGS = (*END_COLUMNS, Column(_IS_INIT, np.dtype(np.bool_), ()))
_TYPES = frozenset(np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4"))
_KEYS: Mapping[str, Key] = {"image": PIXELS, "observation": PIXELS, "action": ACTION, "reward": NEXT_REWARD}
_TEXTS = {
    "action-before-frame": "actions and rewards are stored with the image that followed: they were moved to the row "
    "of the previous image, and the reset is not a transition, because the action and the reward have no meaning",
    "end-without-flag": "episodes end without a flag: the last row was marked truncated",
    "flags-one-longer": "files have one more flag than images, because of the upstream's tool: the last flag was dropped",
    "unusual-length": f"files have a number of rows other than {USUAL_ROWS}",
    "reset-inside-file": "files begin with the end of an earlier episode, and the reset, the only row with zeros as action and "
    "reward, is inside the file: the episodes were split there",
    "row-without-step": "single rows between two episodes have no transition and were dropped",
    "terminal-from-discount": "files have no is_terminal: an episode is terminated if the last discount is 0",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of the array",
    **NO_TRANSITION,
    **NOT_FINITE,
    "rounded": "values of 64 bits were rounded to 32 bits",
}


@dataclass(frozen=True, slots=True)
class RowFlags:
    """Masks of the rows, [R] each."""

    first: NDArray[np.bool_]
    """Resets."""
    ends: NDArray[np.bool_]
    """Last rows of episodes, marked by the file or not."""
    terminal: NDArray[np.bool_]
    """Rows whose end is a termination and not a time-out."""

    def __getitem__(self, rows: slice) -> RowFlags:
        """Return the marks of a range of rows."""
        return RowFlags(self.first[rows], self.ends[rows], self.terminal[rows])


class RowReader(EpisodeReader):
    """Base class of the readers of both file formats.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.

    Raises:
        ConversionError: If the first file lacks a required array. The error names every problem.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path]) -> None:
        self._dataset_id = dataset_id
        self._files = files
        self._stored = self._stored_columns(next(iter(files)))
        self.columns = [*self._stored, *_FLAGS]
        self._by_key = {column.key: column for column in self.columns}

    @abstractmethod
    def _stored_columns(self, path: str) -> Sequence[Column]:
        """Return the columns of a file."""

    @override
    def specs(self) -> Mapping[str, Any]:
        return {"pixels": pixel_spec(self._by_key[PIXELS].shape)}

    def differences(self, columns: Iterable[Column]) -> Iterator[str]:
        """Yield how the columns of a file differ from the columns of the first file."""
        return column_differences(columns, self._stored, "file")

    def as_column_rows(self, key: Key, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows with the shape and dtype of the column."""
        column = self._by_key[key]
        values = rows.reshape(len(rows), *column.shape)
        if values.dtype != column.dtype:
            with np.errstate(over="ignore"):
                narrow = values.astype(column.dtype)
            self.counts["rounded"] += int(np.count_nonzero((narrow != values) & ~np.isnan(values)))
            values = narrow
        if values.dtype.kind == "f":
            self.counts["not-finite"] += int(np.count_nonzero(~np.isfinite(values)))
        return values

    def transitions(
        self, rows: Mapping[Key, NDArray[Any]], flags: RowFlags, metadata: Mapping[str, Any]
    ) -> Iterator[Episode]:
        """Yield the transitions between consecutive rows, [R, ...]. The row after an end begins another episode.

        rows       0  1  2  3  4  5  6      ends at 3
        episodes   [0 ---- 3]  [4 ---- 6    the second episode continues: the last row must be the first row of the next call
        """
        cuts = [0, *(np.flatnonzero(flags.ends) + 1).tolist(), len(flags.ends)]
        for start, stop in pairwise(cuts):
            if stop - start < 2:
                continue
            continues = not flags.ends[stop - 1]
            now, then = slice(start, stop - 1), slice(start + 1, stop)
            steps = {
                NEXT_TERMINATED: (flags.ends & flags.terminal)[then, None],
                NEXT_TRUNCATED: (flags.ends & ~flags.terminal)[then, None],
            }
            if _IS_INIT in self.kept:
                steps[_IS_INIT] = flags.first[now]
            states: dict[Key, NDArray[Any]] = {}
            for key, values in rows.items():
                if self._by_key[key].shared:
                    states[key] = values[now] if continues else values[start:stop]
                else:
                    steps[key] = values[then]
            self.counts["action-before-frame"] += stop - start - 1
            yield Episode(steps, states, continues, metadata)


def columns_by_name(stored: Mapping[str, Any], problems: list[str]) -> dict[str, Column]:
    """Return the columns for arrays [R, ...] by the names in a file. Problems are appended to `problems`."""
    columns = {name: _column_of(name, array.dtype, array.shape[1:]) for name, array in stored.items()}
    for name, column in columns.items():
        shape, dtype = stored[name].shape[1:], stored[name].dtype
        if column.key == PIXELS and (dtype != np.uint8 or len(shape) != 3 or 3 not in {shape[0], shape[2]}):
            problems.append(f"{name} is {dtype.name} {list(shape)} per row, expected uint8 [H, W, 3] or [3, H, W]")
        elif column.key == ACTION and (dtype.kind != "f" or len(shape) != 1):
            problems.append(f"action is {dtype.name} {list(shape)} per row, expected floats [A]")
        elif column.key == NEXT_REWARD and (dtype.kind != "f" or prod(shape) != 1):
            problems.append(f"reward is {dtype.name} {list(shape)} per row, expected a float")
        elif column.dtype not in _TYPES:
            problems.append(f"{name} has dtype {dtype.name}, expected numbers of at most 64 bits")
    return columns


def _column_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    key = _KEYS.get(name, ("state", name.replace(".", "_").replace("/", "_")))
    kind = np.dtype(np.float32) if dtype == np.float64 else dtype.newbyteorder("=")
    return Column(key, kind, (1,) if key == NEXT_REWARD else shape, shared=key == PIXELS or key[0] == "state")
