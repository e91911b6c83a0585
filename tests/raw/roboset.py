"""RoboSet's files as RoboHive's logger writes them: an HDF5 file for each seed, a group for each trial, gzip level 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from raw.case import Case, Fault
from upstreams import hub

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "NAME", "Trial", "draw", "write_file"]

NAME = "FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4"
REPOSITORY = "jdvakil/RoboSet_Sim"
SHAPES = {"env_infos/obs_dict/qp": (4,), "env_infos/proprio_dict/qv": (2,), "env_infos/rwd_dict/bonus": ()}


@dataclass(frozen=True)
class Trial:
    """A trial of h actions and h + 1 states, of which the last may be missing from the file."""

    states: Mapping[str, np.ndarray]
    """``observations`` and ``env_infos/...``, [h + 1, ...]."""
    actions: np.ndarray
    rewards: np.ndarray
    """The reward of each action, [h]."""
    done: np.ndarray | None
    """Whether each action ended the task, [h]; None where the logger did not write it."""
    by_state: bool
    """Whether the file has a row for each state, with NaN as the last action."""

    @property
    def times(self) -> np.ndarray:
        """The time of each state in seconds, [h + 1]."""
        return np.arange(len(self.actions) + 1) * 0.04

    def episode(self, number: int, seed: int) -> Episode:
        """Return the episode that must be stored."""
        length = len(self.actions)
        rows = length + self.by_state
        terminated = np.zeros((length, 1), bool) if self.done is None else self.done[:, None].astype(bool)
        truncated = np.zeros((length, 1), bool)
        truncated[-1] = not terminated[-1, 0]
        steps = {
            ("action",): wide(self.actions),
            ("next", "reward"): wide(self.rewards[:, None]),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
            ("seed",): np.full(length, seed),
            ("time",): self.times[:length],
        }
        states = {key(name): wide(values[:rows]) for name, values in self.states.items()}
        return Episode(steps, states, metadata={"trial": number, "seed": seed})


def key(name: str) -> tuple[str, ...]:
    """Return the TED key of an array."""
    root, *rest = name.split("/")
    return ({"observations": "observation", "env_infos": "info"}[root], *rest)


def wide(values: np.ndarray) -> np.ndarray:
    """Return float16 values as float32, and others unchanged."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


def draw(
    rng: np.random.Generator, length: int, *, by_state: bool = True, done: bool | None = False, dtype: Any = np.float64
) -> Trial:
    """Generate a trial; `done` is the flag of its last action, or None for a file without flags."""
    states = {"observations": rng.normal(size=(length + 1, 5)).astype(dtype)}
    for name, shape in SHAPES.items():
        states[name] = rng.normal(size=(length + 1, *shape)).astype(dtype)
    states["env_infos/solved"] = rng.random(length + 1) < 0.5
    marks = None if done is None else np.arange(length) == (length - 1 if done else length)
    return Trial(
        states, rng.normal(size=(length, 3)).astype(dtype), rng.normal(size=length).astype(dtype), marks, by_state
    )


