"""Layouts of files that people have, each with the same three episodes."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa

LENGTHS = np.array([4, 6, 3])
STEPS = int(LENGTHS.sum())
STOPS = np.cumsum(LENGTHS)
STARTS = STOPS - LENGTHS
LAST = np.isin(np.arange(STEPS), STOPS - 1)
TERMINATED = np.isin(np.arange(STEPS), STOPS[[0, 2]] - 1)
TRUNCATED = LAST & ~TERMINATED
NUMBERS = np.repeat(np.arange(3), LENGTHS)
_DRAW = np.random.default_rng(35)
STATES = [_DRAW.normal(size=(length + 1, 3)).round(6) for length in LENGTHS]
"""The states of each episode, [T + 1, 3]."""
ACTIONS = [_DRAW.uniform(-1, 1, size=(length, 2)).round(6) for length in LENGTHS]
REWARDS = [_DRAW.normal(size=length).round(6) for length in LENGTHS]
OBS = np.concatenate([states[:-1] for states in STATES])
NEXT_OBS = np.concatenate([states[1:] for states in STATES])
ALL_OBS = np.concatenate(STATES)
ACTION = np.concatenate(ACTIONS)
REWARD = np.concatenate(REWARDS)


@dataclass(frozen=True)
class Layout:
    """Files of the three episodes."""

    write: Callable[[Path], Path]
    """Writes the files into a folder, and returns the path that the user names."""
    toml: str = ""
    """Description that the user has to write beside the files, of at most five lines."""
    rewards: bool = True
    terminated: bool = True
    """Whether the files have the flags of terminations; else every episode ends as truncated."""
    finals: bool = False
    """Whether the files have the states after the last steps."""


def npz(**arrays: Any) -> Callable[[Path], Path]:
    """Return a writer of one npz file."""

    def write(folder: Path) -> Path:
        np.savez(folder / "data.npz", **arrays)
        return folder / "data.npz"

    return write


def hdf5(arrays: Mapping[str, Any], name: str = "data.hdf5") -> Callable[[Path], Path]:
    """Return a writer of one HDF5 file."""

    def write(folder: Path) -> Path:
        with h5py.File(folder / name, "w") as file:
            for path, values in arrays.items():
                file[path] = values
        return folder / name

    return write


def files(kind: str, episodes: list[dict[str, Any]], name: str = "episode_{}") -> Callable[[Path], Path]:
    """Return a writer of a file for each episode."""

    def write(folder: Path) -> Path:
        for number, arrays in enumerate(episodes):
            if kind == "npz":
                np.savez(folder / f"{name.format(number)}.npz", **arrays)
            else:
                hdf5(arrays, f"{name.format(number)}.hdf5")(folder)
        return folder

    return write


def text(name: str, content: Callable[[], str]) -> Callable[[Path], Path]:
    """Return a writer of one file of text, packed if the name says so."""

    def write(folder: Path) -> Path:
        data = content().encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return folder / name

    return write


def dump(value: Any, name: str = "data.pkl") -> Callable[[Path], Path]:
    """Return a writer of a pickle, or of an npy file of objects."""

    def write(folder: Path) -> Path:
        if name.endswith(".npy"):
            np.save(folder / name, np.array(value, dtype=object), allow_pickle=True)
        else:
            (folder / name).write_bytes(pickle.dumps(value))
        return folder / name

    return write


def frame(kind: Callable[[pd.DataFrame, Path], Any], name: str, **columns: Any) -> Callable[[Path], Path]:
    """Return a writer of a table."""

    def write(folder: Path) -> Path:
        kind(pd.DataFrame(columns), folder / name)
        return folder / name

    return write


def padded(values: list[np.ndarray], more: int = 0) -> np.ndarray:
    """Return arrays of episodes as one array, [E, T, ...], padded with zeros."""
    whole = np.zeros((3, max(LENGTHS) + more, *values[0].shape[1:]))
    for number, own in enumerate(values):
        whole[number, : len(own)] = own
    return whole


def tianshou(folder: Path, newest: int = 4) -> Path:
    """Write a full ring of tianshou, whose newest step is in a row in the middle."""
    flags = {"terminated": TERMINATED, "truncated": TRUNCATED, "done": LAST}
    arrays = {"obs": OBS, "obs_next": NEXT_OBS, "act": ACTION, "rew": REWARD, **flags}
    path = hdf5({f"_meta/{name}": np.roll(values, newest + 1, axis=0) for name, values in arrays.items()})(folder)
    with h5py.File(path, "a") as file:
        file["last_index"], file["_indices"] = np.array([newest]), np.arange(STEPS)
        file.attrs.update(maxsize=STEPS, _size=STEPS, stack_num=1)
    return path


def trajectories(folder: Path, episodes: list[dict[str, Any]] | None = None) -> Path:
    """Write a folder of the package datasets with a row for each episode, as imitation saves trajectories."""
    own = episodes or [
        {
            "obs": STATES[n],
            "acts": ACTIONS[n],
            "infos": np.array(["{}"] * len(ACTIONS[n])),
            "terminal": n != 1,
            "rews": REWARDS[n],
        }
        for n in range(3)
    ]
    rows = [{name: np.asarray(values).tolist() for name, values in episode.items()} for episode in own]
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return folder


FLAT = {"observations": OBS, "actions": ACTION, "rewards": REWARD}
FLAGS = {"terminals": TERMINATED, "timeouts": TRUNCATED}
ELEMENTS = {
    **{f"obs_{number}": OBS[:, number] for number in range(3)},
    **{f"action_{number}": ACTION[:, number] for number in range(2)},
}
EPISODES = [
    {
        "observations": STATES[number][:-1],
        "actions": ACTIONS[number],
        "rewards": REWARDS[number],
        "terminals": TERMINATED[number == NUMBERS],
    }
    for number in range(3)
]
NESTED = {
    "obs": OBS.tolist(),
    "action": ACTION.tolist(),
    "reward": REWARD,
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
}
GROUPS = {
    f"{{}}{number}/{name}": values
    for number, episode in enumerate(EPISODES)
    for name, values in {
        "obs": episode["observations"],
        "action": episode["actions"],
        "reward": episode["rewards"],
    }.items()
}
CSV = lambda table, path: table.to_csv(path)  # noqa: E731


def groups(prefix: str) -> dict[str, Any]:
    """Return the arrays of the episodes in groups."""
    return {name.format(prefix): values for name, values in GROUPS.items()}


LAYOUTS: Mapping[str, Layout] = {
    "flat arrays with D4RL's flags": Layout(npz(**FLAT, **FLAGS)),
    "flat arrays with next observations": Layout(npz(**FLAT, **FLAGS, next_observations=NEXT_OBS), finals=True),
    "flat arrays with `dones`": Layout(
        npz(obs=OBS, acts=ACTION, rews=REWARD, terminated=TERMINATED, truncated=TRUNCATED)
    ),
    "stable-baselines' expert file": Layout(
        npz(
            obs=OBS,
            actions=ACTION,
            rewards=REWARD,
            episode_starts=np.isin(np.arange(STEPS), STARTS),
            episode_returns=[rewards.sum() for rewards in REWARDS],
        ),
        terminated=False,
    ),
    "imitation's rollouts": Layout(
        npz(
            obs=ALL_OBS,
            acts=ACTION,
            rews=REWARD,
            infos=np.array([{}] * STEPS),
            indices=STOPS[:-1],
            terminal=np.array([True, False, True]),
        ),
        finals=True,
    ),
    "lengths of episodes": Layout(npz(**FLAT, episode_lengths=LENGTHS), terminated=False),
    "ends of episodes, as in diffusion policy": Layout(npz(**FLAT, episode_ends=STOPS), terminated=False),
    "last rows of episodes": Layout(npz(**FLAT, traj_ends=STOPS - 1), terminated=False),
    "first rows of trajectories": Layout(npz(**FLAT, traj_starts=STARTS), terminated=False),
    "a number of the trajectory in each row": Layout(npz(**FLAT, traj_id=NUMBERS), terminated=False),
    "a number of the step in each row": Layout(
        npz(**FLAT, timestep=np.arange(STEPS) - STARTS[NUMBERS]), terminated=False
    ),
    "no rewards": Layout(npz(states=OBS, actions=ACTION, dones=LAST), rewards=False),
    "expert_observations, expert_actions": Layout(
        npz(expert_observations=OBS, expert_actions=ACTION, episode_lengths=LENGTHS), rewards=False, terminated=False
    ),
    "observations [E, T + 1, ...], padded, with lengths": Layout(
        npz(obs=padded(STATES, 1), actions=padded(ACTIONS), rewards=padded(REWARDS), lengths=LENGTHS),
        terminated=False,
        finals=True,
    ),
    "observations [E, T, ...], padded, with a mask": Layout(
        npz(
            obs=padded([states[:-1] for states in STATES]),
            actions=padded(ACTIONS),
            rewards=padded(REWARDS),
            mask=np.arange(max(LENGTHS)) < LENGTHS[:, None],
        ),
        terminated=False,
    ),
    "an npz file for each episode": Layout(files("npz", EPISODES)),
    "an npz file for each episode, with the last observation": Layout(
        files("npz", [{"obs": STATES[n], "action": ACTIONS[n], "reward": REWARDS[n]} for n in range(3)]),
        terminated=False,
        finals=True,
    ),
    "an HDF5 file for each episode, as ACT records": Layout(
        files("hdf5", [{"observations/qpos": STATES[n][:-1], "action": ACTIONS[n]} for n in range(3)]),
        rewards=False,
        terminated=False,
    ),
    "prefixes of episodes in an npz file": Layout(npz(**groups("episode_")), terminated=False),
    "groups of episodes in an HDF5 file": Layout(hdf5(groups("demo_")), terminated=False),
    "groups of episodes below a group": Layout(hdf5(groups("runs/rollout")), terminated=False),
    "arrays with the number of the episode": Layout(
        hdf5({f"{name}_{n}": values for n in range(3) for name, values in EPISODES[n].items() if name != "terminals"}),
        terminated=False,
    ),
    "d3rlpy's buffer": Layout(
        hdf5(
            {
                "columns": ["observations", "actions", "rewards", "terminated"],
                "num_episodes": 3,
                "version": "2.1",
                **{
                    f"{name}_{n}": values
                    for n in range(3)
                    for name, values in {
                        "observations": STATES[n][:-1],
                        "actions": ACTIONS[n],
                        "rewards": REWARDS[n][:, None],
                        "terminated": n != 1,
                    }.items()
                },
            },
            "buffer.h5",
        )
    ),
    "flat HDF5 arrays with names of your own": Layout(
        hdf5({"x": OBS, "u": ACTION, "r": REWARD, "end": TERMINATED, "stop": TRUNCATED}),
        '[fields]\nobservation = "x"\naction = "u"\nreward = "r"\nterminated = "end"\ntruncated = "stop"',
    ),
    "flat HDF5 arrays in groups": Layout(
        hdf5({"obs/state": OBS, "action": ACTION, "reward": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED})
    ),
    "CSV with a column for each element": Layout(
        frame(CSV, "data.csv", **ELEMENTS, reward=REWARD, terminated=TERMINATED, truncated=TRUNCATED)
    ),
    "CSV with brackets and an episode column": Layout(
        frame(
            CSV,
            "data.csv",
            episode=NUMBERS,
            **{name.replace("_", "[") + "]": values for name, values in ELEMENTS.items()},
            reward=REWARD,
        ),
        terminated=False,
    ),
    "CSV with lists in cells": Layout(frame(CSV, "data.csv", **NESTED)),
    "CSV with numpy's lists in cells": Layout(
        frame(
            CSV,
            "data.csv",
            state=[str(row.tolist()).replace(",", "") for row in OBS],
            action=[str(row.tolist()).replace(",", " ") for row in ACTION],
            reward=REWARD,
            trial_id=NUMBERS,
        ),
        terminated=False,
    ),
    "CSV without rewards": Layout(frame(CSV, "data.csv", **ELEMENTS, ep=NUMBERS), rewards=False, terminated=False),
    "packed CSV": Layout(
        frame(CSV, "data.csv.gz", **ELEMENTS, reward=REWARD, terminated=TERMINATED, truncated=TRUNCATED)
    ),
    "TSV": Layout(
        frame(
            lambda table, path: table.to_csv(path, sep="\t", index=False),
            "data.tsv",
            **ELEMENTS,
            reward=REWARD,
            done=LAST,
        ),
    ),
    "Parquet with lists": Layout(frame(lambda table, path: table.to_parquet(path), "data.parquet", **NESTED)),
    "Parquet with a column for each element": Layout(
        frame(
            lambda table, path: table.to_parquet(path), "data.parquet", **ELEMENTS, reward=REWARD, episode_index=NUMBERS
        ),
        terminated=False,
    ),
    "Feather": Layout(
        frame(
            lambda table, path: table.to_feather(path), "data.feather", **ELEMENTS, reward=REWARD, episode_id=NUMBERS
        ),
        terminated=False,
    ),
    "JSON lines": Layout(
        text(
            "data.jsonl",
            lambda: "".join(
                json.dumps(
                    {
                        "obs": {"state": OBS[row].tolist()},
                        "action": ACTION[row].tolist(),
                        "reward": float(REWARD[row]),
                        "terminated": bool(TERMINATED[row]),
                        "truncated": bool(TRUNCATED[row]),
                    }
                )
                + "\n"
                for row in range(STEPS)
            ),
        )
    ),
    "a pickle of a list of episodes": Layout(dump(EPISODES)),
    "a pickle of CS285's paths": Layout(
        dump(
            [
                {
                    "observation": STATES[n][:-1].astype(np.float64),
                    "action": ACTIONS[n],
                    "reward": REWARDS[n],
                    "next_observation": STATES[n][1:],
                    "terminal": TERMINATED[n == NUMBERS].astype(np.int64),
                }
                for n in range(3)
            ]
        ),
        finals=True,
    ),
    "a pickle of a dict of arrays": Layout(dump({**FLAT, **FLAGS})),
    "a pickle of a list of steps": Layout(
        dump(
            [
                {
                    "obs": OBS[row],
                    "action": ACTION[row],
                    "reward": REWARD[row],
                    "terminated": TERMINATED[row],
                    "truncated": TRUNCATED[row],
                }
                for row in range(STEPS)
            ]
        )
    ),
    "a pickle of tuples (s, a, r, s', done)": Layout(
        dump([(OBS[row], ACTION[row], REWARD[row], NEXT_OBS[row], LAST[row]) for row in range(STEPS)]), finals=True
    ),
    "an npy file of episodes": Layout(dump(EPISODES, "data.npy")),
    "an npy file of a dict": Layout(dump({**FLAT, **FLAGS}, "data.npy")),
    "tianshou's buffer": Layout(tianshou, finals=True),
    "imitation's saved trajectories": Layout(trajectories, finals=True),
}
