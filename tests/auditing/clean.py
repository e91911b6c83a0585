"""Clean recordings of eight kinds, as seeded simulators give them: the audit should find nothing in these.

cheetah    MuJoCo states and torques, time-outs (HalfCheetah-v5, a noisy gait)
maze       a point that walks to goals through rooms: positions, goals, sparse rewards, terminal at the goal
cartpole   discrete actions, terminal states (CartPole-v1)
atari      frames of 84 x 84 of a game, discrete actions (Breakout)
arm        a rendered arm with two cameras, joint positions with sensor noise, a gripper, success
texts      an arm that follows texts, several tasks
agents     three agents in a room, each with its own observation and action
teleop     a recording of a person who moves a robot: joints, targets, time stamps with jitter, quaternions, a camera with
           sensor noise, 30 steps per second
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.ted.episode import Episode, TextStates
from datasets_rl.ted.keys import Key
from datasets_rl.testing.stored_data import FLAGS, Whole, write_dataset

REWARD: Key = ("next", "reward")
TERMINATED: Key = ("next", "terminated")
TRUNCATED: Key = ("next", "truncated")


@dataclass(frozen=True)
class Recorded:
    """An episode as plain arrays, which faults change."""

    states: Mapping[Key, Any]
    """[T + 1, ...] by key. A list of T + 1 texts for a text field."""
    steps: Mapping[Key, Any]
    """[T, ...] by key, with reward and without flags."""
    terminated: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps[REWARD])

    def with_arrays(self, arrays: Mapping[Key, Any], **changes: Any) -> Recorded:
        """Return the episode with other arrays in place of those of the same keys."""
        return replace(
            self,
            states={key: arrays.get(key, value) for key, value in self.states.items()},
            steps={key: arrays.get(key, value) for key, value in self.steps.items()},
            **changes,
        )

    def array(self, key: Key) -> Any:
        """Return a copy of an array."""
        value = self.states[key] if key in self.states else self.steps[key]
        return list(value) if isinstance(value, list) else np.array(value)

    def part(self, start: int, stop: int) -> Recorded:
        """Return the steps [start, stop) as an episode."""
        return replace(
            self,
            states={key: value[start : stop + 1] for key, value in self.states.items()},
            steps={key: value[start:stop] for key, value in self.steps.items()},
        )


@dataclass(frozen=True)
class Recording:
    """A dataset in memory."""

    kind: str
    episodes: tuple[Recorded, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    """Lowest and highest value of the space of the actions, where the environment states one."""

    def store(self, folder: Any) -> StoredDataset:
        """Write the dataset."""
        first = self.episodes[0]
        columns = [_column(key, value, shared=True) for key, value in first.states.items()]
        columns += [_column(key, value, shared=False) for key, value in first.steps.items()]
        episodes = [Whole(_episode(one)) for one in self.episodes]
        stored = write_dataset(folder, episodes, [*columns, *FLAGS], metadata=dict(self.metadata))
        if self.bounds:
            low, high = self.bounds
            action = {**stored.manifest.specs["action"], "kind": "bounded", "low": low, "high": high}
            replace(stored.manifest, specs={**stored.manifest.specs, "action": action}).write(stored.folder)
            return StoredDataset(stored.folder)
        return stored

    def replaced(self, changed: Mapping[int, Recorded]) -> Recording:
        """Return the recording with other episodes at some numbers."""
        return replace(self, episodes=tuple(changed.get(n, one) for n, one in enumerate(self.episodes)))


def _column(key: Key, value: Any, *, shared: bool) -> Column:
    if isinstance(value, list):
        return Column(key, np.dtype(np.int32), (), shared=shared, text=True)
    return Column(key, value.dtype, value.shape[1:], shared=shared)


def _episode(one: Recorded) -> Episode:
    last = (np.arange(len(one)) == len(one) - 1)[:, None]

    def stored(value: Any) -> Any:
        return TextStates.from_texts(value) if isinstance(value, list) else value

    return Episode(
        steps={
            **{key: stored(value) for key, value in one.steps.items()},
            TERMINATED: last & one.terminated,
            TRUNCATED: last & (not one.terminated),
        },
        states={key: stored(value) for key, value in one.states.items()},
        metadata=one.metadata,
    )


def _rollout(
    name: str, act: Callable[[Any, int, np.random.Generator], Any], steps: int, seed: int, **make: Any
) -> Recorded:
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
    action_array = np.array(actions)
    return Recorded(
        states={("observation",): np.array(states, np.uint8 if states[0].dtype == np.uint8 else np.float32)},
        steps={
            ("action",): action_array.reshape(len(actions), -1).astype(np.int64)
            if action_array.dtype.kind == "i"
            else action_array.astype(np.float32),
            REWARD: np.array(rewards, np.float32)[:, None],
        },
        terminated=bool(terminated),
    )


@functools.cache
def _made(name: str, **make: Any) -> Any:
    import gymnasium

    if name.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
        env = gymnasium.make(name, frameskip=1, **make)
        return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    return gymnasium.make(name, **make)


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
    def act(observation: Any, step: int, rng: np.random.Generator) -> Any:
        return int(rng.integers(4))

    return _rollout("ALE/Breakout-v5", act, 60, seed)


def maze(seed: int) -> Recorded:
    rng = np.random.default_rng([2, seed])
    place = rng.uniform(-4, 4, 2)
    goal = rng.uniform(-4, 4, 2)
    speed = np.zeros(2)
    states, actions, rewards = [np.r_[place, speed]], [], []
    for _ in range(200):
        direction = goal - place
        action = np.clip(0.8 * direction - 1.2 * speed + 0.3 * rng.normal(size=2), -1, 1)
        speed = 0.9 * speed + 0.1 * action
        moved = place + 0.5 * speed
        if abs(moved[0]) < 0.1 and abs(moved[1]) > 1.0:  # a wall with a door
            speed[0] *= -0.3
            moved[0] = place[0]
        place = np.clip(moved, -5, 5)
        states.append(np.r_[place, speed])
        actions.append(action)
        rewards.append(float(np.linalg.norm(goal - place) < 0.4))
        if rewards[-1]:
            break
    steps = len(actions)
    return Recorded(
        states={
            ("observation", "state"): np.array(states, np.float32),
            ("observation", "goal"): np.tile(goal.astype(np.float32), (steps + 1, 1)),
        },
        steps={("action",): np.array(actions, np.float32), REWARD: np.array(rewards, np.float32)[:, None]},
        terminated=bool(rewards[-1]),
        metadata={"success": bool(rewards[-1])},
    )


def _arm_path(rng: np.random.Generator, steps: int, joints: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return joint positions [T + 1, J] of an arm that follows targets [T, J], which are its actions."""
    knots = rng.uniform(-1.2, 1.2, (4, joints))
    where = np.linspace(0, 3, steps + 1)
    index = np.minimum(where.astype(int), 2)
    blend = (1 - np.cos(np.pi * (where - index)))[:, None] / 2
    targets = knots[index] * (1 - blend) + knots[index + 1] * blend + 0.01 * rng.normal(size=(steps + 1, joints))
    position, positions = targets[0].copy(), [targets[0].copy()]
    for target in targets[1:]:
        position = position + 0.35 * (target - position)
        positions.append(position.copy())
    return np.array(positions), targets[1:]


