"""Generate pendulum.hdf5, the dataset of `datasets_rl.sources.demo`: ``python tests/raw/make_pendulum.py FILE``.

The dataset has rollouts of Gymnasium's Pendulum-v1 by three policies of different quality, in D4RL's layout. With the
same versions of Gymnasium, numpy and h5py, the file has the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
from numpy.typing import NDArray

_Policy = Callable[[float, float, np.random.Generator], float]
_Row = dict[str, Any]

_EPISODES = 75
_SEED = 20
_TORQUE = 2.0
_UPRIGHT_ENERGY = 5.0  # of Pendulum-v1's rod: m = 1, l = 1, g = 10
_GAINS = {"energy": 2.0, "angle": 12.0, "speed": 3.0, "catch": 0.5}
_WEAK_NOISE = 1.5


def _random_policy(angle: float, speed: float, generator: np.random.Generator) -> float:  # noqa: ARG001 - a policy's signature
    """Return a random torque."""
    return float(generator.uniform(-_TORQUE, _TORQUE))


def _weak_policy(angle: float, speed: float, generator: np.random.Generator) -> float:
    """Swing up with a weak and noisy torque, without stabilizing the rod."""
    return _swing_up_torque(angle, speed) * 0.3 + float(generator.normal(0, _WEAK_NOISE))


def _good_policy(angle: float, speed: float, generator: np.random.Generator) -> float:  # noqa: ARG001 - a policy's signature
    """Swing up by energy, then hold the rod upright."""
    if abs(angle) < _GAINS["catch"]:
        return -_GAINS["angle"] * angle - _GAINS["speed"] * speed
    return _swing_up_torque(angle, speed)


def _swing_up_torque(angle: float, speed: float) -> float:
    energy = speed * speed / 6 + _UPRIGHT_ENERGY * float(np.cos(angle))
    return _GAINS["energy"] * (_UPRIGHT_ENERGY - energy) * (1.0 if speed >= 0 else -1.0)


POLICIES: Mapping[str, _Policy] = {"random": _random_policy, "weak": _weak_policy, "good": _good_policy}


def generate_columns(episodes: int = _EPISODES, seed: int = _SEED) -> dict[str, NDArray[np.generic]]:
    """Roll out the policies in turn.

    Args:
        episodes: Number of episodes; each has 200 steps.
        seed: Seed of the first episode; it increases by 1 with each episode.

    Returns:
        Columns in D4RL's layout, [200 * episodes, ...].
    """
    env = gymnasium.make("Pendulum-v1")
    rows: list[_Row] = []
    for number in range(episodes):
        kind = number % len(POLICIES)
        rows.extend(_run_episode(env, kind, seed + number))
    env.close()
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _run_episode(env: Any, kind: int, seed: int) -> list[_Row]:
    policy = list(POLICIES.values())[kind]
    generator = np.random.default_rng(seed)
    state, _ = env.reset(seed=seed)
    rows: list[_Row] = []
    timeout = False
    while not timeout:
        angle, speed = (float(value) for value in env.unwrapped.state)
        wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
        action = np.array([np.clip(policy(wrapped, speed, generator), -_TORQUE, _TORQUE)], np.float32)
        following, reward, terminal, timeout, _ = env.step(action)
        rows.append(
            {
                "observations": np.float32(state),
                "actions": action,
                "rewards": np.float32(reward),
                "terminals": np.bool_(terminal),
                "timeouts": np.bool_(timeout),
                "next_observations": np.float32(following),
                "infos/qpos": np.array([angle], np.float32),
                "infos/qvel": np.array([speed], np.float32),
                "infos/policy": np.int8(kind),
            }
        )
        state = following
    return rows


def write_hdf5(path: Path, data: Mapping[str, NDArray[np.generic]]) -> None:
    """Write the columns and the metadata of the policies, as D4RL's generators do."""
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        for name, array in data.items():
            file.create_dataset(name, data=array, compression="gzip", compression_opts=9, shuffle=True)
        file["metadata/algorithm"] = np.bytes_(b"mixture of random, weak and good")
        file["metadata/environment"] = np.bytes_(b"Pendulum-v1")
        for name, value in _GAINS.items():
            file[f"metadata/policy/{name}_gain"] = np.float64(value)


if __name__ == "__main__":
    write_hdf5(Path(sys.argv[1]), generate_columns())
