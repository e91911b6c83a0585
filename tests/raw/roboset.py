"""RoboSet's files as RoboHive's logger writes them: an HDF5 file a seed, a group a trial, everything gzipped at level 4."""

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
    """What happened in a trial: h actions, h + 1 states of which the last one may not have been logged."""

    states: Mapping[str, np.ndarray]
    """``observations`` and ``env_infos/...``, [h + 1, ...]."""
    actions: np.ndarray
    rewards: np.ndarray
    """What each action led to, [h]."""
    done: np.ndarray | None
    """Whether it led to an end, [h]; None where the logger did not write it."""
    by_state: bool
    """Rows are states, the last action is NaN."""

    @property
    def times(self) -> np.ndarray:
        return np.arange(len(self.actions) + 1) * 0.04

    def episode(self, number: int, seed: int) -> Episode:
        """What must come out."""
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
    root, *rest = name.split("/")
    return ({"observations": "observation", "env_infos": "info"}[root], *rest)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32) if values.dtype == np.float16 else values


def draw(
    dice: np.random.Generator, length: int, *, by_state: bool = True, done: bool | None = False, dtype: Any = np.float64
) -> Trial:
    """Draw a trial; `done` says whether its last action led to an end, or that nothing says so."""
    states = {"observations": dice.normal(size=(length + 1, 5)).astype(dtype)}
    for name, shape in SHAPES.items():
        states[name] = dice.normal(size=(length + 1, *shape)).astype(dtype)
    states["env_infos/solved"] = dice.random(length + 1) < 0.5
    marks = None if done is None else np.arange(length) == (length - 1 if done else length)
    return Trial(
        states, dice.normal(size=(length, 3)).astype(dtype), dice.normal(size=length).astype(dtype), marks, by_state
    )


def write_file(path: Path, trials: Mapping[int, Trial]) -> None:
    """Write a file as the logger does on closing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number, trial in trials.items():
            for name, values in rows_of(trial).items():
                file.create_dataset(f"Trial{number}/{name}", data=values, compression="gzip", compression_opts=4)


def rows_of(trial: Trial) -> dict[str, np.ndarray]:
    length = len(trial.actions)
    if trial.by_state:
        # A row is a state: the first one has a reward and a mark that no action led to, the last one no action.
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
    """Two seeds, both layouts, trials with and without an end; Trial10 comes behind Trial2."""
    dice = np.random.default_rng(3)
    seeds: list[dict[int, Trial]] = [
        {0: draw(dice, 4), 2: draw(dice, 1, done=True), 10: draw(dice, 6)},
        {0: draw(dice, 5, by_state=False, done=None), 1: draw(dice, 3, by_state=False, done=True)},
    ]
    for seed, trials in enumerate(seeds):
        write_file(folder / NAME / f"seed{seed}_trace.h5", dict(reversed(trials.items())))
    # Neighbours whose paths begin alike, and what nobody asked for.
    write_file(folder / f"{NAME}0" / "other.h5", {0: draw(dice, 2)})
    (folder / NAME / "README.md").write_text("a readme")
    return [trial.episode(number, seed) for seed, trials in enumerate(seeds) for number, trial in trials.items()]


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    with hub({REPOSITORY: folder}) as server:
        yield {"HF_ENDPOINT": server.url}


def file_of(folder: Path) -> Path:
    return folder / NAME / "seed1_trace.h5"


def spoilt(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """Change the second seed's file."""

    def spoil(folder: Path) -> None:
        with h5py.File(file_of(folder), "r+") as file:
            change(file)

    return spoil


