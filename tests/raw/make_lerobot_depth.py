"""Generate lerobot-0.6.1.tar.gz, datasets with depths and language columns, and what LeRobot itself reads of them.

``HF_HUB_OFFLINE=1 python -P tests/raw/make_lerobot_depth.py FILE`` needs lerobot 0.6.1 with its dependencies. The folders ``video``
and ``image`` have the same depths, as videos and as TIFF files; ``video.npz`` and ``image.npz`` have the depths that
`LeRobotDataset` returns, in millimeters and in meters.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

FPS = 10
LENGTHS = (4, 2)
SIZE = (16, 32)
DEPTHS = {"observation.images.depth": np.uint16, "observation.images.far": np.float32}
"""Cameras: millimeters as integers, and meters as floats."""


def depth_of(name: str, row: int) -> np.ndarray:
    """Return the depth that a camera recorded, [rows, columns, 1]; some pixels have none, some are beyond 10 m."""
    ramp = np.linspace(0, 5, SIZE[1])[None, :] + np.linspace(0, 5.5, SIZE[0])[:, None] + 0.2 + row / 10
    ramp[:4, :4] = 0
    if DEPTHS[name] == np.uint16:
        return np.rint(ramp * 1000).astype(np.uint16)[..., None]
    return ramp.astype(np.float32)[..., None]


def persistent_of(episode: int) -> list[dict[str, Any]]:
    """Return the language that holds for a whole episode."""
    said = {"role": "assistant", "style": "subtask", "camera": None, "tool_calls": None}
    return [{**said, "content": f"open drawer {episode} → pull", "timestamp": time} for time in (0.0, 0.25)]


def events_of(episode: int, row: int) -> list[dict[str, Any]]:
    """Return the events at a row: mostly none."""
    if row != 1:
        return []
    asked = {"role": "user", "content": "what is left?", "style": "vqa", "camera": "observation.images.depth"}
    called = {"role": "assistant", "content": None, "style": None, "camera": None}
    call = json.dumps({"function": {"name": "say", "arguments": {"text": f"cup {episode}"}}})
    return [{**asked, "tool_calls": None}, {**called, "tool_calls": [call]}]


def _add_language(root: Path) -> None:
    from lerobot.datasets.language import (
        language_events_arrow_type,
        language_feature_info,
        language_persistent_arrow_type,
    )

    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"] |= language_feature_info()
    path.write_text(json.dumps(info))
    (path,) = (root / "data").rglob("*.parquet")
    table = parquet.read_table(path)
    rows = list(zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True))
    said = [("role", pa.string()), ("content", pa.string()), ("style", pa.string()), ("camera", pa.string())]
    calls = ("tool_calls", pa.list_(pa.string()))  # Arrow makes no JSON from Python, and casts it
    plain = pa.list_(pa.struct([*said[:3], ("timestamp", pa.float32()), said[3], calls]))
    persistent = pa.array([persistent_of(episode) for episode, _ in rows], plain).cast(language_persistent_arrow_type())
    plain = pa.list_(pa.struct([*said, calls]))
    events = pa.array([events_of(*row) for row in rows], plain).cast(language_events_arrow_type())
    table = table.append_column("language_persistent", persistent).append_column("language_events", events)
    table = table.replace_schema_metadata(None)
    parquet.write_table(table, path)


def main(path: str) -> None:
    """Write the archive."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with tempfile.TemporaryDirectory() as folder:
        for kind in ("video", "image"):
            root = Path(folder) / kind
            names, info = ["height", "width", "channels"], {"is_depth_map": True}
            features: dict[str, Any] = {
                name: {"dtype": kind, "shape": (*SIZE, 1), "names": names, "info": dict(info)} for name in DEPTHS
            }
            features["action"] = {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}
            dataset = LeRobotDataset.create("me/depth", FPS, features, root=root, use_videos=kind == "video")
            for length in LENGTHS:
                for row in range(length):
                    frame = {name: depth_of(name, row) for name in DEPTHS}
                    dataset.add_frame({**frame, "action": np.full(2, row, np.float32), "task": "look"})
                dataset.save_episode()
            dataset.finalize()
            _add_language(root)
            read = {}
            for unit in ("mm", "m"):
                again = LeRobotDataset("me/depth", root=root, video_backend="pyav", depth_output_unit=unit)
                for name in DEPTHS:
                    frames = [again[row][name].numpy() for row in range(sum(LENGTHS))]
                    read[f"{unit}/{name}"] = np.stack(frames)[:, 0]
            np.savez_compressed(Path(folder) / f"{kind}.npz", **read)
        with tarfile.open(path, "w:gz") as archive:
            for name in ("video", "image", "video.npz", "image.npz"):
                archive.add(Path(folder) / name, name)


if __name__ == "__main__":
    main(sys.argv[1])
