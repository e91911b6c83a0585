"""The dataset in the package, and the expected episodes from the script that generated it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path

import numpy as np
from raw.case import Case, Fault
from raw.make_pendulum import generate_columns

import datasets_rl.sources.demo
from datasets_rl.ted.episode import Episode

__all__ = ["CASES"]

FILE = "pendulum.hdf5"
LENGTH = 200


def written(folder: Path) -> list[Episode]:
    """Copy the file of the package, and return the episodes that must be stored."""
    shutil.copyfile(str(files(datasets_rl.sources.demo).joinpath(FILE)), folder / FILE)
    made = generate_columns()
    found = []
    for start in range(0, len(made["rewards"]), LENGTH):
        rows = slice(start, start + LENGTH)
        steps = {
            ("action",): made["actions"][rows],
            ("next", "reward"): made["rewards"][rows, None],
            ("next", "terminated"): made["terminals"][rows, None],
            ("next", "truncated"): made["timeouts"][rows, None],
        }
        last = made["next_observations"][start + LENGTH - 1 : start + LENGTH]
        infos = {("info", name): made[f"infos/{name}"][rows] for name in ("qpos", "qvel", "policy")}
        states = {("observation",): np.concatenate([made["observations"][rows], last]), **infos}
        found.append(Episode(steps, states, metadata={"repaired": False}))
    return found


def served(_: Path) -> nullcontext[Mapping[str, str]]:
    """Return no environment variables: the file is read from the package."""
    return nullcontext({})


def edited(folder: Path) -> None:
    """Flip a bit in the middle of the file."""
    place = folder / FILE
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)


# The last bit of a sine differs between processors.
_LAST_BITS = ("observation", "action", "next.observation", "next.reward", "info.qpos", "info.qvel")

CASES = [
    Case(
        id="demo/pendulum",
        write=written,
        served=served,
        faults={"a file that was edited": Fault(edited, "sha256")},
        manifest={"license": "MIT"},
        lossy=dict.fromkeys(_LAST_BITS, 1e-3),
    )
]
