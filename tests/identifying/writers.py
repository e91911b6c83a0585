"""The episodes of `recordings` in files that other projects' own writers make, or that are made as their programs make them.

A writer takes episodes and a folder, and returns the path of what it wrote, or raises `NoPlaceError` if the format has no place for them. What a
format has no place for is left out: rewards in OGBench's files, cameras and texts in flat arrays.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from identifying.recordings import F32, Recording

Episodes = Sequence[Recording]
Writer = Callable[[Episodes, Path], Path]


class NoPlaceError(Exception):
    """The format has no place for episodes of this kind."""


def _flat(episodes: Episodes, names: Mapping[str, str]) -> dict[str, Any]:
    """Return flat arrays of all steps, given the name of each observation. The observations of other names are left out."""
    found = {
        name: np.concatenate([one.steps()[key] for one in episodes])
        for key, name in names.items()
        if key in episodes[0].states
    }
    ends = np.concatenate([np.arange(len(one)) == len(one) - 1 for one in episodes])
    terminated = np.repeat([one.terminated for one in episodes], [len(one) for one in episodes])
    return found | {
        "rewards": np.concatenate([one.rewards for one in episodes]),
        "terminals": ends & terminated,
        "timeouts": ends & ~terminated,
    }


def _single_action(episodes: Episodes) -> np.ndarray:
    if [*episodes[0].actions] != [""]:
        raise NoPlaceError("a single array of actions")
    return np.concatenate([one.actions[""] for one in episodes])


def _no_texts(episodes: Episodes) -> None:
    if any(values.dtype == object for values in episodes[0].states.values()):
        raise NoPlaceError("no texts")


def d4rl(episodes: Episodes, folder: Path) -> Path:
    """Write flat arrays by h5py, as the generators of D4RL do: float32, gzip, and what else there is as infos."""
    _no_texts(episodes)
    states = episodes[0].states
    main = next(name for name in ("", "observation", "proprio", "state", "chaser_0") if name in states)
    names = {main: "observations", "desired_goal": "infos/goal", "runner_0": "infos/runner_0"}
    columns = _flat(episodes, {key: names.get(key, f"infos/{key}") for key in states})
    if "" in episodes[0].actions:
        columns["actions"] = _single_action(episodes)
    else:
        columns["actions"] = np.concatenate([one.actions["chaser_0"] for one in episodes])
        columns["infos/runner_action"] = np.concatenate([one.actions["runner_0"] for one in episodes])
    columns |= {f"infos/{name}": np.concatenate([one.info[name][:-1] for one in episodes]) for name in episodes[0].info}
    path = folder / "dataset.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file.create_dataset(name, data=values, compression="gzip")
    return path


def minari_without_jpeg(episodes: Episodes, folder: Path) -> Path:
    """Write a dataset by `minari.create_dataset_from_buffers`, and images as arrays."""
    return minari(episodes, folder, jpeg_encoding=False)


def minari(episodes: Episodes, folder: Path, **options: Any) -> Path:
    """Write a dataset by `minari.create_dataset_from_buffers`. Images are JPEG by default, which changes the pixels."""
    import minari as package
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    def space(values: np.ndarray) -> Any:
        if values.dtype == object:
            return spaces.Text(200, charset=frozenset(map(chr, range(32, 127))))
        if values.dtype.kind == "i" and values.ndim == 1:
            return spaces.Discrete(int(values.max()) + 1)
        low, high = (0, 255) if values.dtype == np.uint8 else (-np.inf, np.inf)
        return spaces.Box(low, high, values.shape[1:], values.dtype)

    def spaces_of(arrays: Mapping[str, np.ndarray]) -> Any:
        found = {name: space(values) for name, values in arrays.items()}
        return found.get("") or spaces.Dict(found)

    def values_of(arrays: Mapping[str, np.ndarray]) -> Any:
        found = {name: values.tolist() if values.dtype == object else values for name, values in arrays.items()}
        return found.get("", found)

    buffers = []
    for number, one in enumerate(episodes):
        last = np.arange(len(one)) == len(one) - 1
        states = dict(one.states) | ({"task": np.array([one.task] * (len(one) + 1), object)} if one.task else {})
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=values_of(states),
                actions=values_of(one.actions),
                rewards=one.rewards.tolist(),
                terminations=(last & one.terminated).tolist(),
                truncations=(last & (not one.terminated)).tolist(),
            )
        )
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    package.create_dataset_from_buffers(
        "identify/copy-v0",
        buffers,
        observation_space=spaces_of(states),
        action_space=spaces_of(episodes[0].actions),
        algorithm_name="drawn",
        author="nobody",
        author_email="nobody@example.org",
        code_permalink="https://example.org",
        **options,
    )
    return folder / "identify" / "copy-v0"


def lerobot(episodes: Episodes, folder: Path) -> Path:
    """Write a dataset by `LeRobotDataset.create`, `add_frame` and `save_episode`, with images as PNG."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    _no_texts(episodes)

    def feature(values: np.ndarray) -> dict[str, Any]:
        if values.ndim == 4 and values.shape[1] > 7:
            return {"dtype": "image", "shape": values.shape[1:], "names": ["height", "width", "channels"]}
        shape = values.shape[1:] or (1,)
        return {"dtype": str(values.dtype), "shape": shape, "names": None}

    def named(one: Recording) -> dict[str, np.ndarray]:
        found = {}
        for name, values in one.steps().items():
            images = values.ndim == 4 and values.shape[1] > 7
            found[f"observation.images.{name or 'game'}" if images else f"observation.{name or 'state'}"] = values
        for name, values in one.actions.items():
            found[f"action.{name}" if name else "action"] = values
        return found | {"next.reward": one.rewards}

    features = {name: feature(values) for name, values in named(episodes[0]).items()}
    dataset = LeRobotDataset.create("me/copy", 30, features, root=folder / "copy", robot_type="arm", use_videos=False)
    for one in episodes:
        values = named(one)
        for row in range(len(one)):
            frame = {name: np.asarray(array[row]).reshape(features[name]["shape"]) for name, array in values.items()}
            dataset.add_frame({**frame, "task": one.task or "play"})
        dataset.save_episode()
    dataset.finalize()
    return folder / "copy"


