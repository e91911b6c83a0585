"""A D4RL file of a family without published digests, and corruptions that were seen in such files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from d4rl_files import write
from raw.case import Case, Fault
from servers import serve

from datasets_rl.ted.episode import Episode

__all__ = ["CASES"]

NAME = "bullet-hopper-medium-v0"
FILE = "bullet/bullet-hopper_medium.hdf5"
LENGTHS = (7, 1, 12)


def columns(lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Return the columns of a Bullet file, with next_observations; the second episode reaches the time limit."""
    rng = np.random.default_rng(3)
    rows = sum(lengths)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    full = ends & (np.repeat(np.arange(len(lengths)), lengths) % 2 == 1)
    states = [rng.normal(size=(length + 1, 15)).astype(np.float32) for length in lengths]
    return {
        "observations": np.concatenate([one[:-1] for one in states]),
        "next_observations": np.concatenate([one[1:] for one in states]),
        "actions": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": ends & ~full,
        "timeouts": full,
        "infos/action_log_probs": rng.normal(size=rows).astype(np.float32),
        "metadata/algorithm": np.bytes_(b"SAC"),
    }


def written(folder: Path) -> list[Episode]:
    """Write the file, and return the episodes that must be stored."""
    made = columns()
    place = folder / FILE
    place.parent.mkdir(parents=True)
    write(place, made, track_times=False)
    found = []
    for stop, length in zip(np.cumsum(LENGTHS), LENGTHS, strict=True):
        rows = slice(stop - length, stop)
        steps = {
            ("action",): made["actions"][rows],
            ("next", "reward"): made["rewards"][rows, None],
            ("next", "terminated"): made["terminals"][rows, None],
            ("next", "truncated"): made["timeouts"][rows, None],
        }
        states = np.concatenate([made["observations"][rows], made["next_observations"][stop - 1 : stop]])
        info = {("info", "action_log_probs"): made["infos/action_log_probs"][rows]}
        found.append(Episode(steps, {("observation",): states, **info}, metadata={"repaired": False}))
    return found


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the file as a mirror."""
    with serve({f"/{FILE}": folder / FILE}) as server:
        yield {"RLDS_MIRRORS": f"d4rl={server.url}"}


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


def bytes_of(data: bytes | Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return a function that replaces the bytes of the file."""

    def corrupt(folder: Path) -> None:
        place = folder / FILE
        place.write_bytes(data if isinstance(data, bytes) else data(place.read_bytes()))

    return corrupt


FAULTS = {
    "a truncated file": Fault(bytes_of(lambda data: data[: len(data) // 2]), "truncated"),
    "a web page instead of the file": Fault(bytes_of(b"<!DOCTYPE html><title>Sorry</title>" * 99), "web page"),
    "a git-LFS pointer": Fault(bytes_of(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "LFS"),
    "no rewards": Fault(changed(lambda file: file.__delitem__("rewards")), "rewards is missing"),
    "a column of another length": Fault(put("rewards", np.zeros(5, "f4")), "expected 20 rows"),
    "a flag that is neither 0 nor 1": Fault(put("terminals", np.full(20, 2.0)), "terminals is 2.0 at row 0"),
    "a link out of the file": Fault(
        changed(lambda file: file.__setitem__("infos/more", h5py.ExternalLink("/etc/passwd", "/"))), "link"
    ),
    "a column that claims what it does not store": Fault(
        changed(lambda file: file.create_dataset("infos/huge", (20, 1 << 30), "f8", chunks=(1, 1 << 20))), "stores"
    ),
}


def many(folder: Path, size: int) -> None:
    """Write a file with the columns of HalfCheetah, about 130 compressed bytes per step."""
    place = folder / FILE
    place.parent.mkdir(parents=True)
    write(place, columns([1000] * max(1, size // 135_000)))


CASES = [
    Case(
        id=f"d4rl/{NAME}",
        write=written,
        served=served,
        faults=FAULTS,
        many=many,
        manifest={"license": "CC BY 4.0", "metadata": {"algorithm": "SAC"}},
    )
]
