"""The table of docs/audit.md of lossy video: recordings that were exported to LeRobot 3.0 with videos, and converted.

python tests/auditing/lossy.py [--seed N] [--kept FILE] [--write] [CHECK ...]

Robots are recorded so. Faults are planted before the images become video. With a file for what was measured, a run that was
stopped goes on.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import clean
import numpy as np
from planting import CHECKS_OF_IMAGES, STRENGTHS, Fault, Planted, Strength, load_faults
from results import Results
from table import Alarms, Rows, arguments, clean_alarms, clean_lines, planted_rows, table_lines, write

from datasets_rl import download, export
from datasets_rl.auditing.conventions import Conventions
from datasets_rl.format.reader import StoredDataset

START, END = "<!-- measured by tests/auditing/lossy.py -->", "<!-- end of the measured videos -->"
EPISODES = 20
CLEAN = 40
"""Episodes of a clean recording."""
SEEDS = 3
CHECKS = tuple(sorted(CHECKS_OF_IMAGES - {Conventions.name}))
KINDS = tuple(sorted(clean.WITH_IMAGES))
"""The kinds of robots with cameras."""


@dataclass(frozen=True)
class Filmed(clean.Recording):
    """A recording that is stored as a dataset of LeRobot with videos, and read again."""

    def store(self, folder: Any) -> StoredDataset:
        """Write the dataset that is made of the videos."""
        with tempfile.TemporaryDirectory() as temporary:
            shutil.move(converted(exported(self, Path(temporary))), folder)
        return StoredDataset(folder)


def filmed(recording: clean.Recording) -> Filmed:
    """Return the recording as one of which the images were lossy video."""
    return Filmed(**{one.name: getattr(recording, one.name) for one in fields(recording)})


def exported(recording: clean.Recording, folder: Path) -> Path:
    """Write a recording in the format of LeRobot into a new folder, and return the folder of the dataset."""
    stored = clean.Recording.store(recording, folder / "stored")
    return export(stored.folder, "lerobot", folder / "lerobot", fps=30, lossy=True, images="video")


def converted(dataset: Path) -> Path:
    """Convert a dataset of LeRobot beside its folder, and return the folder of the stored dataset."""
    return download(f"url/file{dataset.resolve()}", root=dataset.parent / "converted")


def faults() -> list[Fault]:
    """Return the faults of images of robots, which are planted before the images become video."""
    return [
        replace(one, kinds=tuple(kind for kind in one.kinds if kind in KINDS), plant=_plant_before(one))
        for one in load_faults().values()
        if one.check in CHECKS
    ]


def _plant_before(fault: Fault) -> Any:
    def plant(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
        planted = fault.plant(recording, strength, rng)
        return replace(planted, recording=filmed(planted.recording))

    return plant


def clean_rows(checks: list[str], first: int, results: Results) -> tuple[int, Alarms]:
    """Return the number of clean episodes, and the false alarms."""
    false: Alarms = defaultdict(Counter)
    for kind in KINDS:
        for seed in range(first + 1, first + 1 + SEEDS):
            case = " ".join(["lossy clean", kind, str(seed), *checks])
            alarms = functools.partial(clean_alarms, kind, CLEAN, seed, checks, filmed)
            for check, level, named in results.of(case, alarms):
                false[check][level] += max(1, named)
    return SEEDS * CLEAN * len(KINDS), false


def main() -> None:
    options = arguments().parse_args()
    results, checks = Results(options.kept), options.checks or list(CHECKS)
    chosen = [
        (one, kind, strength) for one in faults() if one.check in checks for kind in one.kinds for strength in STRENGTHS
    ]
    rows: Rows = planted_rows(chosen, options.seed, results, name="lossy ", episodes=EPISODES)
    lines = table_lines(rows, episodes=EPISODES)
    lines += clean_lines(*clean_rows(checks, options.seed, results), kinds=len(KINDS))
    print("\n".join(lines))
    if options.write:
        write(lines, START, END)


if __name__ == "__main__":
    main()
