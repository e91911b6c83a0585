"""Files of every D4RL family, in the layout of the upstream.

The MuJoCo files have real rollouts, which are returned with the file so that a test can compare the dataset with the
simulator. Everything is seeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import mujoco as mujoco_library
import numpy as np

from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch

__all__ = [
    "Rollout",
    "adroit_human",
    "antmaze",
    "big_halfcheetah",
    "bullet",
    "carla",
    "flow",
    "kitchen",
    "maze2d",
    "minigrid",
    "mujoco",
    "mujoco_columns",
    "pieces",
    "rollout",
    "write",
]

POLICY_LAYERS = {"fc0": (256, 17), "fc1": (256, 256), "last_fc": (6, 256), "last_fc_log_std": (6, 256)}


@dataclass(frozen=True)
class Rollout:
    """Episodes of a simulator, one entry per episode, with T actions and T + 1 states each."""

    states: tuple[np.ndarray, ...]
    """[T + 1, O], float64, the dtype of the simulator."""
    actions: tuple[np.ndarray, ...]
    """[T, A], float32."""
    rewards: tuple[np.ndarray, ...]
    """[T], float64."""
    terminated: tuple[bool, ...]
    """Whether the last step terminated the episode."""
    truncated: tuple[bool, ...]
    """Whether the last step reached the time limit."""
    qpos: tuple[np.ndarray, ...]
    """[T + 1, Q], float64."""
    qvel: tuple[np.ndarray, ...]
    """[T + 1, V], float64."""

    @property
    def steps(self) -> int:
        """The number of steps of all episodes."""
        return sum(len(actions) for actions in self.actions)


@cache
def rollout(env_id: str = "HalfCheetah-v5", *, steps: int = 300, limit: int = 100, seed: int = 0) -> Rollout:
    """Take `steps` random actions in a MuJoCo environment; the last episode may be unfinished."""
    mujoco_library.set_mju_user_warning(lambda _: None)  # the default handler writes MUJOCO_LOG.TXT
    env = gymnasium.make(env_id, max_episode_steps=limit)
    env.action_space.seed(seed)
    lists: dict[str, list[Any]] = {name: [] for name in Rollout.__dataclass_fields__}
    done = 0
    while done < steps:
        taken = _episode(env, lists, steps - done, seed + len(lists["actions"]))
        done += taken
    env.close()
    return Rollout(**{name: tuple(values) for name, values in lists.items()})


def _episode(env, lists, most, seed):
    """Append one episode of at most `most` steps to the lists; return its number of steps."""
    state, _ = env.reset(seed=seed)
    data = env.unwrapped.data
    states, qpos, qvel, actions, rewards = [state], [data.qpos.copy()], [data.qvel.copy()], [], []
    terminated = truncated = False
    while len(actions) < most and not (terminated or truncated):
        action = env.action_space.sample()
        state, reward, terminated, truncated, _ = env.step(action)
        states.append(state)
        qpos.append(data.qpos.copy())
        qvel.append(data.qvel.copy())
        actions.append(action)
        rewards.append(reward)
    lists["states"].append(np.array(states))
    lists["actions"].append(np.array(actions, np.float32))
    lists["rewards"].append(np.array(rewards))
    lists["terminated"].append(bool(terminated))
    lists["truncated"].append(bool(truncated))
    lists["qpos"].append(np.array(qpos))
    lists["qvel"].append(np.array(qvel))
    return len(actions)


def write(path: Path, columns: Mapping[str, Any], *, compression: str | None = "gzip", **options: Any) -> Path:
    """Write columns as D4RL's generators do: arrays compressed with gzip, scalars uncompressed."""
    with h5py.File(path, "w") as file:
        for name, value in columns.items():
            if np.ndim(value):
                file.create_dataset(name, data=value, compression=compression, **options)
            else:
                file[name] = value
    return Path(path)


