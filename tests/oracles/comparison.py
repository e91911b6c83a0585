"""Comparison of a converted dataset with its raw files by the oracle of its source, `oracles.<source>`.

An oracle opens the raw files by numpy, h5py, pyarrow or pillow, and shares nothing with the reader that it checks: an
error in the order of rows, in the alignment of rewards or in a key is found even where the reader repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import verify
from datasets_rl.format.reader import StoredDataset
from datasets_rl.ted.keys import Key
from datasets_rl.verification.run import raw_files

__all__ = ["column_of", "compare", "deep_problems", "raw_files_of"]


def compare(dataset_id: str, files: Mapping[str, Path], column: Any, episodes: Any = None) -> list[str]:
    """Compare converted values with raw files by the oracle of their source.

    Args:
        dataset_id: The id with its source.
        files: The local file of each asset, by asset path.
        column: Returns the converted values of a key and a range of rows, ``column(key, start, stop)``, [stop - start,
            ...]; strings as an array of objects. Keys under "next" work too.
        episodes: The converted episodes; "source" is their number in the upstream's order.

    Returns:
        Every difference, with the column, the row and both values; empty if there is none.
    """
    oracle = import_module(f"oracles.{dataset_id.partition('/')[0]}")
    differences: list[str] = oracle.compare(dataset_id, files, column, episodes)
    return differences


def column_of(stored: StoredDataset) -> Callable[[Key, int, int], Any]:
    """Return a function that reads a field of some rows, with texts instead of their numbers in the vocabulary."""

    def column(key: Key, start: int, stop: int) -> Any:
        values = stored.column(key, start, stop)
        field = key if key in stored.schema else key[1:]
        if field not in stored.schema or not stored.schema[field].text:
            return values
        return np.array(stored.texts(field), object)[values]

    return column


def raw_files_of(stored: StoredDataset) -> Mapping[str, Path]:
    """Return the raw files of a stored dataset, which were read in place or kept."""
    folder, name = stored.folder, stored.manifest.id.partition("/")[2]
    files = raw_files(stored.manifest, folder)
    assert files is not None, f"the raw files of {name} in {folder} are not there"
    return files


def deep_problems(folder: Path | str, **options: Any) -> list[str]:
    """Return the problems that a deep verification finds, and the differences that the oracle finds."""
    stored = StoredDataset(Path(folder))
    problems = [*verify(folder, deep=True, **options).problems]
    return problems + compare(stored.manifest.id, raw_files_of(stored), column_of(stored), stored.episodes)
