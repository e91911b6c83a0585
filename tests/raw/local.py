"""User files for the `local` source: an npz file for each episode, HDF5 like D4RL's, tables of episodes, Dreamer's npz."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from raw.case import Case, Fault
from upstreams import bucket, hub

from datasets_rl.ted.episode import Episode, TextStates

__all__ = ["CASES", "DREAMER", "FOLDER", "HDF5", "NPZ", "TABLE", "npz"]

FOLDER = "lab/gripper"
NPZ = """\
name = "Gripper, second run"
license = "CC-BY-4.0"
citation = "the lab, 2026"
known_issues = ["the second joint was loose"]
alignment = "one-more"

[episodes]
by = "file"

[fields]
observation.joints = { array = "obs/joints", low = -9.0, high = [9.0, 9.0, 8.0] }
observation.camera = { array = "frames", layout = "HWC to CHW", low = 0, high = 255 }
task = "task"
action = { array = "choice", n = 4 }
reward = "r"
"""
HDF5 = 'name = "Hopper at home"\nlicense = "MIT"\nhomepage = "https://example.org"\n'
TABLE = """\
name = "Arm"
license = "Apache-2.0"
citation = "us"
alignment = "one-more"
files = "table-*.parquet"

[episodes]
by = "column"
array = "episode_index"

[fields]
observation.state = "observation.state"
observation.pose = "pose/xyz"
info.note = "note"
truncated = "cut"
reward = 0.5
"""
DREAMER = """\
name = "Walker"
license = "MIT"
citation = "us"
alignment = "action-before"
files = ["run/*.npz"]
format = "npz"

[episodes]
by = "lengths"
array = "sizes"
"""
LENGTHS = (3, 1, 6, 4, 2)


def drawn(length: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the random arrays of an episode of `length` steps."""
    return {
        "obs/joints": rng.uniform(-8, 8, (length + 1, 3)).astype(np.float32),
        "frames": rng.integers(0, 256, (length + 1, 5, 4, 3)).astype(np.uint8),
        "task": np.array([["open", "close", "ö"][one] for one in rng.integers(0, 3, length)]),
        "choice": rng.integers(0, 4, length),
        "r": rng.normal(size=(length, 1)),
        "terminated": np.arange(length) == length - 1,
        "left": rng.normal(size=4),
    }


def npz(folder: Path) -> list[Episode]:
    """Write an npz file for each episode. Episode 10 comes after episode 2."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "dataset.toml").write_text(NPZ)
    rng = np.random.default_rng(1)
    found = []
    for number, (name, length) in enumerate(zip((1, 2, 3, 10, 11), LENGTHS, strict=True)):
        made = drawn(length, rng)
        np.savez_compressed(place / f"episode_{name}.npz", **made)
        steps = {
            ("task",): TextStates.from_texts(made["task"].tolist()),
            ("action",): made["choice"],
            ("next", "reward"): made["r"],
            ("next", "terminated"): made["terminated"][:, None],
            ("next", "truncated"): np.zeros((length, 1), bool),
        }
        frames = np.ascontiguousarray(np.moveaxis(made["frames"], 3, 1))
        states = {("observation", "joints"): made["obs/joints"], ("observation", "camera"): frames}
        found.append(Episode(steps, states, metadata={"source": number, "file": number}))
    return found


def columns(lengths: Sequence[int], seed: int) -> dict[str, Any]:
    """Return random columns in the layout of D4RL."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    states = [rng.normal(size=(length + 1, 11)) for length in lengths]
    return {
        "observations": np.concatenate([one[:-1] for one in states]),
        "next_observations": np.concatenate([one[1:] for one in states]),
        "actions": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": ends & (np.arange(rows) % 2 == 0),
        "timeouts": (ends & (np.arange(rows) % 2 == 1)).astype(np.float32),
        "infos/contact": rng.integers(0, 60_000, rows).astype(np.uint16),
    }