def mujoco_columns(run: Rollout, version: int = 2, dtype: Any = np.float32) -> dict[str, Any]:
    """Return the columns of a MuJoCo file of a version of D4RL."""
    last = [np.arange(len(actions)) == len(actions) - 1 for actions in run.actions]
    pairs = list(zip(last, run.terminated, run.truncated, strict=True))
    columns: dict[str, Any] = {
        "actions": np.concatenate(run.actions).astype(dtype),
        "observations": np.concatenate([states[:-1] for states in run.states]).astype(dtype),
        "rewards": np.concatenate(run.rewards).astype(dtype),
        "terminals": np.concatenate([at & terminated for at, terminated, _ in pairs]),
        "timeouts": np.concatenate([at & truncated for at, _, truncated in pairs]),
    }
    if version:
        generator = np.random.default_rng(7)
        columns["next_observations"] = np.concatenate([states[1:] for states in run.states]).astype(dtype)
        columns["infos/action_log_probs"] = generator.normal(size=run.steps).astype(dtype)
        columns["infos/qpos"] = np.concatenate([qpos[:-1] for qpos in run.qpos]).astype(dtype)
        columns["infos/qvel"] = np.concatenate([qvel[:-1] for qvel in run.qvel]).astype(dtype)
    return columns


def policy_metadata() -> dict[str, Any]:
    """Return the metadata about the policy in the medium and expert files."""
    generator = np.random.default_rng(8)
    metadata: dict[str, Any] = {
        "metadata/algorithm": np.bytes_(b"SAC"),
        "metadata/iteration": np.int64(1000),
        "metadata/policy/nonlinearity": np.bytes_(b"relu"),
        "metadata/policy/output_distribution": np.bytes_(b"tanh_gaussian"),
    }
    for layer, shape in POLICY_LAYERS.items():
        metadata[f"metadata/policy/{layer}/weight"] = generator.normal(size=shape).astype(np.float32)
        metadata[f"metadata/policy/{layer}/bias"] = generator.normal(size=shape[0]).astype(np.float32)
    return metadata


def mujoco(
    path: Path,
    *,
    env_id: str = "HalfCheetah-v5",
    version: int = 2,
    steps: int = 300,
    limit: int = 100,
    dtype: Any = np.float32,
    policy: bool = False,
    seed: int = 0,
) -> Rollout:
    """Write a MuJoCo file (v0, v1 or v2; replay files have float64), and return its rollout."""
    run = rollout(env_id, steps=steps, limit=limit, seed=seed)
    columns = mujoco_columns(run, version, dtype)
    write(path, {**columns, **(policy_metadata() if policy else {})})
    return run


