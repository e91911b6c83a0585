"""Tasks in which the benefit of a remedy is measured: an environment, a recording of it, and a program that trains in seconds.

rover       a rover drives to a goal behind it, recorded from a noisy driver. The heading grows without a jump at pi.
rover_quaternion    the same, with the heading as a quaternion
pendulum    Pendulum-v1 from controllers of several qualities, cut after 50 steps
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import clean
import gymnasium
import numpy as np
from numpy.typing import NDArray

STEPS = 120
"""Limit of steps of an episode of the rover."""
_REACHED = 0.25


class Rover(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A rover with a throttle and a wheel, float32 [2] in [-1, 1], which starts near the heading pi and has a goal ahead.

    Observations are the way to the goal [2], the heading [1] or its quaternion [4], the speed and the turn rate, float32
    [5 or 8]. The reward is a tenth of the negative distance to the goal. An episode ends at the goal, or after 120 steps.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]  # gymnasium declares no ClassVar

    def __init__(self, *, quaternion: bool = False) -> None:
        self.quaternion = quaternion
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8 if quaternion else 5,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        del options
        self.place, self.speed, self.rate, self.steps = np.zeros(2), 0.0, 0.0, 0
        self.heading = np.pi + self.np_random.uniform(-1.2, 1.2)
        bearing = np.pi + self.np_random.uniform(-1.0, 1.0)
        self.goal = self.np_random.uniform(3.0, 6.0) * np.array([np.cos(bearing), np.sin(bearing)])
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        throttle, wheel = np.clip(np.asarray(action, np.float64), -1, 1)
        self.speed = 0.85 * self.speed + 0.018 * throttle
        self.rate = 0.7 * self.rate + 0.04 * wheel
        self.heading += self.rate
        self.place = self.place + self.speed * np.array([np.cos(self.heading), np.sin(self.heading)])
        self.steps += 1
        distance = float(np.linalg.norm(self.goal - self.place))
        reached = distance < _REACHED
        return self._observation(), -distance / 10, reached, self.steps >= STEPS and not reached, {}

    def drive(self) -> NDArray[np.float64]:
        """Return what a driver does who knows the rover: turn to the goal, and slow down near it."""
        way = self.goal - self.place
        turn = (np.arctan2(way[1], way[0]) - self.heading + np.pi) % (2 * np.pi) - np.pi
        wheel = 3.0 * turn - 12.0 * self.rate
        throttle = np.cos(turn) * min(1.0, 0.4 + float(np.linalg.norm(way)))
        return np.clip([throttle, wheel], -1, 1)

    def _observation(self) -> NDArray[np.float32]:
        turned = [np.cos(self.heading / 2), 0.0, 0.0, np.sin(self.heading / 2)] if self.quaternion else [self.heading]
        return np.array([*(self.goal - self.place), *turned, self.speed, self.rate], np.float32)


def _rover(seed: int, *, quaternion: bool = False) -> clean.Recorded:
    rng, env = np.random.default_rng([11, seed]), Rover(quaternion=quaternion)
    rows = _played(env, lambda _: np.clip(env.drive() + 0.15 * rng.normal(size=2), -1, 1), seed)
    times = np.arange(len(rows.states["observation",])) / 10 + 0.001 * rng.random(len(rows.states["observation",]))
    return clean.Recorded({**rows.states, ("timestamp",): times[:, None]}, rows.steps, rows.terminated)


def _pendulum(seed: int) -> clean.Recorded:
    """An episode of a controller that swings up, and balances, with noise of its own."""
    rng = np.random.default_rng([12, seed])
    noise = rng.uniform(0.2, 2.0)

    def act(observation: NDArray[np.float32]) -> NDArray[np.float64]:
        cosine, sine, speed = map(float, observation)
        if cosine > 0.8:
            torque = -12 * np.arctan2(sine, cosine) - 3 * speed
        else:
            torque = 2 * np.sign(speed + 1e-3) * np.sign(1.2 * 10 - (speed**2 / 6 + 5 * cosine + 5))
        return np.clip([torque + noise * rng.normal()], -2, 2)

    return _played(gymnasium.make("Pendulum-v1", max_episode_steps=50), act, seed)


def _played(env: Any, act: Callable[[Any], Any], seed: int) -> clean.Recorded:
    observation, _ = env.reset(seed=seed)
    states, actions, rewards, ended, terminated = [observation], [], [], False, False
    while not ended:
        actions.append(np.float32(act(observation)))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        states.append(observation)
        rewards.append(reward)
        ended = terminated or truncated
    return clean.Recorded(
        states={("observation",): np.array(states, np.float32)},
        steps={("action",): np.array(actions), clean.REWARD: np.array(rewards, np.float32)[:, None]},
        terminated=bool(terminated),
    )


@dataclass(frozen=True)
class Task:
    """A task: episodes of a recording, environments of an evaluation, and a program with its arguments."""

    record: Callable[[int], clean.Recorded]
    make: Callable[[], Any]
    program: str
    arguments: str
    episodes: int
    bound: float

    def recording(self, seed: int) -> clean.Recording:
        """Return the clean recording of a seed."""
        episodes = tuple(self.record(10_000 * (seed + 1) + number) for number in range(self.episodes))
        return clean.Recording("task", episodes, {"fps": 10.0}, (-self.bound, self.bound))


_BC = "--hidden 64 64 --lr 1e-3 --steps 3000 --eval-every 3000"
TASKS: dict[str, Task] = {
    "rover": Task(_rover, Rover, "bc", _BC, 60, 1.0),
    "rover_quaternion": Task(
        lambda seed: _rover(seed, quaternion=True), lambda: Rover(quaternion=True), "bc", _BC, 60, 1.0
    ),
    "pendulum": Task(
        _pendulum,
        lambda: gymnasium.make("Pendulum-v1"),
        "iql",
        "--hidden 64 64 --lr 1e-3 --steps 2000 --eval-every 2000",
        100,
        2.0,
    ),
}