def put(name: str, values: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = values

    return change


def hole(name: str, row: int) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        values = file[name][()]
        values[row] = np.nan
        put(name, values)(file)

    return change


def pickled(folder: Path) -> None:
    file_of(folder).rename(file_of(folder).with_suffix(".pickle"))


def content(data: bytes) -> Callable[[Path], object]:
    return lambda folder: file_of(folder).write_bytes(data)


def cut(folder: Path) -> None:
    data = file_of(folder).read_bytes()
    file_of(folder).write_bytes(data[: len(data) // 2])


def elsewhere(folder: Path) -> None:
    spoilt(lambda file: file.pop("Trial1/rewards"))(folder)
    spoilt(lambda file: file["Trial1"].__setitem__("rewards", h5py.ExternalLink("/etc/passwd", "/x")))(folder)


def bomb(file: h5py.File) -> None:
    del file["Trial1/rewards"]
    file.create_dataset("Trial1/rewards", (1 << 40,), "f8", chunks=(1 << 16,))


def everything(folder: Path) -> None:
    for path in (folder / NAME).glob("*.h5"):
        path.unlink()


FAULTS = {
    "a column shorter than the actions": Fault(spoilt(put("Trial1/rewards", np.zeros(2))), "Trial1/rewards is [2]"),
    "a trial with a column more": Fault(spoilt(put("Trial1/env_infos/more", np.zeros(3))), "it has info.more"),
    "a trial with a column less": Fault(spoilt(lambda file: file.pop("Trial1/time")), "it has no time"),
    "an observation of another width": Fault(
        spoilt(put("Trial1/observations", np.zeros((3, 6)))), "Trial1/observations is float64 [6]"
    ),
    "a NaN in an observation": Fault(
        spoilt(hole("Trial0/observations", 2)), "Trial0/observations is not finite in row 2"
    ),
    "a NaN in an action before the last": Fault(
        spoilt(hole("Trial0/actions", 1)), "Trial0/actions is not finite in row 1"
    ),
    "an action of which a part is NaN": Fault(
        spoilt(lambda file: file["Trial1/actions"].__setitem__((2, 0), np.nan)), "Trial1/actions is not finite in row 2"
    ),
    "a NaN in an info": Fault(spoilt(hole("Trial0/env_infos/obs_dict/qp", 0)), "qp is not finite in row 0"),
    "a group that is no trial": Fault(spoilt(put("derived/x", np.zeros(3))), "it has derived"),
    "the schema of the real robots": Fault(spoilt(put("Trial-1/data", np.zeros(3))), "it has Trial-1"),
    "an end mark that is neither 0 nor 1": Fault(spoilt(put("Trial1/done", np.array([0, 2, 0]))), "numbers other than"),
    "a trial without a step": Fault(
        spoilt(lambda file: [put(f"Trial1/{name}", file[f"Trial1/{name}"][:0])(file) for name in ("actions",)]),
        "Trial1",
    ),
    "text in a column": Fault(spoilt(put("Trial1/time", ["a", "b", "c"])), "Trial1/time is of type"),
    "a single value": Fault(spoilt(put("Trial1/time", 3.0)), "Trial1/time is a single value"),
    "a column that pretends to be another": Fault(spoilt(put("Trial1/episode", np.zeros(3))), "another field"),
    "a pickle of the logger": Fault(pickled, "pickles"),
    "no HDF5 file at all": Fault(everything, "it has no .h5 file"),
    "a pickle called h5": Fault(content(b"\x80\x04cos\nsystem\n."), "HDF5"),
    "a pointer of git-LFS": Fault(content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "git-LFS"),
    "a web page": Fault(content(b"<!DOCTYPE html><html><title>Sign in</title></html>"), "web page"),
    "a file that was cut": Fault(cut, "HDF5"),
    "a link to another file": Fault(elsewhere, "link"),
    "data that was never written": Fault(spoilt(bomb), "declares"),
}


def many(folder: Path, size: int) -> None:
    """Write trials of FK1's shape, 75 numbers of observation and 9 of action."""
    dice = np.random.default_rng(0)
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
            states = {name: dice.normal(size=(length + 1, *shape)).round(3) for name, shape in names.items()}
            actions = dice.normal(size=(length, 9)).round(3)
            trials[number] = Trial(states, actions, dice.random(length).round(2), np.zeros(length, bool), by_state=True)
        write_file(folder / NAME / f"seed{seed}_trace.h5", trials)


def everything_narrow(folder: Path) -> Sequence[Episode]:
    """The logger's default: numbers of 16 bits, marks of 8."""
    dice = np.random.default_rng(5)
    trials = {number: draw(dice, 3 + number, dtype=np.float16, done=number == 0) for number in range(2)}
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
        facts={"revision": "c0ffee" * 6 + "c0ff", "license": "not stated by the upstream"},
    ),
    Case(id="roboset/DAPG(human)/door_v2d-v1", write=everything_narrow, served=served),
]
