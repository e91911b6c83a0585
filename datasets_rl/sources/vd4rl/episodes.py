"""Reader of V-D4RL's ``.npz`` files: an episode each, as DreamerV2 writes episodes, 64 pixels, [R, H, W, 3]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import Column
from datasets_rl.read.npz import NpzFile
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.vd4rl.rows import PIXELS, USUAL_ROWS, RowFlags, RowReader, columns_by_name
from datasets_rl.ted.episode import Episode

_SMALL_BYTES = 256 << 20
_NEEDED = ("image", "action", "reward", "is_first", "is_last")
_MARKS = ("is_first", "is_last", "is_terminal")


class EpisodeFiles(RowReader):
    """Reader of files of an episode each.

    A part is the number and the path of each file, or by default all files, in the order of names.
    """

    @override
    def _stored_columns(self, path: str) -> Sequence[Column]:
        with NpzFile(self._files[path], path.rpartition("/")[2]) as file:
            return [*self._columns_by_name(path, file).values()]

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        self.counts.clear()
        for number, path in part or enumerate(sorted(self._files)):
            with NpzFile(self._files[path], path.rpartition("/")[2]) as file:
                if _is_empty(file):
                    self.counts["no-transition"] += 1
                else:
                    yield from self._read_episode(number, path, file)

    def _columns_by_name(self, path: str, file: NpzFile) -> dict[str, Column]:
        """Return the columns of a file by the names in the file, after checking that the file has the required arrays."""
        arrays = file.arrays
        problems = [f"it has no array {name}" for name in _NEEDED if name not in arrays]
        if not {"is_terminal", "discount"} & set(arrays):
            problems.append("it has neither is_terminal nor discount")
        problems += [f"{name} has Python objects, expected numbers" for name, array in arrays.items() if array.pickled]
        problems += [f"{name} is a single value, expected rows" for name, array in arrays.items() if not array.shape]
        columns: dict[str, Column] = {}
        if not problems:
            columns = columns_by_name({name: array for name, array in arrays.items() if name not in _MARKS}, problems)
        self.refuse(path.rpartition("/")[2], problems)
        return columns

    def _read_episode(self, number: int, path: str, file: NpzFile) -> Iterator[Episode]:
        columns = self._columns_by_name(path, file)
        rows = file.arrays["image"].shape[0]
        self.refuse(path.rpartition("/")[2], [*self.differences(columns.values()), *_contradictions(path, file, rows)])
        small = {name: file.read(name) for name in columns if name != "image"}
        flags = self._with_known_ends(self._read_flags(path, file, small, rows), small)
        values = {column.key: small[name] for name, column in columns.items() if name in small}
        values = {key: self.as_column_rows(key, array) for key, array in values.items() if key in self.kept}
        metadata = {"source": np.int64(number)}
        if PIXELS not in self.kept:
            yield from self.transitions(values, flags, metadata)
            return
        for start, images in _image_blocks(file, rows):
            window = slice(start, start + len(images))
            block = {key: array[window] for key, array in values.items()} | {PIXELS: images}
            yield from self.transitions(block, flags[window], metadata)

    def _read_flags(self, path: str, file: NpzFile, small: Mapping[str, NDArray[Any]], rows: int) -> RowFlags:
        """Read the flags of the rows: first, last and terminal rows."""
        flags = {name: file.read(name).reshape(-1) for name in _MARKS if name in file.arrays}
        self.counts["flags-one-longer"] += any(len(values) > rows for values in flags.values())
        self.counts["unusual-length"] += rows != USUAL_ROWS
        if "is_terminal" not in flags:
            flags["is_terminal"] = np.arange(rows) == rows - 1
            flags["is_terminal"][-1] = small["discount"].reshape(-1)[-1] == 0
            self.counts["terminal-from-discount"] += 1
        problems = [
            f"{name} has values other than 0 and 1"
            for name, values in flags.items()
            if not np.isin(values, (0, 1)).all()
        ]
        first, last, terminal = (flags[name][:rows] == 1 for name in _MARKS)
        if not first[0]:
            problems.append("row 0 is not marked as the first row")
        problems += [f"row {row} is marked as the first row, like row 0" for row in np.flatnonzero(first[1:])[:3] + 1]
        problems += [f"row {row} of {rows} is marked as the last row" for row in np.flatnonzero(last[:-1])[:3]]
        problems += [f"row {row} is marked terminal, but not last" for row in np.flatnonzero(terminal & ~last)[:3]]
        if not last[-1] and len(flags["is_last"]) == rows:
            problems.append(f"row {rows - 1}, the end of the file, is not marked as the last row")
        self.refuse(path.rpartition("/")[2], problems)
        return RowFlags(first, last, terminal)

    def _with_known_ends(self, flags: RowFlags, small: Mapping[str, NDArray[Any]]) -> RowFlags:
        """Mark the end of every episode, also if the upstream's tool set the flags on rows of another episode.

        row       0     1      2    ...            the tool flags rows 0 and 500 regardless of the data. The reset is
        action    a_499 zeros  a_0                 the only row with zeros as action and reward, if not row 0
        """
        ends, first = flags.ends.copy(), flags.first
        idle = np.flatnonzero(~small["action"].any(axis=1) & (small["reward"].reshape(-1) == 0))
        if len(idle) == 1 and idle[0]:
            ends[idle - 1] = True
            first = np.arange(len(ends)) == idle[0]
            self.counts["reset-inside-file"] += 1
            self.counts["row-without-step"] += int(idle[0] == 1) + int(idle[0] == len(ends) - 1)
        ends[-1] = True
        self.counts["end-without-flag"] += int(np.count_nonzero(ends & ~flags.ends))
        return RowFlags(first, ends, flags.terminal)


def _is_empty(file: NpzFile) -> bool:
    """Return whether a file has only a reset, or no rows at all, and therefore no transition."""
    arrays = [array for name, array in file.arrays.items() if name not in _MARKS]
    return bool(arrays) and all(len(array.shape) > 0 and array.shape[0] < 2 for array in arrays)


def _contradictions(path: str, file: NpzFile, rows: int) -> Iterator[str]:
    """Yield how a file contradicts itself or the name of the file."""
    for name, array in file.arrays.items():
        if array.shape[0] != rows and not (name in _MARKS and array.shape[0] == rows + 1):
            yield f"{name} has {array.shape[0]:,} rows, but image has {rows:,}"
    name_parts = Path(path).stem.split("-")
    if len(name_parts) == 3 and name_parts[2] != str(rows):
        yield f"it has {rows:,} rows, but the name states {name_parts[2]}"
    declared = sum(array.dtype.itemsize * prod(array.shape) for name, array in file.arrays.items() if name != "image")
    if declared > _SMALL_BYTES:
        yield f"the arrays other than image declare {declared:,} bytes, expected at most {_SMALL_BYTES:,}"


def _image_blocks(file: NpzFile, rows: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield images in blocks, with the first row of each block. A block begins with the last image of the previous block."""
    reader = file.open("image")
    block = rows_in_chunk(reader.row_bytes)
    before: NDArray[np.uint8] = np.empty((0, *reader.shape[1:]), np.uint8)
    for start in range(0, rows, block):
        images: NDArray[np.uint8] = np.empty((len(before) + min(block, rows - start), *reader.shape[1:]), np.uint8)
        images[: len(before)] = before
        reader.read_into(images[len(before) :])
        yield start - len(before), images
        before = images[-1:]