def npz(episodes: Episodes, folder: Path) -> Path:
    """Write flat arrays by `numpy.savez_compressed`, with the names of an own program."""
    columns = _flat(episodes, {key: f"observation.{key}" if key else "observation" for key in episodes[0].states})
    for name in episodes[0].actions:
        columns[f"action.{name}" if name else "action"] = np.concatenate([one.actions[name] for one in episodes])
    if episodes[0].task:
        columns["observation.task"] = np.concatenate([np.array([one.task] * len(one)) for one in episodes])
    columns = {name: values.astype(str) if values.dtype == object else values for name, values in columns.items()}
    columns = {
        {"rewards": "reward", "terminals": "terminated", "timeouts": "truncated"}.get(k, k): v
        for k, v in columns.items()
    }
    path = folder / "data.npz"
    np.savez_compressed(path, **columns)
    return path


def robomimic(episodes: Episodes, folder: Path) -> Path:
    """Write a group for each episode by h5py, as robomimic's `dataset_states_to_obs.py` does."""
    _no_texts(episodes)
    path = folder / "demo.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, one in enumerate(episodes):
            group = data.create_group(f"demo_{number}")
            _single_action([one])
            actions = one.actions[""]
            group.create_dataset("actions", data=actions if actions.ndim > 1 else actions[:, None])
            group.create_dataset("rewards", data=one.rewards)
            group.create_dataset("dones", data=(np.arange(len(one)) == len(one) - 1).astype(np.int64))
            for name, values in one.states.items():
                group.create_dataset(f"obs/{name or 'object'}", data=values[:-1], compression="gzip")
                group.create_dataset(f"next_obs/{name or 'object'}", data=values[1:], compression="gzip")
            group.attrs["num_samples"] = len(one)
        data.attrs["total"] = sum(map(len, episodes))
        data.attrs["env_args"] = json.dumps({"env_name": "Own", "type": 1, "env_kwargs": {"control_freq": 20}})
        file["mask/train"] = np.array([f"demo_{number}" for number in range(len(episodes))], "S")
    return path


