"""Files that packages write in a structure of their own, as files of flat rows.

tianshou    _meta/obs [maxsize, D], a ring with rows that are not filled      obs [N, D], in the order of time
imitation   a table with a row for each episode: obs [T + 1, D], acts [T, A]  obs [N + E, D], acts [N, A]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.ragged import Ragged
from datasets_rl.sources.flat.arrays import Array, ArrayFile, Hdf5Arrays, Rows, TableArrays
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.rings import blocks_of_ranges
from datasets_rl.ted.keys import ACTION, OBSERVATION

_Index = NDArray[np.int64]
_META = "_meta/"
_STARTS = "episode_starts"
_ENDS = {"terminated", "truncated"}
_BLOCK_EPISODES = 64
_BLOCK_ROWS = 1 << 16


def of_package(file: ArrayFile, layout: Layout) -> ArrayFile:
    """Return the file of flat rows of a file with the structure of a package, or else the file itself.

    Raises:
        ConversionError: If the file contradicts itself.
    """
    if isinstance(file, Hdf5Arrays) and f"{_META}obs" in file.arrays and "last_index" in file.arrays:
        return TianshouFile(file)
    if isinstance(file, TableArrays) and (names := columns_of_episodes(file, layout)):
        return EpisodeRowsFile(file, names)
    return file


class TianshouFile(ArrayFile):
    """File of `ReplayBuffer.save_hdf5` of tianshou: the filled rows, each buffer of a vector from its oldest row on.

    rows        0  1  2  3  4  5  6  7        a ring of 8 rows, the next row of which is row 3
    time        5  6  7  0  1  2  3  4

    Raises:
        ConversionError: If the sizes in the file contradict each other.
    """

    def __init__(self, file: Hdf5Arrays) -> None:
        self.take_notes_of(file)
        self._file = file
        members = {name: array for name, array in file.arrays.items() if name.startswith(_META)}
        rows = members[f"{_META}obs"].rows
        self._ranges, self._stops = _ring_ranges(file, rows)
        count = sum(stop - start for start, stop in self._ranges)
        wrong = [f"{name} is {array}, expected {rows:,} rows" for name, array in members.items() if array.rows != rows]
        if wrong or not count:
            raise ConversionError(file.name, wrong or ["the buffer is empty"])
        self._names = {name.removeprefix(_META): name for name in members}
        self.arrays = {name: replace(members[inner], rows=count) for name, inner in self._names.items()}
        self._starts = self._first_rows()
        if self.arrays.keys() >= _ENDS:  # done is either of the two
            self.arrays = {name: array for name, array in self.arrays.items() if name != "done"}
        if self._starts is not None:
            self.arrays = {**self.arrays, _STARTS: Array(count, (), np.dtype(np.bool_))}

    def _first_rows(self) -> NDArray[np.bool_] | None:
        """Return the mask of first rows, [N], if a buffer ends within an episode, where no flag is set."""
        if "done" not in self._names:
            return None
        done = self._flags("done")
        if self._names.keys() >= _ENDS:
            wrong = np.flatnonzero(done != (self._flags("terminated") | self._flags("truncated")))
            if len(wrong):
                problem = (
                    f"done differs from terminated or truncated in {len(wrong):,} rows, the first is row {wrong[0]:,}"
                )
                raise ConversionError(self.name, [problem])
        ends = done.copy()
        ends[np.array(self._stops[:-1], np.int64) - 1] = True
        return None if (ends == done).all() else np.append(True, ends[:-1])

    def _flags(self, name: str) -> NDArray[np.bool_]:
        return np.concatenate([np.asarray(block).reshape(-1) == 1 for block in self.blocks(name, _BLOCK_ROWS)])

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name == _STARTS and self._starts is not None:
            for start in range(0, len(self._starts), rows):
                yield self._starts[start : start + rows]
            return
        yield from blocks_of_ranges(self._file, self._names[name], rows, self._ranges)

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def _ring_ranges(file: Hdf5Arrays, rows: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the ranges of filled rows in the order of time, and the number of rows up to the end of each buffer."""
    attributes = file.file.attributes("")
    last = np.asarray(file.read_all("last_index")).astype(np.int64)
    if "_lengths" in file.arrays:
        offsets, sizes = (np.asarray(file.read_all(name)).astype(np.int64) for name in ("_offset", "_lengths"))
    else:
        offsets, sizes = np.zeros(1, np.int64), np.array([attributes.get("_size", -1)], np.int64)
    bounds = [*offsets.tolist(), rows]
    capacities = np.diff(bounds)
    fits = len(sizes) == len(last) == len(offsets) and attributes.get("maxsize") == rows and (capacities > 0).all()
    if not fits or ((sizes < 0) | (sizes > capacities)).any() or ((last < bounds[:-1]) | (last >= bounds[1:])).any():
        problem = f"the buffers have {sizes.tolist()} rows of {capacities.tolist()}, and end at {last.tolist()}"
        raise ConversionError(file.name, [f"{problem}, expected sizes and last rows of {rows:,} rows"])
    ranges: list[tuple[int, int]] = []
    for (first, stop), size, newest in zip(pairwise(bounds), sizes.tolist(), last.tolist(), strict=True):
        is_full = size == stop - first
        ranges += [(newest + 1, stop), (first, newest + 1)] if is_full else [(first, first + size)]
    return [(first, stop) for first, stop in ranges if first < stop], np.cumsum(sizes[sizes > 0]).tolist()