def hdf5(folder: Path) -> list[Episode]:
    """Write two HDF5 files in the layout of D4RL. The second file ends within an episode."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "dataset.toml").write_text(HDF5)
    found = []
    for number, lengths in enumerate(((3, 7, 5), (4, 1, 6))):
        made = columns(lengths, number)
        if number:
            made["terminals"][-1], made["timeouts"][-1] = False, 0
        with h5py.File(place / f"part-{number}.h5", "w") as file:
            for name, values in made.items():
                file.create_dataset(name, data=values, compression="gzip", chunks=True)
        for row, (stop, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
            found.append(_flat(made, slice(stop - length, stop), {"source": row, "file": number}))
    cut = found[-1].steps["next", "truncated"]
    cut[-1] = True
    return found


def _flat(made: Mapping[str, Any], rows: slice, facts: Mapping[str, Any]) -> Episode:
    """Return the episode of a range of rows."""
    steps = {
        ("action",): made["actions"][rows],
        ("next", "reward"): made["rewards"][rows, None],
        ("next", "terminated"): made["terminals"][rows, None],
        ("next", "truncated"): made["timeouts"][rows, None] == 1,
    }
    last = made["next_observations"][rows.stop - 1 : rows.stop]
    states = {("observation",): np.concatenate([made["observations"][rows], last])}
    return Episode(steps, {**states, ("info", "contact"): made["infos/contact"][rows].astype(np.int32)}, metadata=facts)


def tables(folder: Path) -> list[Episode]:
    """Write three tables; the last row of an episode has its final observation, and its other values are ignored."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "dataset.toml").write_text(TABLE)
    (place / "notes.parquet").write_bytes(b"not of the data")
    rng = np.random.default_rng(2)
    found = []
    for number, lengths in enumerate(((2, 5), (3,), (1, 4))):
        rows = sum(lengths) + len(lengths)
        own = 10 * number + np.repeat(np.arange(len(lengths)), np.add(lengths, 1))
        made = {
            "episode_index": own,
            "observation.state": rng.normal(size=(rows, 4)).astype(np.float32),
            "pose": rng.normal(size=(rows, 3)),
            "note": [["", "slips", "holds"][one] for one in rng.integers(0, 3, rows)],
            "action": rng.normal(size=(rows, 2)).astype(np.float32),
            "cut": rng.integers(0, 2, rows).astype(bool) & np.append(own[2:] != own[:-2], [True, True]),
        }
        made["cut"] &= np.append(own[1:] == own[:-1], False)
        table = {name: pa.array(values) for name, values in made.items() if np.ndim(values) == 1}
        table["observation.state"] = pa.array(list(made["observation.state"]))
        table["action"] = pa.FixedSizeListArray.from_arrays(pa.array(made["action"].reshape(-1)), 2)
        xyz = pa.FixedSizeListArray.from_arrays(pa.array(made["pose"].reshape(-1)), 3)
        table["pose"] = pa.StructArray.from_arrays([xyz], ["xyz"])
        parquet.write_table(pa.table(table), place / f"table-{number}.parquet", row_group_size=4)
        start = 0
        for row, length in enumerate(lengths):
            rows_of = slice(start, start + length)
            last = (np.arange(length) == length - 1)[:, None]
            steps = {
                ("action",): made["action"][rows_of],
                ("next", "reward"): np.full((length, 1), 0.5, np.float32),
                ("next", "terminated"): np.zeros((length, 1), bool),
                ("next", "truncated"): last,
            }
            with_end = slice(start, start + length + 1)
            states = {
                ("observation", "state"): made["observation.state"][with_end],
                ("observation", "pose"): made["pose"][with_end],
                ("info", "note"): TextStates.from_texts(made["note"][with_end]),
            }
            found.append(Episode(steps, states, metadata={"source": 10 * number + row, "file": number}))
            start += length + 1
    return found


