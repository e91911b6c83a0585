"""Generate lerobot-0.4.4.tar.gz, a dataset that LeRobot itself wrote: ``HF_HUB_OFFLINE=1 python -P tests/raw/make_lerobot.py FILE``.

It needs lerobot 0.4.4 with its dependencies. `test_lerobot` reads the archive.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FPS = 10
LENGTHS = (7, 12, 5)
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": (2,), "names": {"motors": ["pan", "lift"]}},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]},
    "observation.images.wrist": {"dtype": "image", "shape": (16, 16, 3), "names": ["height", "width", "channels"]},
}


def episodes() -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each episode."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 60, 96)[None, :, None] + np.linspace(0, 30, 64)[:, None, None]
    number = 0
    for episode, length in enumerate(LENGTHS):
        rows = []
        for row in range(length):
            rows.append(
                {
                    "observation.state": rng.normal(size=3).astype(np.float32),
                    "action": rng.normal(size=2).astype(np.float32),
                    "next.reward": rng.normal(size=1).astype(np.float32),
                    "next.done": np.array([row == length - 1]),
                    "observation.images.top": (ramp + number * 61 % 150 + np.zeros(3)).astype(np.uint8),
                    "observation.images.wrist": rng.integers(0, 255, (16, 16, 3), np.uint8),
                    "task": f"task {episode % 2}",
                }
            )
            number += 1
        yield rows


def main(path: str) -> None:
    """Write the archive."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "made"
        dataset = LeRobotDataset.create("me/made", FPS, FEATURES, root=root, robot_type="so100")
        for rows in episodes():
            for row in rows:
                dataset.add_frame(row)
            dataset.save_episode()
        dataset.finalize()
        with tarfile.open(path, "w:gz") as archive:
            for name in ("data", "meta", "videos"):
                archive.add(root / name, name)


if __name__ == "__main__":
    main(sys.argv[1])
