"""The items that LeRobot makes of an exported dataset, by its rules, from the files."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

FPS = 10
"""Frames per second of the exports."""


def value_of(cell: Any, dtype: str) -> Any:
    """Return a cell of a table as a tensor: images [C, H, W], floats float32, other numbers int64."""
    if dtype == "image":
        return torch.from_numpy(np.array(Image.open(io.BytesIO(cell["bytes"])), ndmin=3)).movedim(-1, 0)
    if dtype == "string":
        return cell
    kind = torch.bool if dtype == "bool" else torch.float32 if dtype.startswith("float") else torch.int64
    return torch.tensor(_as_lists(cell), dtype=kind)


def _as_lists(cell: Any) -> Any:
    """Return nested arrays of objects as lists."""
    return (
        [_as_lists(part) for part in cell]
        if isinstance(cell, np.ndarray) and cell.dtype == object
        else getattr(cell, "tolist", lambda: cell)()
    )


class ExportedItems:
    """The frames of an exported dataset with a single table.

    Args:
        folder: The export.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        features = json.loads((folder / "meta/info.json").read_text())["features"]
        self.features = {name: one["dtype"] for name, one in features.items()}
        """The dtypes of the features by name."""
        self.stats = json.loads((folder / "meta/stats.json").read_text())
        """The statistics by feature."""

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The table of the frames."""
        return pd.read_parquet(self._folder / "data/chunk-000/file-000.parquet")

    @cached_property
    def _tasks(self) -> pd.DataFrame:
        return pd.read_parquet(self._folder / "meta/tasks.parquet")

    def item(self, frame: int, seconds: Mapping[str, Sequence[float]] | None = None) -> dict[str, Any]:
        """Return the item of a frame, without features that are videos or columns of language."""
        rows, features = self.rows, self.features
        names = [name for name, dtype in features.items() if dtype not in {"video", "language"}]
        item = {name: value_of(rows[name][frame], features[name]) for name in names}
        episode = rows[rows["episode_index"] == rows["episode_index"][frame]].index
        for name, numbers in (seconds or {}).items():
            wanted = [frame + round(number * FPS) for number in numbers]
            inside = [min(max(row, episode[0]), episode[-1]) for row in wanted]
            item[name] = torch.stack([value_of(rows[name][row], features[name]) for row in inside])
            item[f"{name}_is_pad"] = torch.tensor([row != near for row, near in zip(wanted, inside, strict=True)])
        item["task"] = self._tasks.index[rows["task_index"][frame]]
        return item


def check_equal(item: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that an item has the values of another, dtypes and shapes included."""
    assert item.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, str):
            assert item[name] == value, name
        else:
            assert (item[name].dtype, item[name].shape) == (value.dtype, value.shape), name
            assert np.array_equal(item[name].numpy(), value.numpy(), equal_nan=value.is_floating_point()), name
