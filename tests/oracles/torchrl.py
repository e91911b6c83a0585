"""Comparison of converted values with the folders of TorchRL, which tensordict loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracles.differences import Column, equal_rows
from tensordict import TensorDict

from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.table import EpisodeTable

_FLAGS = ("done", "terminated", "truncated")


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, _episodes: EpisodeTable) -> list[str]:
    """Compare every number of every folder, in the order in which the buffer wrote the rows."""
    roots = [
        file.parent
        for file in files.values()
        if file.name == "meta.json" and not (file.parents[1] / "meta.json").exists()
    ]
    found: dict[str, str] = {}
    start = 0
    for root in sorted(roots):
        steps = _steps_of(root)
        stop = start + steps.shape[0]
        for key, values in steps.items(include_nested=True, leaves_only=True):
            path: Key = key if isinstance(key, tuple) else (key,)
            if path[0] in {"episode", "index", *_FLAGS} or path[-1] in {"truncated", "done"}:
                continue  # numbers of the upstream, and flags: that of the last row of a buffer is added
            raw = values.numpy()
            stored = np.asarray(column(path, start, stop)).reshape(raw.shape)
            equal = equal_rows(stored, raw)
            for row in np.flatnonzero(~equal)[:1]:
                text = f"{dotted_name(path)} at row {start + row} is {stored[row]}; {root.name} has {raw[row]}"
                found.setdefault(dotted_name(path), text)
        start = stop
    return [*found.values()]


def _steps_of(root: Path) -> Any:
    steps = TensorDict.load_memmap(root, allow_pickle=False).to_tensordict()
    if (root / "storage_metadata.json").exists():
        cursor = json.loads((root.parent / "writer" / "metadata.json").read_text())["cursor"]
        steps = torch.cat([steps[cursor:], steps[:cursor]])
    return steps.transpose(0, 1).reshape(-1) if steps.ndim == 2 else steps
