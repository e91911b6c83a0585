"""Reader of V-D4RL's ``.hdf5`` files: rows of DrQ-v2, 84 pixels, [N, 3, H, W], split into files within episodes.

file     | 0.hdf5             | 1.hdf5
row      | 0  1  2  ...  N-1  | 0  1  2 ...
kind     | 0  1  1  ...  1    | 1  1  2  0 ...          0 a reset, 1 between, 2 the last row of an episode
shards   | <--------------->  <--------->               the step of row 0 begins with the last image before the row
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Hdf5File
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.vd4rl.rows import RowFlags, RowReader, columns_by_name
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import Key

_NEEDED = ("observation", "action", "reward", "discount", "step_type")
_WHOLE = {"before": None, "cut": (0, 1), "begins": True, "ends": True}


class RowFiles(RowReader):
    """Reader of files of rows. A part is a mapping. By default, the single file is read completely.

    file: The path of the file.
    before: The path of the previous file, with the last row that begins the first step, or None if there is no such step.
    cut: (k, n), for the k-th of n ranges of the rows.
    begins: Whether the first row must be a reset.
    ends: Whether no rows follow, so that the last row ends an episode.
    """

    @override
    def _stored_columns(self, path: str) -> Sequence[Column]:
        with Hdf5File(self._files[path], threads=1) as file:
            return [*self._columns_by_name(path, file).values()]

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the transitions that end in these rows, and the transition that ends in the row after the part."""
        self.counts.clear()
        part = part or {**_WHOLE, "file": next(iter(self._files))}
        with ExitStack() as closing:
            file = closing.enter_context(Hdf5File(self._files[part["file"]]))
            names = self._keys_by_name(part["file"], file)
            flags = self._read_flags(part["file"], file)
            piece, pieces = part["cut"]
            self.counts["unwritten-chunks"] += file.unwritten if piece == 0 else 0
            if not piece and part["before"] is not None:
                before = closing.enter_context(Hdf5File(self._files[part["before"]]))
                self._keys_by_name(part["before"], before)
                yield from self._transition_across_files(part, before, file, names)
            elif not piece and part["begins"] and not flags.first[0]:
                raise self.error(part["file"].rpartition("/")[2], ["row 0 is not a reset: step_type is not 0"])
            start, stop = _rows_of_shard(file, piece, pieces)
            if part["ends"]:
                self.counts["end-without-flag"] += int(not flags.ends[stop - 1])
                flags.ends[stop - 1] = True
            rows = rows_in_chunk(sum(file.arrays[name].row_bytes for name in names))
            blocks = file.blocks([*names], rows=rows, overlap=[*names], start=start, stop=stop)
            for block in blocks:
                values = {key: self.as_column_rows(key, block.columns[name]) for name, key in names.items()}
                yield from self.transitions(values, flags[block.start : min(block.stop + 1, stop)], {})

    def _columns_by_name(self, path: str, file: Hdf5File) -> dict[str, Column]:
        """Return the columns of a file by the names in the file, after checking that the file has the required datasets."""
        arrays = file.arrays
        problems = [f"it has no dataset {name}" for name in _NEEDED if name not in arrays]
        problems += [
            f"{name} has dtype {array.dtype}, expected numbers" for name, array in arrays.items() if not array.numeric
        ]
        problems += [f"{name} is a single value, expected rows" for name, array in arrays.items() if not array.shape]
        columns: dict[str, Column] = {}
        if not problems:
            rows = arrays["observation"].shape[0]
            problems += [
                f"{name} has {array.shape[0]:,} rows, but observation has {rows:,}"
                for name, array in arrays.items()
                if array.shape[0] != rows
            ]
            problems += ["it has no rows"] * (rows == 0)
            columns = columns_by_name({name: array for name, array in arrays.items() if name != "step_type"}, problems)
        self.refuse(path.rpartition("/")[2], problems)
        return columns

    def _keys_by_name(self, path: str, file: Hdf5File) -> dict[str, Key]:
        """Return the selected keys by the names in the file, after checking that the columns match the first file."""
        columns = self._columns_by_name(path, file)
        self.refuse(path.rpartition("/")[2], self.differences(columns.values()))
        return {name: column.key for name, column in columns.items() if column.key in self.kept}

    def _read_flags(self, path: str, file: Hdf5File) -> RowFlags:
        """Return the first, last and terminal rows of a file, from step_type and discount."""
        kinds, discounts = (file.read(name).reshape(-1) for name in ("step_type", "discount"))
        problems = [
            f"row {row:,} has step_type {kinds[row]}, expected 0, 1 or 2"
            for row in np.flatnonzero(~np.isin(kinds, (0, 1, 2)))[:3]
        ]
        problems += [
            _broken_text(row + 1, kinds[row], kinds[row + 1]) for row in np.flatnonzero(_broken_rows(kinds))[:3]
        ]
        self.refuse(path.rpartition("/")[2], problems)
        return RowFlags(kinds == 0, kinds == 2, discounts == 0)

    def _transition_across_files(
        self, part: Mapping[str, Any], before: Hdf5File, file: Hdf5File, names: Mapping[str, Key]
    ) -> Iterator[Episode]:
        """Yield the transition, if any, from the last row of the previous file to the first row of this file."""

        def rows(name: str) -> NDArray[Any]:
            last = before.arrays[name].shape[0]
            return np.concatenate([before.read(name, last - 1, last), file.read(name, 0, 1)])

        kinds = rows("step_type").reshape(-1)
        if _broken_rows(kinds)[0]:
            previous = part["before"].rpartition("/")[2]
            raise self.error(
                part["file"].rpartition("/")[2], [f"{_broken_text(0, *kinds)} (the previous row is in {previous})"]
            )
        ends = kinds == 2
        ends[1] |= part["ends"] and file.arrays["step_type"].shape[0] == 1
        if not ends[0]:
            values = {key: self.as_column_rows(key, rows(name)) for name, key in names.items()}
            yield from self.transitions(values, RowFlags(kinds == 0, ends, rows("discount").reshape(-1) == 0), {})


def _rows_of_shard(file: Hdf5File, piece: int, pieces: int) -> tuple[int, int]:
    """Return the rows of a shard, which begin at a chunk and include the next row, in which the last step ends."""
    images = file.arrays["observation"]
    rows, band = images.shape[0], images.band_rows
    start, stop = (min(rows, -(-rows // band) * number // pieces * band) for number in (piece, piece + 1))
    return start, min(stop + 1, rows)


def _broken_rows(kinds: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of rows that the next row cannot follow, [N - 1]: a reset must follow an end, and only an end."""
    return np.asarray((kinds[:-1] == 2) != (kinds[1:] == 0))


def _broken_text(row: int, previous_kind: float, kind: float) -> str:
    start = "a reset, but" if kind == 0 else "not a reset, but"
    return (
        f"row {row:,} is {start} the previous row {'is' if previous_kind == 2 else 'is not'} the last row of an episode"
    )