def dreamer(folder: Path) -> list[Episode]:
    """Write rows with the action that led to their observation; the action of a first row is ignored."""
    place = folder / FOLDER
    (place / "run").mkdir(parents=True)
    (place / "dataset.toml").write_text(DREAMER)
    rng = np.random.default_rng(4)
    found = []
    for number, lengths in enumerate(((4, 2), (5,))):
        rows = sum(lengths) + len(lengths)
        made = {
            "obs": rng.normal(size=(rows, 2)).astype(np.float16),
            "act": rng.normal(size=(rows, 1)).astype(">f4"),
            "rew": rng.normal(size=rows),
            "terminal": np.isin(np.arange(rows), np.cumsum(np.add(lengths, 1)) - 1).astype(np.uint8),
            "sizes": np.add(lengths, 1),
        }
        np.savez(place / "run" / f"{number}.npz", **made)
        start = 0
        for row, length in enumerate(lengths):
            led = slice(start + 1, start + length + 1)
            steps = {
                ("action",): made["act"][led].astype(np.float32),
                ("next", "reward"): made["rew"][led, None],
                ("next", "terminated"): made["terminal"][led, None] == 1,
                ("next", "truncated"): np.zeros((length, 1), bool),
            }
            states = {("observation",): made["obs"][start : start + length + 1]}
            found.append(Episode(steps, states, metadata={"source": row, "file": number}))
            start += length + 1
    return found


