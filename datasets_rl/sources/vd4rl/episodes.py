"""V-D4RL's ``.npz`` files: an episode each, as DreamerV2 writes them, 64 pixels, [R, H, W, 3]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.schema import Column
from datasets_rl.read.npz import NpzFile
from datasets_rl.sources.vd4rl.rows import BLOCK_BYTES, PIXELS, USUAL_ROWS, Marks, RowReader, described
from datasets_rl.ted.episode import Episode

__all__ = ["EpisodeFiles"]

_SMALL_BYTES = 256 << 20
_NEEDED = ("image", "action", "reward", "is_first", "is_last")
_MARKS = ("is_first", "is_last", "is_terminal")


class EpisodeFiles(RowReader):
    """Files of an episode each; a part is the number and the path of each, by default all in the order of their names."""

    def _stored(self, path: str) -> Sequence[Column]:
        with NpzFile(self._files[path], path.rpartition("/")[2]) as file:
            return [*self._described(path, file).values()]

    def pieces(self, part: Any) -> Iterator[Episode]:
        """Yield the episodes of these files."""
        for number, path in part or enumerate(sorted(self._files)):
            with NpzFile(self._files[path], path.rpartition("/")[2]) as file:
                if _is_empty(file):
                    self.found["no-transition"] += 1
                else:
                    yield from self._episode(number, path, file)

    def _described(self, path: str, file: NpzFile) -> dict[str, Column]:
        """Return the columns of a file by their names in it, once it has what it must have."""
        faults = [f"it has no array {name}" for name in _NEEDED if name not in file.arrays]
        if not {"is_terminal", "discount"} & set(file.arrays):
            faults.append("it has neither is_terminal nor discount")
        faults += [f"{name} holds Python objects; expected numbers" for name, one in file.arrays.items() if one.pickled]
        faults += [f"{name} is a single value; expected rows" for name, one in file.arrays.items() if not one.shape]
        columns: dict[str, Column] = {}
        if not faults:
            columns = described({name: one for name, one in file.arrays.items() if name not in _MARKS}, faults)
        if faults:
            raise self.failed(path, faults)
        return columns

    def _episode(self, number: int, path: str, file: NpzFile) -> Iterator[Episode]:
        columns = self._described(path, file)
        rows = file.arrays["image"].shape[0]
        if faults := [*self.unlike_others([*columns.values()]), *_misplaced(path, file, rows)]:
            raise self.failed(path, faults)
        small = {name: file.read(name) for name in columns if name != "image"}
        marks = self._cut(self._marks(path, file, small, rows), small)
        values = {column.key: small[name] for name, column in columns.items() if name in small}
        values = {key: self.value(key, one) for key, one in values.items() if key in self.wanted}
        metadata = {"source": np.int64(number)}
        if PIXELS not in self.wanted:
            yield from self.transitions(values, marks, metadata)
            return
        for start, images in _pictures(file, rows):
            window = slice(start, start + len(images))
            piece = {key: one[window] for key, one in values.items()} | {PIXELS: images}
            yield from self.transitions(piece, marks[window], metadata)

    def _marks(self, path: str, file: NpzFile, small: Mapping[str, NDArray[Any]], rows: int) -> Marks:
        """Read what the rows are.

        Raises:
            ConversionError: If the marks do not say that the file is an episode, from its first row to its last.
        """
        found = {name: file.read(name).reshape(-1) for name in _MARKS if name in file.arrays}
        self.found["flags-one-longer"] += any(len(one) > rows for one in found.values())
        self.found["unusual-length"] += rows != USUAL_ROWS
        if "is_terminal" not in found:
            found["is_terminal"] = np.arange(rows) == rows - 1
            found["is_terminal"][-1] = small["discount"].reshape(-1)[-1] == 0
            self.found["terminal-from-discount"] += 1
        faults = [f"{name} has values beside 0 and 1" for name, one in found.items() if not np.isin(one, (0, 1)).all()]
        first, last, terminal = (found[name][:rows] == 1 for name in _MARKS)
        if not first[0]:
            faults.append("row 0 is not marked as the first one")
        faults += [f"row {row} is marked as a first one, as row 0 is" for row in np.flatnonzero(first[1:])[:3] + 1]
        faults += [f"row {row} of {rows} is marked as the last one" for row in np.flatnonzero(last[:-1])[:3]]
        faults += [f"row {row} is marked terminal, and not last" for row in np.flatnonzero(terminal & ~last)[:3]]
        if not last[-1] and len(found["is_last"]) == rows:
            faults.append(f"row {rows - 1}, with which it ends, is not marked as the last one")
        if faults:
            raise self.failed(path, faults)
        return Marks(first, last, terminal)

    def _cut(self, marks: Marks, small: Mapping[str, NDArray[Any]]) -> Marks:
        """End every episode, also where the upstream's tool put the flags on rows of another one.

        row       0     1      2    ...            flags put on blindly: the reset is the row that has no action
        action    a_499 nothing a_0                and no reward, and not row 0
        """
        ends, first = marks.ends.copy(), marks.first
        nothing = np.flatnonzero(~small["action"].any(axis=1) & (small["reward"].reshape(-1) == 0))
        if len(nothing) == 1 and nothing[0]:
            ends[nothing - 1] = True
            first = np.arange(len(ends)) == nothing[0]
            self.found["reset-inside-file"] += 1
            self.found["row-without-step"] += int(nothing[0] == 1) + int(nothing[0] == len(ends) - 1)
        ends[-1] = True
        self.found["end-without-flag"] += int(np.count_nonzero(ends & ~marks.ends))
        return Marks(first, ends, marks.terminal)


def _is_empty(file: NpzFile) -> bool:
    """Say whether a file has a reset alone, or nothing: no transition can be made of it."""
    arrays = [one for name, one in file.arrays.items() if name not in _MARKS]
    return bool(arrays) and all(len(one.shape) > 0 and one.shape[0] < 2 for one in arrays)


def _misplaced(path: str, file: NpzFile, rows: int) -> Iterator[str]:
    """Yield where a file contradicts itself, or its name."""
    for name, one in file.arrays.items():
        if one.shape[0] != rows and not (name in _MARKS and one.shape[0] == rows + 1):
            yield f"{name} has {one.shape[0]:,} rows; image has {rows:,}"
    words = Path(path).stem.split("-")
    if len(words) == 3 and words[2] != str(rows):
        yield f"it has {rows:,} rows; its name says {words[2]}"
    declared = sum(one.dtype.itemsize * prod(one.shape) for name, one in file.arrays.items() if name != "image")
    if declared > _SMALL_BYTES:
        yield f"its arrays beside the pictures declare {declared:,} bytes; expected {_SMALL_BYTES:,} at most"


def _pictures(file: NpzFile, rows: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield pictures in blocks, with the first row of each; a block begins with the last picture of the one before."""
    reader = file.open("image")
    block = max(1, BLOCK_BYTES // max(1, prod(reader.shape[1:])))
    before: NDArray[np.uint8] = np.empty((0, *reader.shape[1:]), np.uint8)
    for start in range(0, rows, block):
        images: NDArray[np.uint8] = np.empty((len(before) + min(block, rows - start), *reader.shape[1:]), np.uint8)
        images[: len(before)] = before
        reader.read_into(images[len(before) :])
        yield start - len(before), images
        before = images[-1:]