class EpisodeRowsFile(ArrayFile):
    """Table with a row for each episode, in which a cell has the values of all steps.

    obs     [[s_0 s_1 s_2] [s_0' s_1']]        obs [5, D], with the lengths 3 and 2
    acts    [[a_0 a_1] [a_0']]                 acts [3, A], with the lengths 2 and 1

    Args:
        file: The table.
        names: The columns with the values of steps.

    Raises:
        ConversionError: If the cells of a row have other lengths than T and T + 1.
    """

    def __init__(self, file: TableArrays, names: Sequence[str]) -> None:
        self.take_notes_of(file)
        self._file, self.way = file, "axis"
        cells = {name: [(len(values), lengths) for values, lengths in _cells(file, name)] for name in names}
        self.lengths = {name: np.concatenate([lengths for _, lengths in blocks]) for name, blocks in cells.items()}
        flat = {
            name: replace(array, rows=int(self.lengths[name].sum()), shape=array.shape[1:])
            for name, array in file.arrays.items()
            if name in self.lengths
        }
        self.arrays = {**file.arrays, **flat}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name not in self.lengths:
            yield from self._file.blocks(name, rows)
            return
        for values, _ in _cells(self._file, name):
            yield values

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def columns_of_episodes(file: TableArrays, layout: Layout) -> list[str]:
    """Return the columns whose cells certainly have the values of all steps of an episode.

    The observations of a row are one more than the actions, as imitation stores a trajectory.
    """
    if layout.by and layout.by != "axis":
        return []
    fields = {field.key: field.array for field in layout.fields_of(file.readable) if field.array in file.arrays}
    states, actions = (file.arrays.get(fields.get(key, "")) for key in (OBSERVATION, ACTION))
    if states is None or actions is None or len(states.shape) < 2 or not actions.shape:
        return []
    steps = actions.shape[0]
    if states.shape[0] != steps + 1:
        return []
    return [name for name in fields.values() if file.arrays[name].shape[:1] in {(steps,), (steps + 1,)}]


def _cells(file: TableArrays, name: str) -> Iterator[tuple[NDArray[Any], _Index]]:
    """Yield the values of all steps of some episodes, [n, ...], and the number of steps of each episode."""
    for values in file.lists(name, _BLOCK_EPISODES):
        if isinstance(values, Ragged):
            inner = values.values
            inner = inner.stacked(f"{file.name}: {name}") if isinstance(inner, Ragged) else inner
            if not isinstance(inner, np.ndarray):
                raise ConversionError(file.name, [f"{name} has texts or bytes, expected numbers"])
            yield inner, values.lengths
        else:
            array = np.asarray(values)
            yield array.reshape(-1, *array.shape[2:]), np.full(len(array), array.shape[1], np.int64)