@contextmanager
def on_the_hub(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from a repository of the Hub."""
    with hub({"me/sets": folder}) as server:
        yield {"HF_ENDPOINT": server.url, "RLDS_MIRRORS": "local=hf://datasets/me/sets"}


@contextmanager
def in_a_bucket(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from a bucket."""
    with bucket({"mine": folder}) as server:
        yield {"STORAGE_EMULATOR_HOST": server.url, "RLDS_MIRRORS": "local=gs://mine"}


def toml(old: str, new: str) -> Callable[[Path], object]:
    """Return a function that replaces a text in the description."""

    def corrupt(folder: Path) -> None:
        place = folder / FOLDER / "dataset.toml"
        text = place.read_text()
        if old not in text:
            raise ValueError(old)
        place.write_text(text.replace(old, new))

    return corrupt


def arrays(name: str, **other: Any) -> Callable[[Path], object]:
    """Return a function that replaces arrays of an npz file. None removes an array."""

    def corrupt(folder: Path) -> None:
        place = folder / FOLDER / name
        with np.load(place) as file:
            made = {**dict(file), **{one.replace("__", "/"): value for one, value in other.items()}}
        np.savez(place, **{one: value for one, value in made.items() if value is not None})

    return corrupt


def data(name: str, content: bytes) -> Callable[[Path], object]:
    """Return a function that replaces the bytes of a file."""
    return lambda folder: (folder / FOLDER / name).write_bytes(content)


def inside(name: str, act: Callable[[h5py.File], object]) -> Callable[[Path], object]:
    """Return a function that changes an open HDF5 file."""

    def corrupt(folder: Path) -> None:
        with h5py.File(folder / FOLDER / name, "r+") as file:
            act(file)

    return corrupt


def put(name: str, value: Any) -> Callable[[Path], object]:
    """Return a function that replaces a dataset of the second HDF5 file."""

    def act(file: h5py.File) -> None:
        del file[name]
        file[name] = value

    return inside("part-1.h5", act)


def several(*corruptions: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a function that applies several corruptions."""
    return lambda folder: [corrupt(folder) for corrupt in corruptions]


def no_description(folder: Path) -> None:
    """Delete the description."""
    (folder / FOLDER / "dataset.toml").unlink()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
NPZ_FAULTS = {
    "no description": Fault(no_description, 'license = ""'),
    "a description that is not valid TOML": Fault(toml('by = "file"', "by = file"), "dataset.toml is not valid TOML"),
    "a misspelt word": Fault(toml("license", "lizense"), "lizense is unknown"),
    "an unknown way to separate episodes": Fault(toml('"file"', '"feeling"'), "expected one of file, flags, seams"),
    "a way to separate episodes without its array": Fault(toml('"file"', '"column"'), "expected also episodes.array"),
    "an unknown option of a field": Fault(toml("low = 0,", "lower = 0,"), "fields.observation.camera.lower is unknown"),
    "one of two bounds": Fault(toml("low = 0, ", ""), "has only one of low and high"),
    "two fields of one place": Fault(toml('reward = "r"', 'reward = "r"\nnext.reward = "r"'), "exclude each other"),
    "a field below next that TED does not have": Fault(toml('task = "task"', 'next.info = "task"'), "is not allowed"),
    "a file that does not exist": Fault(toml('by = "file"', 'by = "file"\n[files]'), "expected a list of strings"),
    "an array that is not there": Fault(toml('"frames"', '"images"'), "it has no array images"),
    "bounds of another shape": Fault(toml("[9.0, 9.0, 8.0]", "[9.0, 8.0]"), "but the bounds have [2]"),
    "images without channels": Fault(toml('"frames"', '"obs/joints"'), "expected images, three axes per row"),
    "errors in two files": Fault(
        several(arrays("episode_10.npz", choice=np.zeros(9, int)), arrays("episode_11.npz", r=None)),
        "episode_11.npz: it has no array r",
    ),
    "a reward of two numbers": Fault(arrays("episode_3.npz", r=np.zeros((6, 2))), "expected one number per row"),
    "another dtype than in the first file": Fault(
        arrays("episode_3.npz", obs__joints=np.zeros((7, 3))), "float64 [3], in the first file float32 [3]"
    ),
    "too few observations": Fault(
        arrays("episode_3.npz", obs__joints=np.zeros((5, 3), "f4")), "expected equal numbers"
    ),
    "an end within a file that is an episode": Fault(
        arrays("episode_3.npz", terminated=np.ones(6, bool)), "a flag is set at step 0"
    ),
    "a flag that is neither 0 nor 1": Fault(arrays("episode_3.npz", terminated=np.full(6, 2)), "is 2 at row 0"),
    "a flag that is NaN": Fault(arrays("episode_3.npz", terminated=np.full(6, np.nan)), "is nan at row 0"),
    "Python objects": Fault(arrays("episode_3.npz", choice=np.array([None] * 6)), "has Python objects"),
    "complex numbers": Fault(arrays("episode_3.npz", choice=np.zeros(6, complex)), "has dtype complex128"),
    "a file without steps": Fault(
        arrays("episode_2.npz", choice=np.zeros(0, int), r=np.zeros((0, 1)), terminated=np.zeros(0, bool)),
        "choice has no row",
    ),
    "a truncated file": Fault(
        lambda folder: (folder / FOLDER / "episode_3.npz").write_bytes(
            (folder / FOLDER / "episode_3.npz").read_bytes()[:700]
        ),
        "directory",
    ),
    "a web page instead of a file": Fault(data("episode_3.npz", b"<html>Sign in</html>" * 99), "web page"),
    "a git-LFS pointer": Fault(data("episode_3.npz", POINTER), "LFS"),
}
HDF5_FAULTS = {
    "no observations": Fault(
        inside("part-0.h5", lambda file: file.__delitem__("observations")), "described or named as observation"
    ),
    "a column of another length": Fault(put("rewards", np.zeros(5, "f4")), "expected equal numbers"),
    "a jump that no flag marks": Fault(
        put("terminals", np.zeros(11, bool)), "next_observations of row 4 is not observations of row 5"
    ),
    "a link out of the file": Fault(
        inside("part-1.h5", lambda file: file.__setitem__("infos/more", h5py.ExternalLink("/etc/passwd", "/"))), "link"
    ),
    "next observations of another shape": Fault(put("next_observations", np.zeros((11, 4))), "next_observations is"),
    "files of two formats": Fault(data("more.npz", b"PK"), "set format"),
    "an alignment that contradicts the rows": Fault(toml("license", 'alignment = "one-more"\nlicense'), "flags"),
}
TABLE_FAULTS = {
    "an episode in two pieces": Fault(
        lambda folder: _rewritten(folder, "episode_index", [10, 11, 10, 10]), "in 2 separate ranges of rows"
    ),
    "empty cells": Fault(lambda folder: _rewritten(folder, "note", ["a", None, "b", "c"]), "cells are empty"),
    "lists of unequal lengths": Fault(
        lambda folder: _rewritten(folder, "observation.state", [[1.0], [1.0, 2.0], [1.0], [1.0]]), "observation"
    ),
    "a truncated table": Fault(data("table-1.parquet", b"PAR1" + bytes(90)), "Arrow reports"),
    "no file that matches the pattern": Fault(toml("table-*", "tables-*"), "match"),
}
DREAMER_FAULTS = {
    "lengths that do not add up": Fault(arrays("run/0.npz", sizes=np.array([5, 4])), "counts 9 rows, but there are 8"),
    "an episode with a negative number of rows": Fault(
        arrays("run/0.npz", sizes=np.array([-1, 9])), "states -1 rows for episode 0"
    ),
    "lengths that are not integers": Fault(arrays("run/0.npz", sizes=np.array([5.5, 2.5])), "expected integers"),
    "a missing array that marks the episodes": Fault(arrays("run/1.npz", sizes=None), "which marks the episodes"),
}


def _rewritten(folder: Path, name: str, values: Sequence[Any]) -> None:
    """Replace a column of the second table."""
    place = folder / FOLDER / "table-1.parquet"
    table = parquet.read_table(place)
    parquet.write_table(table.set_column(table.schema.get_field_index(name), name, pa.array(values)), place)


def many_npz(folder: Path, size: int) -> None:
    """Write npz files of at most 64 MB, with frames that deflate hardly compresses."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "dataset.toml").write_text(NPZ)
    rng = np.random.default_rng(5)
    length = min(size, 50_000_000) // 10_000
    for number in range(max(1, size // 50_000_000)):
        made = drawn(length, rng)
        made["frames"] = rng.integers(0, 256, (length + 1, 64, 52, 3)).astype(np.uint8)
        np.savez_compressed(place / f"episode_{number}.npz", **made)


def many_hdf5(folder: Path, size: int) -> None:
    """Write an HDF5 file with about 250 compressed bytes per step."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "dataset.toml").write_text(HDF5)
    made = columns([1000] * max(1, size // 200_000), 0)
    with h5py.File(place / "part-0.h5", "w") as file:
        for name, values in made.items():
            file.create_dataset(name, data=values, compression="gzip", chunks=True)


def many_tables(folder: Path, size: int) -> None:
    """Write tables of 50 MB with 100 numbers per row."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "dataset.toml").write_text(TABLE)
    rng = np.random.default_rng(6)
    rows = max(1, min(size, 50_000_000) // 50_000) * 100
    for number in range(max(1, size // 50_000_000)):
        state = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=rows * 100).astype(np.float32)), 100)
        xyz = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=rows * 3)), 3)
        table = {
            "episode_index": pa.array(np.arange(rows) // 100),
            "observation.state": state,
            "pose": pa.StructArray.from_arrays([xyz], ["xyz"]),
            "note": pa.array(["holds"] * rows),
            "action": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=rows * 2).astype(np.float32)), 2),
            "cut": pa.array(np.zeros(rows, bool)),
        }
        parquet.write_table(pa.table(table), place / f"table-{number}.parquet", row_group_size=20_000)


_ID = f"local/{FOLDER}"
_SMALL = {"datasets_rl.sources.local._SHARD_BYTES": 3000}
_DESCRIBED = {"license": "CC-BY-4.0", "citation": "the lab, 2026", "known_issues": ("the second joint was loose",)}
CASES = [
    Case(
        _ID,
        npz,
        on_the_hub,
        faults=NPZ_FAULTS,
        many=many_npz,
        manifest=_DESCRIBED,
        small={"datasets_rl.sources.local._SHARD_BYTES": 5500},
    ),
    Case(
        _ID,
        hdf5,
        in_a_bucket,
        faults=HDF5_FAULTS,
        many=many_hdf5,
        manifest={"license": "MIT"},
        small=_SMALL,
        episodes=False,
    ),
    Case(_ID, tables, on_the_hub, faults=TABLE_FAULTS, many=many_tables, small=_SMALL, episodes=False),
    Case(
        _ID,
        dreamer,
        in_a_bucket,
        faults=DREAMER_FAULTS,
        small={"datasets_rl.sources.local._SHARD_BYTES": 1000},
        episodes=False,
    ),
]