def _numbers(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return normally distributed numbers of a shape."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _last(rows: int, *lengths: int) -> np.ndarray:
    """Return a mask of the last row of each episode, bool [rows]."""
    flags = np.zeros(rows, bool)
    flags[np.cumsum(lengths) - 1] = True
    return flags


def adroit_human(path: Path, *, version: int = 1, lengths: tuple[int, ...] = (70, 55, 81)) -> dict[str, Any]:
    """Write a door-human file: each demonstration ends with a timeout, and no row is terminal."""
    rows = sum(lengths)
    columns = {
        "observations": _numbers(1, rows, 39),
        "actions": np.clip(_numbers(2, rows, 28), -1, 1),
        "rewards": _numbers(3, rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": _last(rows, *lengths),
        "infos/qpos": _numbers(4, rows, 30),
        "infos/qvel": _numbers(5, rows, 30),
    }
    if version:
        columns["infos/door_body_pos"] = _numbers(6, rows, 3)
    write(path, columns)
    return columns


def adroit_cloned(path: Path, *, version: int = 0, rows: int = 400) -> dict[str, Any]:
    """Write a door-cloned file: float64 with float32 actions in v0; the data ends within a demonstration."""
    dtype = np.float32 if version else np.float64
    columns: dict[str, Any] = {
        "observations": _numbers(1, rows, 39, dtype=dtype),
        "actions": np.clip(_numbers(2, rows, 28), -1, 1),
        "rewards": _numbers(3, rows, dtype=dtype),
        "terminals": np.zeros(rows, bool),
        "timeouts": _last(rows, 200, 120),
        "infos/qpos": _numbers(4, rows, 30, dtype=dtype),
        "infos/qvel": _numbers(5, rows, 30, dtype=dtype),
    }
    if version:
        columns["metadata/policy/fc0/weight"] = _numbers(6, 39, 32).T
        columns["metadata/policy/nonlinearity"] = np.bytes_(b"relu")
    write(path, columns)
    return columns


def antmaze(path: Path, *, episodes: int = 3, length: int = 1001) -> dict[str, Any]:
    """Write an antmaze file: relabeled flags and rewards are floats, and episodes have one step more than the limit."""
    rows = episodes * length
    reached = np.zeros(rows, np.float32)
    reached[length // 2 :: length] = 1
    columns = {
        "observations": _numbers(1, rows, 29),
        "actions": np.clip(_numbers(2, rows, 8), -1, 1),
        "rewards": reached,
        "terminals": np.zeros(rows, np.float32),
        "timeouts": _last(rows, *[length] * episodes),
        "infos/goal": np.tile(np.float32([0.7, 8.8]), (rows, 1)),
        "infos/qpos": _numbers(4, rows, 15),
        "infos/qvel": _numbers(5, rows, 14),
    }
    write(path, columns)
    return columns


def maze2d(path: Path, *, rows: int = 1200, timeouts: bool = False) -> dict[str, Any]:
    """Write a maze2d file: one continuous walk between goals, in which no flag ends an episode."""
    columns = {
        "observations": np.cumsum(_numbers(1, rows, 4), axis=0, dtype=np.float32),
        "actions": np.clip(_numbers(2, rows, 2), -1, 1),
        "rewards": (np.arange(rows) % 97 == 0).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "infos/goal": np.tile(np.float32([1, 1]), (rows, 1)),
        "infos/qpos": _numbers(4, rows, 2),
        "infos/qvel": _numbers(5, rows, 2),
    }
    if timeouts:
        columns["timeouts"] = np.arange(rows) % 161 == 160
    write(path, columns)
    return columns


def minigrid(path: Path, *, lengths: tuple[int, ...] = (12, 50, 7, 31)) -> dict[str, Any]:
    """Write a minigrid file: images and actions are float32, and actions have no second axis."""
    rows = sum(lengths)
    generator = np.random.default_rng(1)
    columns = {
        "observations": generator.integers(0, 10, (rows, 7, 7, 3)).astype(np.float32),
        "actions": generator.integers(0, 7, rows).astype(np.float32),
        "rewards": _last(rows, *lengths).astype(np.float32),
        "terminals": _last(rows, *lengths),
        "infos/goal": generator.integers(0, 19, (rows, 2)).astype(np.float32),
        "infos/pos": generator.integers(0, 19, (rows, 2)).astype(np.float32),
        "infos/orientation": generator.integers(0, 4, rows).astype(np.float32),
    }
    write(path, columns)
    return columns


def kitchen(path: Path, *, lengths: tuple[int, ...] = (190, 301, 222)) -> dict[str, Any]:
    """Write a kitchen file: `infos` has the number of the demonstration, and the last step has float flags."""
    rows = sum(lengths)
    columns = {
        "observations": _numbers(1, rows, 60),
        "actions": np.clip(_numbers(2, rows, 9), -1, 1),
        "rewards": (np.arange(rows) % 5).astype(np.float32),
        "terminals": _last(rows, *lengths).astype(np.float32),
        "infos": np.repeat(np.arange(len(lengths)), lengths).astype(np.int64),
    }
    write(path, columns)
    return columns


def flow(path: Path, *, rows: int = 1700) -> dict[str, Any]:
    """Write a flow file without timeouts and terminations, so that only the time limit ends episodes."""
    columns = {
        "observations": _numbers(1, rows, 44),
        "actions": _numbers(2, rows, 1),
        "rewards": _numbers(3, rows),
        "terminals": np.zeros(rows, bool),
    }
    write(path, columns)
    return columns


def carla(path: Path, *, rows: int = 90) -> dict[str, Any]:
    """Write a carla-lane file: each image of 48 x 48 x 3 is a flat row of floats."""
    columns = {
        "observations": np.random.default_rng(1).random((rows, 48 * 48 * 3), np.float32),
        "actions": np.clip(_numbers(2, rows, 2), -1, 1),
        "rewards": _numbers(3, rows),
        "terminals": _last(rows, 40, 25),
    }
    write(path, columns)
    return columns


def bullet(path: Path, *, lengths: tuple[int, ...] = (60, 100, 40)) -> dict[str, Any]:
    """Write a bullet-hopper file: like MuJoCo v1, without next observations."""
    rows = sum(lengths)
    ends = _last(rows, *lengths)
    full = np.zeros(rows, bool)
    full[lengths[0] + lengths[1] - 1] = True
    columns: dict[str, Any] = {
        "observations": _numbers(1, rows, 15),
        "actions": np.clip(_numbers(2, rows, 3), -1, 1),
        "rewards": _numbers(3, rows),
        "terminals": ends & ~full,
        "timeouts": full,
        "infos/action_log_probs": _numbers(4, rows),
        "metadata/algorithm": np.bytes_(b"SAC"),
        "metadata/iteration": np.int64(500),
    }
    write(path, columns)
    return columns


def big_halfcheetah(path: Path, *, steps: int = 1_000_000, infos: bool = True, seed: int = 0) -> Path:
    """Write a large v2 file: repeated real rollouts with noise, so that gzip compresses them like real data."""
    run = rollout(steps=2000, limit=1000, seed=seed)
    generator = np.random.default_rng(seed)
    episodes = -(-steps // 1000)
    states = _tiled([np.hstack(all_) for all_ in zip(run.states, run.qpos, run.qvel, strict=True)], episodes, generator)
    actions = generator.uniform(-1, 1, (steps, 6)).astype(np.float32)

    def flat(array):
        return array.reshape(-1, array.shape[-1])[:steps]

    timeouts = np.arange(steps) % 1000 == 999
    columns = {
        "actions": actions,
        "observations": flat(states[:, :-1, :17]),
        "rewards": generator.normal(4, 1, steps).astype(np.float32),
        "terminals": np.zeros(steps, bool),
        "timeouts": timeouts,
        "next_observations": flat(states[:, 1:, :17]),
    }
    if infos:
        columns["infos/action_log_probs"] = generator.normal(size=steps).astype(np.float32)
        columns["infos/qpos"] = flat(states[:, :-1, 17:26])
        columns["infos/qvel"] = flat(states[:, :-1, 26:])
    return write(path, columns)


def _tiled(runs, episodes, generator):
    """Return the rollouts, repeated to this number of episodes, with noise."""
    states = np.stack(runs).astype(np.float32)
    states = states[np.arange(episodes) % len(states)]
    states += generator.standard_normal(states.shape, np.float32) * np.float32(0.01)
    return states


def pieces(recording: Any) -> list[dict[str, Any]]:
    """Join the episodes that an episode reader yields in pieces.

    Returns a dict for each whole trajectory: steps [T, ...], states [T + 1, ...] or [T, ...], known, facts.
    """
    whole: list[dict[str, Any]] = []
    parts: list[Any] = []
    for episode in _single_episodes(recording):
        parts.append(episode)
        if episode.continues:
            continue
        joined: dict[str, Any] = {"known": episode.final_known, "facts": dict(episode.metadata)}
        for group in ("steps", "states"):
            joined[group] = {
                key: np.concatenate([getattr(part, group)[key] for part in parts]) for key in getattr(episode, group)
            }
        whole.append(joined)
        parts = []
    if parts:
        raise ValueError("the last piece continues")
    return whole


def _single_episodes(recording: Any) -> Iterator[Episode]:
    """Yield each episode or piece that an episode reader yields, and each episode of a batch."""
    for piece in recording.episodes():
        for episode in piece if isinstance(piece, EpisodeBatch) else [piece]:
            # D4RL stores no info after the last step; a batch has zeros in its place.
            states = {
                key: values[: len(episode)] if key[0] == "info" else values for key, values in episode.states.items()
            }
            yield replace(episode, states=states)
