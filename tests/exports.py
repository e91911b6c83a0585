"""Exports that are read back by the source `local`, and the comparison of datasets bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from oracles import comparison

from datasets_rl import downloading
from datasets_rl.exporting import Content, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.ted.keys import dotted_name
from datasets_rl.testing.exports import SIDE, encoded, write_images, write_robot

__all__ = ["SIDE", "encoded", "equal_bits", "export_stored", "read_back", "write_images", "write_robot"]


def export_stored(stored: StoredDataset, to: str, out: Path, **options: Any) -> Path:
    """Export a dataset; what the format cannot hold is left out."""
    return run_export(Content(stored), to, out, **{"lossy": True, "show": False, **options})


def read_back(stored: StoredDataset, to: str, folder: Path, **options: Any) -> StoredDataset:
    """Export a dataset without loss, download the export as a dataset of `local`, and verify it against the export."""
    out = export_stored(stored, to, folder / "exported", lossy=False, **options)
    settings = Settings(home=folder / "home", progress=False, jobs=1)
    made = downloading.download("local/back", from_local=out, settings=settings)
    assert comparison.deep_problems(made, settings=settings) == []
    return StoredDataset(made)


def equal_bits(stored: StoredDataset, other: StoredDataset) -> None:
    """Assert that two datasets have the same keys, dtypes, shapes and bits; texts are compared as texts."""
    assert set(stored.keys()) == set(other.keys())
    assert stored.episodes.lengths.tolist() == other.episodes.lengths.tolist()
    assert stored.episodes["final_known"].tolist() == other.episodes["final_known"].tolist()
    for key in stored.keys():  # noqa: SIM118 -- a dataset is no dict
        wanted, got = texts_or_values(stored, key), texts_or_values(other, key)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), dotted_name(key)
        assert got.tobytes() == wanted.tobytes(), dotted_name(key)


def texts_or_values(stored: StoredDataset, key: tuple[str, ...]) -> np.ndarray:
    """Return the values of a key, [N, ...]; the texts themselves for a text field, whose codes may differ."""
    values = np.ascontiguousarray(stored.column(key))
    root = key[1:] if key[0] == "next" and key not in stored.schema else key
    if root in stored.schema and stored.schema[root].text:
        return np.asarray(stored.texts(root), object)[values].astype("U80")
    return values