_SIZE = 64


def _pixels(
    joints: NDArray[np.float64], view: int, tint: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return images [T, 64, 64, 3] of a planar arm, seen from one of two views, with sensor noise."""
    rows, columns = np.mgrid[0:_SIZE, 0:_SIZE]
    length = len(joints)
    images = np.empty((length, _SIZE, _SIZE, 3))
    sky = np.array([150.0, 175.0, 210.0]) if view == 0 else np.array([95.0, 80.0, 70.0])
    floor = np.array([110.0, 85.0, 60.0]) if view == 0 else np.array([60.0, 95.0, 75.0])
    images[:] = np.where((rows < 40)[..., None], sky + tint, floor + tint)
    angles = np.cumsum(joints[:, :2], axis=1) + (0.3 if view else 0.0)
    reach = np.array([15.0, 12.0]) if view == 0 else np.array([12.0, 17.0])
    start = np.tile([44.0, 32.0], (length, 1))
    for link in range(2):
        stop = start + reach[link] * np.stack([-np.cos(angles[:, link]), np.sin(angles[:, link])], axis=1)
        for part in np.linspace(0, 1, 10):
            center = start * (1 - part) + stop * part
            near = (rows - center[:, 0, None, None]) ** 2 + (columns - center[:, 1, None, None]) ** 2 < 7
            images[near] = [205, 70, 45] if link == 0 else [225, 190, 50]
        start = stop
    images += 2.0 * rng.normal(size=(length, _SIZE, _SIZE, 1))
    return np.clip(images, 0, 255).astype(np.uint8)


def arm(seed: int, *, images: bool = True) -> Recorded:
    rng = np.random.default_rng([4, seed])
    steps = int(rng.integers(45, 75))
    joints, targets = _arm_path(rng, steps, 4)
    success = bool(rng.random() < 0.7)
    rewards = np.zeros((steps, 1), np.float32)
    rewards[-1] = success
    tint = rng.uniform(-8, 8, 3)
    gripper = (np.arange(steps) > steps * rng.uniform(0.4, 0.7)).astype(float)[:, None]
    opening = np.r_[[[0.0]], gripper]
    for _ in range(3):
        opening[1:] = 0.5 * (opening[1:] + opening[:-1])
    return Recorded(
        states={
            ("observation", "state"): np.hstack([joints, opening]).astype(np.float32)
            + rng.normal(0, 0.002, (steps + 1, 5)).astype(np.float32),
            **({("observation", "front"): _pixels(joints, 0, tint, rng)} if images else {}),
            **({("observation", "side"): _pixels(joints, 1, tint, rng)} if images else {}),
        },
        steps={("action",): np.hstack([targets, gripper]).astype(np.float32), REWARD: rewards},
        terminated=success,
        metadata={"success": success},
    )


_TASKS = (
    "pick up the red cube",
    "open the drawer",
    "push the green button",
    "place the cup on the shelf",
)


def texts(seed: int) -> Recorded:
    rng = np.random.default_rng([5, seed])
    task = int(rng.integers(len(_TASKS)))
    steps = int(rng.integers(60, 110))
    joints, targets = _arm_path(rng, steps, 6)
    # Each task ends in its own pose.
    pose = np.random.default_rng([50, task]).uniform(-1, 1, 6)
    blend = np.linspace(0, 1, steps + 1)[:, None] ** 2
    joints = joints * (1 - blend) + pose * blend
    targets = targets * (1 - blend[1:]) + pose * blend[1:]
    return Recorded(
        states={
            ("observation", "state"): (joints + 0.003 * rng.normal(size=joints.shape)).astype(np.float32),
            ("instruction",): [_TASKS[task]] * (steps + 1),
        },
        steps={
            ("action",): (targets - joints[:-1]).astype(np.float32),
            REWARD: np.r_[np.zeros(steps - 1), 1.0].astype(np.float32)[:, None],
        },
        terminated=True,
        metadata={"task": task},
    )


def agents(seed: int) -> Recorded:
    rng = np.random.default_rng([6, seed])
    steps = 50
    places, goals = rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (3, 2))
    speeds = np.zeros((3, 2))
    states, actions, rewards = [], [], []

    def observe() -> NDArray[np.float32]:
        others = np.stack(
            [np.delete(places, agent, axis=0).reshape(-1) - np.tile(places[agent], 2) for agent in range(3)]
        )
        return np.hstack([places, speeds, goals - places, others]).astype(np.float32)

    states.append(observe())
    for _ in range(steps):
        action = np.clip(2.0 * (goals - places) - speeds + 0.3 * rng.normal(size=(3, 2)), -1, 1)
        speeds = 0.75 * speeds + 0.1 * action
        places = places + speeds * 0.5
        states.append(observe())
        actions.append(action)
        rewards.append(-np.linalg.norm(goals - places, axis=1).sum())
    return Recorded(
        states={("observation",): np.array(states)},
        steps={("action",): np.array(actions, np.float32), REWARD: np.array(rewards, np.float32)[:, None]},
    )


def teleop(seed: int, *, images: bool = True) -> Recorded:
    rng = np.random.default_rng([7, seed])
    steps = int(rng.integers(70, 130))
    joints, targets = _arm_path(rng, steps, 6)
    # A person pauses for a moment at the start and at the end.
    times = np.arange(steps + 1) / 30 + np.cumsum(rng.normal(0, 0.0005, steps + 1))
    yaw = 0.8 * joints[:, 0]
    pitch = 0.5 * joints[:, 1]
    quaternion = np.stack(
        [
            np.cos(yaw / 2) * np.cos(pitch / 2),
            -np.sin(yaw / 2) * np.sin(pitch / 2),
            np.cos(yaw / 2) * np.sin(pitch / 2),
            np.sin(yaw / 2) * np.cos(pitch / 2),
        ],
        axis=1,
    )
    heading = (1.5 * joints[:, 0] + np.pi) % (2 * np.pi) - np.pi
    rewards = np.zeros((steps, 1), np.float32)
    rewards[-1] = 1  # the person ends the recording when the task is done
    return Recorded(
        states={
            ("observation", "state"): (joints + 0.002 * rng.normal(size=joints.shape)).astype(np.float32),
            ("observation", "orientation"): quaternion.astype(np.float32),
            ("observation", "heading"): heading[:, None].astype(np.float32),
            **({("observation", "wrist"): _pixels(joints, 1, rng.uniform(-10, 10, 3), rng)} if images else {}),
            ("timestamp",): (times - times[0])[:, None],
        },
        steps={("action",): targets.astype(np.float32), REWARD: rewards},
        metadata={"operator": int(rng.integers(3))},
    )


KINDS: Mapping[str, Callable[..., Recorded]] = {
    "cheetah": cheetah,
    "maze": maze,
    "cartpole": cartpole,
    "atari": atari,
    "arm": arm,
    "texts": texts,
    "agents": agents,
    "teleop": teleop,
}


_BOUNDS = {"cheetah": (-1.0, 1.0), "maze": (-1.0, 1.0), "agents": (-1.0, 1.0), "cartpole": (0.0, 1.0)}


@functools.lru_cache(maxsize=16)
def record(kind: str, episodes: int = 40, seed: int = 0, *, images: bool = True) -> Recording:
    """Return a clean recording with so many episodes, of arms with or without the images, which take most of the time."""
    metadata = {"fps": 30.0} if kind in {"teleop", "arm", "texts"} else {}
    chosen = {} if images else {"images": False}
    recorded = tuple(KINDS[kind](1_000 * seed + number, **chosen) for number in range(episodes))
    return Recording(kind, recorded, metadata, _BOUNDS.get(kind))