def write_file(path: Path, trials: Mapping[int, Trial]) -> None:
    """Write a file as the logger does when it is closed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number, trial in trials.items():
            for name, values in rows_of(trial).items():
                file.create_dataset(f"Trial{number}/{name}", data=values, compression="gzip", compression_opts=4)


def rows_of(trial: Trial) -> dict[str, np.ndarray]:
    """Return the arrays of a trial by name."""
    length = len(trial.actions)
    if trial.by_state:
        # A row is a state: the first row has the reward and flag of no action, and the last row has no action.
        late = {"rewards": np.append(trial.rewards[:1] * 0 + 7, trial.rewards)}
        late["actions"] = np.concatenate([trial.actions, np.full_like(trial.actions[:1], np.nan)])
        if trial.done is not None:
            late["done"] = np.append([False], trial.done)
        return {"time": trial.times, **trial.states, **late}
    rows = {"time": trial.times[:length], "actions": trial.actions, "rewards": trial.rewards}
    if trial.done is not None:
        rows["done"] = trial.done
    return {**rows, **{name: values[:length] for name, values in trial.states.items()}}


def written(folder: Path) -> list[Episode]:
    """Write two seeds with both layouts and with and without flags; Trial10 comes after Trial2."""
    rng = np.random.default_rng(3)
    seeds: list[dict[int, Trial]] = [
        {0: draw(rng, 4), 2: draw(rng, 1, done=True), 10: draw(rng, 6)},
        {0: draw(rng, 5, by_state=False, done=None), 1: draw(rng, 3, by_state=False, done=True)},
    ]
    for seed, trials in enumerate(seeds):
        write_file(folder / NAME / f"seed{seed}_trace.h5", dict(reversed(trials.items())))
    # Datasets whose paths have the same prefix, and files that the conversion ignores.
    write_file(folder / f"{NAME}0" / "other.h5", {0: draw(rng, 2)})
    (folder / NAME / "README.md").write_text("a readme")
    return [trial.episode(number, seed) for seed, trials in enumerate(seeds) for number, trial in trials.items()]


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from the repository of the Hub."""
    with hub({REPOSITORY: folder}) as server:
        yield {"HF_ENDPOINT": server.url}


def file_of(folder: Path) -> Path:
    """Return the path of the second seed's file."""
    return folder / NAME / "seed1_trace.h5"


