"""Reads of a dataset with damaged images, so that a verification reports these images with all other problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import IntegrityError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.read.streams import first_problems
from datasets_rl.ted.keys import NEXT, Key

_BLOCK_BYTES = 16 << 20


class ReadableColumns:
    """Columns of a dataset with zeros in place of each image that cannot be read, which is counted."""

    def __init__(self, stored: StoredDataset) -> None:
        self._stored = stored
        self._damaged: dict[str, list[str]] = {}
        self._read: set[Key] = set()

    def column(self, key: Key, start: int, stop: int) -> NDArray[Any]:
        """Return a field of consecutive rows, [stop - start, ...], see `StoredDataset.column`."""
        self._read.add(key)
        try:
            return self._stored.column(key, start, stop)
        except IntegrityError as error:
            field = self._stored.schema[key[1:] if key not in self._stored.schema and key[0] == NEXT else key]
            if field.image_form.is_array:
                raise
            if stop - start > 1:
                middle = (start + stop) // 2
                return np.concatenate([self.column(key, start, middle), self.column(key, middle, stop)])
            problems = self._damaged.setdefault(Path(error.name).name, [])
            problems += [problem for problem in error.problems if problem not in problems]
            return np.zeros((1, *field.shape), field.dtype)

    def problems(self) -> list[str]:
        """Read the images that were not read before, and return the number of damaged images, and the first ones."""
        for field in self._stored.schema:
            if not field.image_form.is_array and field.key not in self._read:
                rows = max(_BLOCK_BYTES // field.step_bytes, 1)
                for start in range(0, len(self._stored), rows):
                    self.column(field.key, start, min(start + rows, len(self._stored)))
        return [
            f"{file} has {len(problems):,} damaged image{'s' * (len(problems) > 1)}: {'; '.join(first_problems(problems))}"
            for file, problems in self._damaged.items()
        ]
