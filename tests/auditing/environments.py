"""Clean recordings of environments of Gymnasium, under noisy, random and scripted policies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from recorded import REWARD, Recorded

Act = Callable[[Any, int, np.random.Generator], Any]


def _rollout(name: str, act: Act, steps: int, seed: int, **make: Any) -> Recorded:
    env = _made(name, **make)
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    states, actions, rewards, terminated = [observation], [], [], False
    for step in range(steps):
        action = act(observation, step, rng)
        observation, reward, terminated, truncated, _ = env.step(action)
        states.append(observation)
        actions.append(action)
        rewards.append(reward)
        if terminated or truncated:
            break
    return Recorded(
        states={("observation",): _stored(np.array(states))},
        steps={("action",): _stored(np.array(actions)), REWARD: np.array(rewards, np.float32)[:, None]},
        terminated=bool(terminated),
    )


def _stored(values: Any) -> Any:
    """Return values with an axis of elements, as the types that datasets have."""
    kind = {"i": np.int64, "u": np.uint8}.get(values.dtype.kind, np.float32)
    return (values[:, None] if values.ndim == 1 else values).astype(kind)


@functools.cache
def _made(name: str, **make: Any) -> Any:
    import gymnasium

    if name.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
        env = gymnasium.make(name, frameskip=1, **make)
        return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    return gymnasium.make(name, **make)


def _torques(count: int, size: float) -> Act:
    """Return a policy of random torques."""

    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        return (size * rng.uniform(-1, 1, count)).astype(np.float32)

    return act


def _choices(count: int) -> Act:
    """Return a policy that chooses one of some actions at random."""

    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        return int(rng.integers(count))

    return act


def cheetah(seed: int) -> Recorded:
    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        phase = 0.35 * step + np.array([0.0, 1.0, 2.0, 3.1, 4.1, 5.1])
        return np.clip(0.7 * np.sin(phase) + 0.2 * rng.normal(size=6), -1, 1).astype(np.float32)

    return _rollout("HalfCheetah-v5", act, 100, seed)


def cartpole(seed: int) -> Recorded:
    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        right = observation[2] + 0.4 * observation[3] > 0
        return int(right) if rng.random() > 0.45 else int(rng.integers(2))

    return _rollout("CartPole-v1", act, 150, seed)


def atari(seed: int) -> Recorded:
    return _rollout("ALE/Breakout-v5", _choices(4), 60, seed)


def pong(seed: int) -> Recorded:
    return _rollout("ALE/Pong-v5", _choices(6), 60, seed)


def pendulum(seed: int) -> Recorded:
    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        up, _, speed = observation
        torque = -8 * np.arctan2(observation[1], up) - 2 * speed if up > 0.8 else 2 * np.sign(speed)
        return np.clip([torque + 0.1 * rng.normal()], -2, 2).astype(np.float32)

    return _rollout("Pendulum-v1", act, 200, seed)


def mountain_car(seed: int) -> Recorded:
    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        return int(rng.integers(3)) if rng.random() < 0.2 else 2 * int(observation[1] >= 0)

    return _rollout("MountainCar-v0", act, 200, seed)


def car_torques(seed: int) -> Recorded:
    """A car with continuous torques that are often at their limits, and a reward at the goal."""

    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        return np.clip([np.sign(observation[1]) + 0.5 * rng.normal()], -1, 1).astype(np.float32)

    return _rollout("MountainCarContinuous-v0", act, 200, seed)


def acrobot(seed: int) -> Recorded:
    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        return int(rng.integers(3)) if rng.random() < 0.3 else 2 * int(observation[5] >= 0)

    return _rollout("Acrobot-v1", act, 200, seed)


def hopper(seed: int) -> Recorded:
    return _rollout("Hopper-v5", _torques(3, 0.6), 200, seed)


def ant(seed: int) -> Recorded:
    """Contact forces that are mostly zero, and heavy where a foot hits the ground."""
    return _rollout("Ant-v5", _torques(8, 1.0), 80, seed)


def humanoid(seed: int) -> Recorded:
    """Many elements that never change, and falls."""
    return _rollout("Humanoid-v5", _torques(17, 0.4), 100, seed)


def reacher(seed: int) -> Recorded:
    """A scripted arm without noise: 50 steps in each episode."""

    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        cos, sin, speeds, error = observation[:2], observation[2:4], observation[6:8], observation[8:10]
        both = np.array([cos[0] * cos[1] - sin[0] * sin[1], sin[0] * cos[1] + cos[0] * sin[1]])
        first, second = 0.1 * np.array([cos[0], sin[0]]), 0.11 * both
        turned = np.array([[0.0, -1.0], [1.0, 0.0]])
        jacobian = np.stack([turned @ (first + second), turned @ second])
        return np.clip(-20 * jacobian @ error - 0.08 * speeds, -1, 1).astype(np.float32)

    return _rollout("Reacher-v5", act, 50, seed)


def inverted(seed: int) -> Recorded:
    """Episodes of a few steps: a pole on a cart that random forces soon tip over."""
    return _rollout("InvertedPendulum-v5", _torques(1, 3.0), 100, seed)


def taxi(seed: int) -> Recorded:
    """A place as a single integer, and a random walk."""
    return _rollout("Taxi-v4", _choices(6), 100, seed)


def frozen_lake(seed: int) -> Recorded:
    """A place as a single integer, always the same start, and a reward at the end of some episodes."""

    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        safe = {0: 1, 4: 1, 8: 2, 9: 1, 13: 2, 14: 2}
        return int(rng.integers(4)) if rng.random() < 0.2 else safe.get(int(observation), 2)

    return _rollout("FrozenLake-v1", act, 100, seed, is_slippery=False)
