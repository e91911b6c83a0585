"""Logs of Udacity's simulator, ``driving_log.csv``: a row for the images of three cameras, often without a header.

column    center, left, right                  steering, throttle, brake   speed
array     observation/center, /left, /right    action [N, 3]               observation/speed

A log does not state episodes. The names of the images have the time, ``center_2019_04_02_19_25_33_671.jpg``, by which the
array ``recording`` numbers the ranges of rows without a pause.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.arrays import Array, ArrayFile, RowReader, Rows
from datasets_rl.sources.flat.csv_tables import CsvFile

_CAMERAS, _CONTROLS = ("center", "left", "right"), ("steering", "throttle", "brake")
_COLUMNS = (*_CAMERAS, *_CONTROLS, "speed")
_NUMBER = re.compile(r"\s*-?\d+(\.\d*)?(e-?\d+)?\s*", re.IGNORECASE)
_TIME = re.compile(r"(\d{4})_(\d+)_(\d+)_(\d+)_(\d+)_(\d+)_(\d+)\.\w+\s*$")
_PAUSE_SECONDS = 1.0
_LINE_MAX_BYTES = 1 << 16


class DrivingLog(ArrayFile):
    """Open log. The columns have their own names, too."""

    is_table = True

    def __init__(self, path: Path, name: str) -> None:
        self._table = CsvFile(path, name, _columns_of(path, name))
        self.take_notes_of(self._table)
        columns = self._table.arrays
        self._sources = {f"observation/{column}": column for column in (*_CAMERAS, "speed") if column in columns}
        self.arrays = {**columns, **{own: columns[column] for own, column in self._sources.items()}}
        self.contained = [*self._sources.values()]
        if all(
            column in columns and columns[column].dtype.kind in "iuf" and not columns[column].text
            for column in _CONTROLS
        ):
            rows = columns[_CONTROLS[0]].rows
            self.arrays["action"] = Array(rows, (len(_CONTROLS),), np.dtype(np.float64))
            self.contained += _CONTROLS
        self.open_question = "a driving log does not state where an episode ends"
        self._recording = self._recordings()
        if self._recording is not None:
            self.arrays["recording"] = Array(len(self._recording), (), self._recording.dtype)
            self.contained.append("recording")
            count = int(self._recording[-1]) + 1
            pauses = f"{_PAUSE_SECONDS:g} s: {count:,} by the times in the names of the images"
            self.open_question += f". The array recording numbers the ranges of rows without a pause of {pauses}"

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name == "recording" and self._recording is not None:
            yield self._recording
        elif name == "action":
            readers = [RowReader(self._table, column, rows) for column in _CONTROLS]
            for start in range(0, self.arrays[name].rows, rows):
                stop = min(start + rows, self.arrays[name].rows)
                columns = [np.asarray(reader.read(start, stop), np.float64) for reader in readers]
                yield np.stack(columns, axis=1)
        else:
            yield from self._table.blocks(self._sources.get(name, name), rows)

    def _recordings(self) -> NDArray[np.int64] | None:
        """Return the number of the range of rows without a pause, [N], or None if names of images have no time."""
        column = self._table.arrays.get(_CAMERAS[0])
        if column is None or not column.text or not column.rows:
            return None
        seconds = np.empty(column.rows)
        texts = itertools.chain.from_iterable(self._table.blocks(_CAMERAS[0], 1 << 16))
        for row, text in enumerate(texts):
            match = _TIME.search(str(text))
            if match is None:
                return None
            year, month, day, hour, minute, second, milliseconds = (part.zfill(2) for part in match.groups())
            date = f"{year}-{month}-{day}T{hour}:{minute}:{second}+00:00"
            try:
                seconds[row] = datetime.fromisoformat(date).timestamp() + int(milliseconds) / 1000
            except ValueError:
                return None
        steps = np.diff(seconds)
        self.decisions = {**self.decisions, "time-not-later": int((steps <= 0).sum())}
        if back := int(((steps < 0) & (steps >= -_PAUSE_SECONDS)).sum()):
            self.open_question += (
                f", and the times go back by less than {_PAUSE_SECONDS:g} s in {back:,} rows: sort the rows"
            )
            return None
        steps = np.append(0, steps)
        pauses: NDArray[np.int64] = np.cumsum((steps < 0) | (steps > _PAUSE_SECONDS))
        return pauses

    def __exit__(self, *details: object) -> None:
        self._table.__exit__(*details)


def _columns_of(path: Path, name: str) -> Sequence[str]:
    """Return the names of the columns of a log whose first row is data, or nothing if the first row has the names.

    Raises:
        ConversionError: If the first row is data, and has another number of cells.
    """
    with path.open("rb") as stream:
        line = stream.readline(_LINE_MAX_BYTES).decode("utf-8-sig", "replace")
    cells = next(csv.reader([line]), [])
    if len(cells) < 2 or not _NUMBER.fullmatch(cells[-1]):
        return ()
    if len(cells) != len(_COLUMNS):
        problem = f"the first row has {len(cells)} cells and no names, expected {', '.join(_COLUMNS)}"
        raise ConversionError(name, [problem])
    return _COLUMNS
