"""Reader of the steps of a stored dataset, or of selected steps, as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import UnknownKeyError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Field
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable


class StepReader:
    """Stored fields of the steps of a dataset, in ranges or in samples.

    Args:
        stored: The dataset.
        rows: Rows of the dataset that are the steps, as ranges. All rows by default.
        episodes: Table of the episodes that the steps form, by default the table of the dataset.
        keys: Keys of the visible fields, all by default.
    """

    def __init__(
        self,
        stored: StoredDataset,
        rows: RowRanges | None = None,
        episodes: EpisodeTable | None = None,
        keys: Sequence[Key] | None = None,
    ) -> None:
        self.stored = stored
        self.rows = rows
        self.episodes = stored.episodes if episodes is None else episodes
        self.fields: tuple[Field, ...] = tuple(field for field in stored.schema if keys is None or field.key in keys)

    def __len__(self) -> int:
        """Return the number of steps, N."""
        return len(self.stored) if self.rows is None else len(self.rows)

    def field(self, key: Key) -> Field:
        """Return a visible field.

        Raises:
            UnknownKeyError: If there is no such field. The error names the existing fields.
        """
        for field in self.fields:
            if field.key == key:
                return field
        raise UnknownKeyError(dotted_name(key), [field.name for field in self.fields])

    def read(self, key: Key, start: int, stop: int) -> NDArray[Any]:
        """Return a field of consecutive steps, [stop - start, ...], in the dtype of the file."""
        if self.rows is not None:
            return self._take(key, self.rows.at(np.arange(start, stop)))
        return np.asarray(self.stored.items(key)[start:stop])

    def take(self, key: Key, steps: NDArray[np.int64]) -> NDArray[Any]:
        """Return a field of steps in ascending order, [K, ...], in the dtype of the file."""
        return self._take(key, steps if self.rows is None else self.rows.at(steps))

    def _take(self, key: Key, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self.stored.schema[key].wide:
            return np.asarray(self.stored.items(key)[rows])
        return self.stored.take_fields([key], rows)[0]

    def next_state(self, key: Key, step: int) -> NDArray[Any] | None:
        """Return the value of a shared field after the action of a step, [...], or None if the value is unknown."""
        episode = int(self.episodes.episode_of(step))
        last = step == self.episodes.stops[episode] - 1
        row = step if self.rows is None else int(self.rows.at(np.array([step]))[0])
        if last and not self.episodes["final_known"][episode]:
            return None
        whole = self.stored.episodes
        number = int(whole.episode_of(row))
        if row == whole.stops[number] - 1:
            return _first(self.stored.final_states(key)[number : number + 1])
        return _first(self.stored.items(key)[row + 1 : row + 2])


def _first(items: NDArray[Any]) -> NDArray[Any]:
    first: NDArray[Any] = np.asarray(items)[0]
    return first