def d3rlpy(episodes: Episodes, folder: Path) -> Path:
    """Write a buffer by `ReplayBuffer.dump`."""
    from d3rlpy.dataset import MDPDataset

    _no_texts(episodes)
    names = [*episodes[0].states]
    columns = _flat(episodes, {name: name for name in names})
    observations = [
        columns[name].reshape(len(columns[name]), -1) if columns[name].ndim > 2 else columns[name] for name in names
    ]
    actions = _single_action(episodes)
    dataset = MDPDataset(
        observations[0] if len(names) == 1 else tuple(observations),
        actions if actions.ndim > 1 else actions[:, None],
        columns["rewards"],
        columns["terminals"].astype(F32),
        columns["timeouts"].astype(F32),
    )
    path = folder / "buffer.h5"
    with path.open("w+b") as stream:
        dataset.dump(stream)
    return path


def ogbench(episodes: Episodes, folder: Path) -> Path:
    """Write flat arrays by `numpy.savez_compressed`, as OGBench's generators do: a row more than steps, and no rewards."""
    _no_texts(episodes)
    states = episodes[0].states
    seen = max(states, key=lambda name: states[name].ndim)  # images alone, if there are any
    joints = {name: [one.info[name] for one in episodes] for name in episodes[0].info}
    if robot := {"proprio", "state"} & states.keys():
        name = robot.pop()
        joints = {"qpos": [one.states[name] for one in episodes]}
    parts = {"observations": [one.states[seen] for one in episodes], **joints}
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    _single_action(episodes)
    actions = [np.concatenate([one.actions[""], one.actions[""][-1:]]) for one in episodes]
    terminals = [np.arange(len(one) + 1) == len(one) for one in episodes]
    path = folder / "own-play-v0.npz"
    np.savez_compressed(path, **columns, actions=np.concatenate(actions), terminals=np.concatenate(terminals))
    return path


def torchrl(episodes: Episodes, folder: Path) -> Path:
    """Write the steps in TorchRL's format by `TensorDict.memmap`, which the storages and the datasets of TorchRL call."""
    import torch
    from tensordict import NonTensorStack, TensorDict

    def column(values: np.ndarray) -> Any:
        return NonTensorStack(*values) if values.dtype == object else torch.from_numpy(np.ascontiguousarray(values))

    parts = []
    for number, one in enumerate(episodes):
        last = torch.arange(len(one))[:, None] == len(one) - 1
        steps = TensorDict({"episode": torch.full((len(one),), number)}, [len(one)])
        for name, values in one.states.items():
            key = ("observation", name) if name else "observation"
            steps[key], steps["next", key] = column(values[:-1]), column(values[1:])
        for name, values in one.actions.items():
            steps[("action", name) if name else "action"] = column(values)
        for name, values in one.info.items():
            steps["info", name], steps["next", "info", name] = column(values[:-1]), column(values[1:])
        if one.task:
            steps["task"] = NonTensorStack(*[one.task] * len(one))
        steps["next", "reward"] = column(one.rewards)[:, None]
        steps["next", "terminated"], steps["next", "truncated"] = last & one.terminated, last & (not one.terminated)
        steps["next", "done"] = last
        parts.append(steps)
    torch.cat(parts).memmap(folder / "steps")
    return folder / "steps"


def rlds(episodes: Episodes, folder: Path) -> Path:
    """Write a dataset by the builder of TensorFlow Datasets, in the Python of ``RLDS_TFDS_PYTHON``."""
    python = os.environ.get("RLDS_TFDS_PYTHON", sys.executable)
    (folder / "episodes.pkl").write_bytes(
        pickle.dumps([({**one.states}, {**one.actions}, one.rewards, one.terminated, one.task) for one in episodes])
    )
    subprocess.run(
        [python, "-P", str(Path(__file__).with_name("make_rlds.py")), str(folder)], check=True, capture_output=True
    )
    return folder / "copy" / "1.0.0"


WRITERS: Mapping[str, Writer] = {
    "D4RL": d4rl,
    "Minari": minari,
    "Minari without JPEG": minari_without_jpeg,
    "LeRobot": lerobot,
    "RLDS": rlds,
    "npz": npz,
    "TorchRL": torchrl,
    "robomimic": robomimic,
    "d3rlpy": d3rlpy,
    "OGBench": ogbench,
}
