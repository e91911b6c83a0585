"""Comparison of a converted dataset with its raw files: rows by pandas, images by pillow, frames by OpenCV."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from oracles.differences import Column, Differences
from PIL import Image

from datasets_rl.errors import UnknownKeyError
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.table import EpisodeTable

_LOSS = 8
"""Greatest difference of a pixel after JPEG, and between two conversions from YUV."""


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number, text and pixel of every row of every converted episode."""
    by_path = {path.split("/", 2)[2]: file for path, file in files.items()}
    info = json.loads(by_path["meta/info.json"].read_text())
    tables = [pd.read_parquet(file) for path, file in sorted(by_path.items()) if path.startswith("data/")]
    rows = pd.concat(tables, ignore_index=True)
    tasks = _tasks(by_path)
    differences = Differences(column)
    problems = []
    for number, start, length in zip(episodes["source"], episodes.starts, episodes.lengths, strict=True):
        mine = rows[rows["episode_index"] == number].sort_values("frame_index")
        if len(mine) != length:
            problems.append(f"episode {number} has {length} steps; the files have {len(mine)}")
            continue
        for key, values in _columns(info["features"], mine, tasks):
            differences.compare(key, int(start), values)
        ends = np.arange(length) == length - 1
        terminated = ends & mine.get("next.success", pd.Series(False, mine.index)).to_numpy(bool)
        differences.compare(("next", "terminated"), int(start), terminated)
        differences.compare(("next", "truncated"), int(start), ends & ~terminated)
        for key, values in _videos(info, by_path, int(number), len(mine)):
            _compare_frames(differences, column, key, int(start), values)
    return problems + differences.texts()


def _tasks(by_path: Mapping[str, Path]) -> dict[int, str]:
    if "meta/tasks.parquet" in by_path:
        table = pd.read_parquet(by_path["meta/tasks.parquet"]).reset_index()
        return dict(zip(table["task_index"], table["__index_level_0__"], strict=True))
    lines = map(json.loads, by_path["meta/tasks.jsonl"].read_text().splitlines())
    return {line["task_index"]: line["task"] for line in lines}


def _columns(features: Mapping[str, Any], rows: pd.DataFrame, tasks: Mapping[int, str]) -> Iterator[tuple[Key, Any]]:
    yield ("language_instruction",), np.array([tasks[task] for task in rows["task_index"]], object)
    for name, feature in features.items():
        if feature["dtype"] == "video" or name in {"index", "episode_index", "next.done"}:
            continue
        values = rows[name].to_list()
        if feature["dtype"] == "image":
            yield _key(name), np.stack([np.asarray(Image.open(io.BytesIO(one["bytes"]))) for one in values])
        elif feature["dtype"] == "language":
            yield _key(name), np.array([json.dumps([*one]) for one in values], object)
        elif feature["dtype"] == "string":
            yield _key(name), np.array(values, object)
        else:
            array = np.array(
                [np.vstack(one) if isinstance(one, np.ndarray) and one.dtype == object else one for one in values]
            )
            yield _key(name), array.astype(feature["dtype"])


def _key(name: str) -> Key:
    if name == "frame_index":
        return ("frame",)
    return tuple(name.replace("observation.images.", "observation.image.").split("."))


def _videos(info: Mapping[str, Any], by_path: Mapping[str, Path], number: int, rows: int) -> Iterator[tuple[Key, Any]]:
    for name in (name for name, feature in info["features"].items() if feature["dtype"] == "video"):
        fields = {"episode_chunk": number // info["chunks_size"], "episode_index": number, "video_key": name}
        first = 0
        if info["codebase_version"] == "v3.0":
            paths = [file for path, file in sorted(by_path.items()) if path.startswith("meta/episodes/")]
            episode = pd.concat(map(pd.read_parquet, paths)).set_index("episode_index").loc[number]
            fields |= {place: episode[f"videos/{name}/{place}"] for place in ("chunk_index", "file_index")}
            first = round(episode[f"videos/{name}/from_timestamp"] * info["fps"])
        path = info["video_path"].format(**fields)
        if path in by_path:
            yield _key(name), _frames(by_path[path])[first : first + rows]


def _frames(path: Path) -> NDArray[np.uint8]:
    capture, frames = cv2.VideoCapture(str(path)), []
    while (read := capture.read())[0]:
        frames.append(read[1][..., ::-1])
    return np.stack(frames)


def _compare_frames(differences: Differences, column: Column, key: Key, start: int, frames: NDArray[np.uint8]) -> None:
    try:
        converted = np.asarray(column(key, start, start + len(frames)))
    except UnknownKeyError:
        return
    off = np.abs(converted.astype(int) - frames).max((1, 2, 3))
    if wrong := np.flatnonzero(off > _LOSS).tolist():
        differences.add(
            dotted_name(key), f"{dotted_name(key)} at row {start + wrong[0]:,} differs by {off.max()}", len(wrong)
        )
