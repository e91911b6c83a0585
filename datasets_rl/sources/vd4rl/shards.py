"""V-D4RL's ``.hdf5`` files: rows of DrQ-v2, 84 pixels, [N, 3, H, W], cut into files where an episode may go on.

file     | 0.hdf5             | 1.hdf5
row      | 0  1  2  ...  N-1  | 0  1  2 ...
kind     | 0  1  1  ...  1    | 1  1  2  0 ...          0 a reset, 1 between, 2 the last row of an episode
pieces   | <--------------->  <--------->               the step of row 0 begins with the last picture before it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.schema import Column
from datasets_rl.read.hdf5 import Hdf5File
from datasets_rl.sources.vd4rl.rows import BLOCK_BYTES, Marks, RowReader, described
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import Key

__all__ = ["RowFiles"]

_NEEDED = ("observation", "action", "reward", "discount", "step_type")
_WHOLE = {"before": None, "cut": (0, 1), "begins": True, "ends": True}


class RowFiles(RowReader):
    """Files of rows. A part is a mapping; by default the only file is one.

    file: The path.
    before: The path of the file before it, with whose last row the first step begins; None if there is no such step.
    cut: (k, n), for the k-th of n pieces of the rows.
    begins: Whether the first row must be a reset.
    ends: Whether no rows follow, so that the last one is an end.
    """

    def _stored(self, path: str) -> Sequence[Column]:
        with Hdf5File(self._files[path], threads=1) as file:
            return [*self._described(path, file).values()]

    def pieces(self, part: Any) -> Iterator[Episode]:
        """Yield the transitions that end in these rows, and that which ends in the row behind them."""
        part = part or {**_WHOLE, "file": next(iter(self._files))}
        with ExitStack() as closing:
            file = closing.enter_context(Hdf5File(self._files[part["file"]]))
            names = self._names(part["file"], file)
            marks = self._marks(part["file"], file)
            piece, pieces = part["cut"]
            self.found["unwritten-chunks"] += file.unwritten if piece == 0 else 0
            if not piece and part["before"] is not None:
                before = closing.enter_context(Hdf5File(self._files[part["before"]]))
                self._names(part["before"], before)
                yield from self._seam(part, before, file, names)
            elif not piece and part["begins"] and not marks.first[0]:
                raise self.failed(part["file"], ["row 0 is no reset: step_type is not 0"])
            start, stop = _range(file, piece, pieces)
            if part["ends"]:
                self.found["end-without-flag"] += int(not marks.ends[stop - 1])
                marks.ends[stop - 1] = True
            a_row = sum(file.arrays[name].row_bytes for name in names)
            blocks = file.blocks([*names], rows=max(1, BLOCK_BYTES // a_row), overlap=[*names], start=start, stop=stop)
            for block in blocks:
                values = {key: self.value(key, block.columns[name]) for name, key in names.items()}
                yield from self.transitions(values, marks[block.start : min(block.stop + 1, stop)], {})

    def _described(self, path: str, file: Hdf5File) -> dict[str, Column]:
        """Return the columns of a file by their names in it, once it has what it must have."""
        faults = [f"it has no dataset {name}" for name in _NEEDED if name not in file.arrays]
        faults += [f"{name} holds no numbers" for name, one in file.arrays.items() if not one.numeric]
        faults += [f"{name} is a single value; expected rows" for name, one in file.arrays.items() if not one.shape]
        columns: dict[str, Column] = {}
        if not faults:
            rows = file.arrays["observation"].shape[0]
            faults += [
                f"{name} has {one.shape[0]:,} rows; observation has {rows:,}"
                for name, one in file.arrays.items()
                if one.shape[0] != rows
            ]
            faults += ["it has no rows"] * (rows == 0)
            columns = described({name: one for name, one in file.arrays.items() if name != "step_type"}, faults)
        if faults:
            raise self.failed(path, faults)
        return columns

    def _names(self, path: str, file: Hdf5File) -> dict[str, Key]:
        """Return the wanted columns by their names in the file, once they are those of the first file."""
        columns = self._described(path, file)
        if faults := [*self.unlike_others([*columns.values()])]:
            raise self.failed(path, faults)
        return {name: column.key for name, column in columns.items() if column.key in self.wanted}

    def _marks(self, path: str, file: Hdf5File) -> Marks:
        """Read what the rows are.

        Raises:
            ConversionError: If an episode goes on behind its last row, or another one begins before it.
        """
        kinds, discounts = (file.read(name).reshape(-1) for name in ("step_type", "discount"))
        faults = [f"row {row:,} has step_type {kinds[row]}" for row in np.flatnonzero(~np.isin(kinds, (0, 1, 2)))[:3]]
        faults += [_broken(row + 1, kinds[row], kinds[row + 1]) for row in np.flatnonzero(_breaks(kinds))[:3]]
        if faults:
            raise self.failed(path, faults)
        return Marks(kinds == 0, kinds == 2, discounts == 0)

    def _seam(
        self, part: Mapping[str, Any], before: Hdf5File, file: Hdf5File, names: Mapping[str, Key]
    ) -> Iterator[Episode]:
        """Yield the transition from the last row of the file before to the first one of this file, if there is one."""

        def rows(name: str) -> NDArray[Any]:
            last = before.arrays[name].shape[0]
            return np.concatenate([before.read(name, last - 1, last), file.read(name, 0, 1)])

        kinds = rows("step_type").reshape(-1)
        if _breaks(kinds)[0]:
            raise self.failed(part["file"], [f"{_broken(0, *kinds)} (row before: {part['before'].rpartition('/')[2]})"])
        ends = kinds == 2
        ends[1] |= part["ends"] and file.arrays["step_type"].shape[0] == 1
        if not ends[0]:
            values = {key: self.value(key, rows(name)) for name, key in names.items()}
            yield from self.transitions(values, Marks(kinds == 0, ends, rows("discount").reshape(-1) == 0), {})


def _range(file: Hdf5File, piece: int, pieces: int) -> tuple[int, int]:
    """Return the rows of a piece, which begins where chunks begin, and the row behind them: the last step ends there."""
    images = file.arrays["observation"]
    rows, band = images.shape[0], images.band_rows
    start, stop = (min(rows, -(-rows // band) * number // pieces * band) for number in (piece, piece + 1))
    return start, min(stop + 1, rows)


def _breaks(kinds: NDArray[Any]) -> NDArray[np.bool_]:
    """Say for each row but the last, [N - 1], whether the next one cannot follow it: a reset follows an end, and no other row."""
    return np.asarray((kinds[:-1] == 2) != (kinds[1:] == 0))


def _broken(row: int, before: float, kind: float) -> str:
    follows = "a reset, and the row before it" if kind == 0 else "no reset, and the row before it"
    return f"row {row:,} is {follows} {'is' if before == 2 else 'is not'} the last one of an episode"
