"""Comparison of converted values with RL Unplugged's records, using protobuf and gzip but none of the converting code.

The episodes are made as TensorFlow Datasets makes them: ``rlu_control_suite``, ``rlu_locomotion`` and ``rlu_rwrl``
shift the rewards and discounts of a record by one step, the last one also its actions, and mark the last step, of which
only the observation is used.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from oracles.differences import Column, Differences
from raw.tfrecords import messages

from datasets_rl.ted.table import EpisodeTable


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every value of every transition."""
    differences = Differences(column)
    start = number = 0
    rwrl = dataset_id.startswith("rl_unplugged/rwrl/")
    for path in sorted(files):
        for features in _records(files[path]):
            steps = len(features["discount"]) - 1
            if steps < 1:
                continue
            number += 1
            if number - 1 in episodes["source"]:
                _compare_episode(differences, start, features, rwrl=rwrl)
                start += steps
    if start != episodes.steps:
        differences.add("steps", f"there are {episodes.steps:,} steps; the files have {start:,}")
    return differences.texts()


def _records(path: Path) -> Iterator[dict[str, Any]]:
    data, at = path.read_bytes(), 0
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    while at < len(data):
        stop = at + 12 + int.from_bytes(data[at : at + 8], "little")
        example = messages()["t.Example"].FromString(data[at + 12 : stop])
        named = example.features.feature.items()
        yield {name: getattr(feature, feature.WhichOneof("kind")).value for name, feature in named}
        at = stop + 4


def _compare_episode(differences: Differences, start: int, features: Mapping[str, Any], *, rwrl: bool) -> None:
    length = len(features["discount"])
    shifted = {name: np.array(features[name][1:], np.float32) for name in ("reward", "discount")}
    actions = np.array(features["action"], np.float32).reshape(length, -1)
    differences.compare(("action",), start, actions[1:] if rwrl else actions[:-1])
    for name, values in shifted.items():
        differences.compare(("next", name), start, values)
    is_last = np.arange(1, length) == length - 1
    is_terminal = is_last & (shifted["discount"][-1] == 0.0)
    differences.compare(("next", "terminated"), start, is_terminal)
    differences.compare(("next", "truncated"), start, is_last & ~is_terminal)
    for name, values in features.items():
        if name.startswith("observation"):
            images = isinstance(values[0], bytes)
            rows = (
                np.frombuffer(b"".join(values), np.uint8).reshape(-1, 64, 64, 3)
                if images
                else np.array(values, np.float32).reshape(length, -1)
            )
            key = tuple(name.replace(":", "/").split("/"))
            differences.compare(key, start, rows[:-1])
            differences.compare(("next", *key), start, rows[1:])
