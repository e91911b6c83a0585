"""Recordings with planted faults for other auditors, exported to LeRobot 3.0, and what is planted: see docs/audit.md.

python tests/auditing/peers.py FOLDER
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import clean
import numpy as np
from planting import load_faults

from datasets_rl.cli.app import main as rlds

PLANTED = {
    "teleop": ("episodes_joined", "episodes_twice", "camera_freezes", "camera_goes_black", "nan_in_actions"),
    "arm": ("red_is_blue", "upside_down", "cameras_exchanged", "camera_is_blinded", "lens_out_of_focus"),
    "clean": (),
}


def planted(kind: str, faults: Sequence[str]) -> tuple[clean.Recording, dict[str, list[int]]]:
    """Return a recording of 20 episodes with faults, none of them in an episode of another, and the episodes of each."""
    recording, episodes = clean.record(kind, 20, 3), {}
    for name in faults:
        used = {one for several in episodes.values() for one in several}
        for seed in range(1_000):
            rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
            found = load_faults()[name].plant(recording, "medium", rng)
            if not found.episodes & used:
                break
        recording, episodes[name] = found.recording, sorted(found.episodes)
    return recording, episodes


def main(folder: Path) -> None:
    for name, faults in PLANTED.items():
        recording, episodes = planted("teleop" if name == "clean" else name, faults)
        recording.store(folder / name)
        rlds(["export", str(folder / name), "--to", "lerobot", "--out", str(folder / f"lerobot-{name}"), "--fps", "30", "--lossy", "--images", "video"])  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(episodes))
        rlds(["audit", str(folder / name)])
        print(name, episodes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
