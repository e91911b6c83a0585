"""Attributes of the groups of an HDF5 file: numbers of episodes, and texts of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.sources.flat.arrays import TEXT, TEXT_CHARS, Array, ArrayFile, Hdf5Arrays, Rows
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.names import NAMES
from datasets_rl.ted.keys import ACTION, NEXT_SUCCESS
from datasets_rl.ted.table import COMPUTED

_DTYPES: Mapping[str, type] = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
_TAKEN = COMPUTED | {"source", "file"}
"""Names of the table of episodes that have another meaning."""


class GroupsFile(ArrayFile):
    """File with a group for each episode, and what the attributes of the groups state.

    success      True, False             numbers: columns of the table of episodes, [E]
    instruction  "pick", "place"         texts: arrays with the text of the episode in each row, [N]
    pose         [0.1, 0.2], [0.3, 0.4]  other values, and attributes that a group lacks, are left out

    Args:
        file: The episodes of the file, as rows that follow each other.
        source: The HDF5 file, which has the groups.
        layout: The layout. A text has a row for each action.
    """

    def __init__(self, file: ArrayFile, source: Hdf5Arrays, layout: Layout) -> None:
        self.take_notes_of(file)
        self._file = file
        groups = [source.file.attributes(group) for group in file.episode_names]
        names = dict.fromkeys(name for attributes in groups for name in attributes)
        columns = {name: [attributes.get(name) for attributes in groups] for name in names}
        fields = (one for one in layout.fields_of(file.readable) if one.key[:1] == ACTION and one.array in file.lengths)
        action = next(fields, None)
        self._stops = np.cumsum(file.lengths[action.array]) if action else np.empty(0, np.int64)
        self._texts: dict[str, Sequence[str]] = {}
        numbers: dict[str, NDArray[Any]] = {}
        for name, values in columns.items():
            column = "success" if name.lower() in NAMES[NEXT_SUCCESS] else name
            is_text = all(isinstance(value, str) and len(value) <= TEXT_CHARS for value in values)
            if is_text and action and name not in file.arrays:
                self._texts[name] = [str(value) for value in values]
            elif (
                column not in {*_TAKEN, *numbers}
                and name not in file.arrays
                and (found := _numbers(values)) is not None
            ):
                numbers[column] = found
        self.of_episodes = numbers
        kept = {*self._texts, *(name for name in names if name in numbers)}
        kept |= {name for name in names if name.lower() in NAMES[NEXT_SUCCESS]} if "success" in numbers else set()
        self.unused = tuple(name for name in names if name not in kept)
        count = int(self._stops[-1]) if len(self._stops) else 0
        self.arrays = {**file.arrays, **dict.fromkeys(self._texts, Array(count, (), TEXT, text=True))}
        self.lengths = {**file.lengths, **dict.fromkeys(self._texts, np.diff(self._stops, prepend=0))}
        self.optional = [*file.optional, *self._texts]

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name not in self._texts:
            yield from self._file.blocks(name, rows)
            return
        texts, count = self._texts[name], self.arrays[name].rows
        for start in range(0, count, rows):
            episodes = np.searchsorted(self._stops, np.arange(start, min(start + rows, count)), "right")
            yield [texts[episode] for episode in episodes.tolist()]

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)


def _numbers(values: Sequence[Any]) -> NDArray[Any] | None:
    """Return a number of each episode as an array, [E], or None if the values are not all numbers that can be stored."""
    if not all(isinstance(value, (bool, int, float)) for value in values):
        return None
    array = np.array(values)
    dtype = _DTYPES.get(array.dtype.kind)
    stored: NDArray[Any] | None = None if dtype is None else array.astype(dtype)
    is_exact = stored is not None and all(
        one == value or np.isnan(value) for one, value in zip(stored.tolist(), values, strict=True)
    )
    return stored if is_exact else None
