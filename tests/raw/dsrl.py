"""A DSRL file: D4RL's layout with costs, and all next observations in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from d4rl_files import write
from raw.case import Case, Fault
from raw.d4rl import LENGTHS, columns
from upstreams import hub

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "FILE", "safe_columns"]

NAME = "OfflineCarCircle-v0"
FILE = "SafetyCarCircle-v0-100-1450.hdf5"


def safe_columns(lengths: Any = LENGTHS) -> dict[str, Any]:
    """Return the columns of a file, with costs of 0 and 1."""
    made = columns(lengths)
    rows = len(made["rewards"])
    names = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")
    costs = (np.random.default_rng(1).random(rows) < 0.3).astype(np.float32)
    return {**{name: made[name] for name in names}, "costs": costs}


def written(folder: Path) -> list[Episode]:
    """Write the file, and return the episodes that must be stored."""
    made = safe_columns()
    write(folder / FILE, made, track_times=False)
    found = []
    for stop, length in zip(np.cumsum(LENGTHS), LENGTHS, strict=True):
        rows = slice(stop - length, stop)
        steps = {
            ("action",): made["actions"][rows],
            ("next", "reward"): made["rewards"][rows, None],
            ("next", "cost"): made["costs"][rows, None],
            ("next", "terminated"): made["terminals"][rows, None],
            ("next", "truncated"): made["timeouts"][rows, None],
        }
        states = np.concatenate([made["observations"][rows], made["next_observations"][stop - 1 : stop]])
        found.append(Episode(steps, {("observation",): states}, metadata={"repaired": False}))
    return found


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the file as the repository on the hub."""
    with hub({"YYY-45/DSRL": folder}) as server:
        yield {"HF_ENDPOINT": server.url}


def changed(act: Callable[[h5py.File], object]) -> Callable[[Path], object]:
    """Return a function that changes the open file with `act`."""

    def corrupt(folder: Path) -> None:
        with h5py.File(folder / FILE, "r+") as file:
            act(file)

    return corrupt


def put(name: str, value: Any) -> Callable[[Path], object]:
    """Return a function that replaces a dataset of the file."""

    def act(file: h5py.File) -> None:
        del file[name]
        file[name] = value

    return changed(act)


FAULTS = {
    "no costs": Fault(changed(lambda file: file.__delitem__("costs")), "costs is missing"),
    "costs of another length": Fault(put("costs", np.zeros(5, "f4")), "expected 20 rows"),
    "two costs for each step": Fault(put("costs", np.zeros((20, 2), "f4")), "expected [20] or [20, 1]"),
    "no rewards": Fault(changed(lambda file: file.__delitem__("rewards")), "rewards is missing"),
    "a truncated file": Fault(
        lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:3000]), "truncated"
    ),
    "a web page": Fault(
        lambda folder: (folder / FILE).write_bytes(b"<!DOCTYPE html><title>Sorry</title>" * 99), "page"
    ),
}


def many(folder: Path, size: int) -> None:
    """Write a file of episodes of a thousand steps."""
    write(folder / FILE, safe_columns([1000] * max(1, size // 135_000)))


CASES = [Case(f"dsrl/{NAME}", written, served, faults=FAULTS, many=many, manifest={"license": "CC BY 4.0"})]