def corrupted(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """Return a function that changes the second seed's file."""

    def corrupt(folder: Path) -> None:
        with h5py.File(file_of(folder), "r+") as file:
            change(file)

    return corrupt


def put(name: str, values: Any) -> Callable[[h5py.File], None]:
    """Return a function that replaces an array of the file."""

    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = values

    return change


def hole(name: str, row: int) -> Callable[[h5py.File], None]:
    """Return a function that sets a row of an array to NaN."""

    def change(file: h5py.File) -> None:
        values = file[name][()]
        values[row] = np.nan
        put(name, values)(file)

    return change


def pickled(folder: Path) -> None:
    """Rename the file so that it has the suffix of a pickle."""
    file_of(folder).rename(file_of(folder).with_suffix(".pickle"))


def content(data: bytes) -> Callable[[Path], object]:
    """Return a function that replaces the bytes of the file."""
    return lambda folder: file_of(folder).write_bytes(data)


def cut(folder: Path) -> None:
    """Truncate the file to half its length."""
    data = file_of(folder).read_bytes()
    file_of(folder).write_bytes(data[: len(data) // 2])


def elsewhere(folder: Path) -> None:
    """Replace an array by an external link."""
    corrupted(lambda file: file.pop("Trial1/rewards"))(folder)
    corrupted(lambda file: file["Trial1"].__setitem__("rewards", h5py.ExternalLink("/etc/passwd", "/x")))(folder)


def bomb(file: h5py.File) -> None:
    """Replace an array by an array that declares 8 TiB and stores no data."""
    del file["Trial1/rewards"]
    file.create_dataset("Trial1/rewards", (1 << 40,), "f8", chunks=(1 << 16,))


def everything(folder: Path) -> None:
    """Delete all files."""
    for path in (folder / NAME).glob("*.h5"):
        path.unlink()


FAULTS = {
    "a column shorter than the actions": Fault(corrupted(put("Trial1/rewards", np.zeros(2))), "Trial1/rewards is [2]"),
    "a trial with an additional column": Fault(
        corrupted(put("Trial1/env_infos/more", np.zeros(3))), "it has info.more"
    ),
    "a trial with a missing column": Fault(corrupted(lambda file: file.pop("Trial1/time")), "it has no time"),
    "an observation of another width": Fault(
        corrupted(put("Trial1/observations", np.zeros((3, 6)))), "Trial1/observations is float64 [6]"
    ),
    "a NaN in an observation": Fault(
        corrupted(hole("Trial0/observations", 2)), "Trial0/observations is not finite in row 2"
    ),
    "a NaN in an action before the last": Fault(
        corrupted(hole("Trial0/actions", 1)), "Trial0/actions is not finite in row 1"
    ),
    "an action of which a part is NaN": Fault(
        corrupted(lambda file: file["Trial1/actions"].__setitem__((2, 0), np.nan)),
        "Trial1/actions is not finite in row 2",
    ),
    "a NaN in an info": Fault(corrupted(hole("Trial0/env_infos/obs_dict/qp", 0)), "qp is not finite in row 0"),
    "a group that is not a trial": Fault(corrupted(put("derived/x", np.zeros(3))), "it has derived"),
    "the schema of the real robots": Fault(corrupted(put("Trial-1/data", np.zeros(3))), "it has Trial-1"),
    "an end mark that is neither 0 nor 1": Fault(
        corrupted(put("Trial1/done", np.array([0, 2, 0]))), "numbers other than"
    ),
    "a trial without a step": Fault(
        corrupted(lambda file: [put(f"Trial1/{name}", file[f"Trial1/{name}"][:0])(file) for name in ("actions",)]),
        "Trial1",
    ),
    "text in a column": Fault(corrupted(put("Trial1/time", ["a", "b", "c"])), "Trial1/time is of type"),
    "a single value": Fault(corrupted(put("Trial1/time", 3.0)), "Trial1/time is a single value"),
    "a column with the key of another field": Fault(corrupted(put("Trial1/episode", np.zeros(3))), "another field"),
    "a pickle of the logger": Fault(pickled, "pickles"),
    "no HDF5 file at all": Fault(everything, "it has no .h5 file"),
    "a pickle called h5": Fault(content(b"\x80\x04cos\nsystem\n."), "HDF5"),
    "a git-LFS pointer": Fault(content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "git-LFS"),
    "a web page": Fault(content(b"<!DOCTYPE html><html><title>Sign in</title></html>"), "web page"),
    "a truncated file": Fault(cut, "HDF5"),
    "a link to another file": Fault(elsewhere, "link"),
    "data that was never written": Fault(corrupted(bomb), "declares"),
}


def many(folder: Path, size: int) -> None:
    """Write trials with the arrays of FK1: 75 numbers of observation and 9 of action per row."""
    rng = np.random.default_rng(0)
    names = {
        "observations": (75,),
        "env_infos/obs_dict/qp": (9,),
        "env_infos/obs_dict/qv": (9,),
        "env_infos/solved": (),
    }
    length, files = 200, 4
    a_trial = (length + 1) * 8 * (75 + 9 + 9 + 1 + 9 + 2)
    for seed in range(files):
        trials = {}
        for number in range(max(1, size // files // a_trial)):
            states = {name: rng.normal(size=(length + 1, *shape)).round(3) for name, shape in names.items()}
            actions = rng.normal(size=(length, 9)).round(3)
            trials[number] = Trial(states, actions, rng.random(length).round(2), np.zeros(length, bool), by_state=True)
        write_file(folder / NAME / f"seed{seed}_trace.h5", trials)


def everything_narrow(folder: Path) -> Sequence[Episode]:
    """Write files with the logger's default dtypes: float16 numbers and 8-bit flags."""
    rng = np.random.default_rng(5)
    trials = {number: draw(rng, 3 + number, dtype=np.float16, done=number == 0) for number in range(2)}
    name = "DAPG(human)/door_v2d-v1"
    write_file(folder / f"{name}.h5", trials)
    with h5py.File(folder / f"{name}.h5", "r+") as file:
        for number in trials:
            put(f"Trial{number}/done", file[f"Trial{number}/done"][()].astype(np.int8))(file)
    return [trial.episode(number, 0) for number, trial in trials.items()]


CASES = [
    Case(
        id=f"roboset/{NAME}",
        write=written,
        served=served,
        faults=FAULTS,
        many=many,
        small={"datasets_rl.sources.roboset._SHARD_BYTES": 10},
        manifest={"revision": "c0ffee" * 6 + "c0ff", "license": "not stated by the upstream"},
    ),
    Case(id="roboset/DAPG(human)/door_v2d-v1", write=everything_narrow, served=served),
]
