"""Clean recordings of many kinds, as seeded simulators give them: the audit should find nothing in these.

Environments of Gymnasium, see `environments`:

cheetah       MuJoCo states and torques, time-outs (HalfCheetah, a noisy gait)
cartpole      discrete actions, terminal states
atari, pong   frames of 84 x 84 of a game, discrete actions (Breakout and Pong)
pendulum      episodes of one length, an angle as cosine and sine, torques at their limits
mountain_car  a reward of -1 until the goal, a momentum policy
car_torques   continuous torques at their limits, a reward at the goal
acrobot       two joints, discrete torques
hopper        falls after few steps, random torques
ant           contact forces that are mostly zero
humanoid      hundreds of elements, many of which never change
reacher       a scripted arm without noise, goals, episodes of one length
inverted      episodes of a few steps
taxi          a place as a single integer
frozen_lake   a place as a single integer, one start, rare rewards

Robots, rooms and records, see `worlds` and this file:

maze          a point that walks to goals through rooms: positions, goals, sparse rewards, terminal at the goal
arm           a rendered arm with two cameras, joint positions with sensor noise, a gripper, success
texts         an arm that follows texts, several tasks
agents        three agents in a room, each with its own observation and action
teleop        a recording of a person who moves a robot: joints, targets, time stamps with jitter, quaternions, a camera
              with sensor noise, 30 steps per second
leader        a recording as of LeRobot: a leader arm and a follower arm with encoders in ticks, pauses, late frames, lossy
              video, no rewards
stations      a script without noise that moves a gripper between places, with waits, episodes of one length
explorer      a point without a task, no rewards
grid          images of a room of cells, in which a blocked step changes nothing
prices        heavy tails, calm and wild times, actions without an effect on the prices
patients      constants of an episode, values that are carried on, doses that are mostly none
building      long episodes, rounded sensors, set points that rest for hours
visits        episodes of a single step
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import environments
import numpy as np
import worlds
from numpy.typing import NDArray
from recorded import REWARD, TERMINATED, TRUNCATED, Recorded, Recording

__all__ = ["KINDS", "REWARD", "TERMINATED", "TRUNCATED", "Recorded", "Recording", "record"]


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
    "maze": maze,
    "arm": arm,
    "texts": texts,
    "agents": agents,
    "teleop": teleop,
    **{
        kind.__name__: kind
        for kind in (
            environments.cheetah,
            environments.cartpole,
            environments.atari,
            environments.pong,
            environments.pendulum,
            environments.mountain_car,
            environments.car_torques,
            environments.acrobot,
            environments.hopper,
            environments.ant,
            environments.humanoid,
            environments.reacher,
            environments.inverted,
            environments.taxi,
            environments.frozen_lake,
            worlds.leader,
            worlds.stations,
            worlds.explorer,
            worlds.grid,
            worlds.prices,
            worlds.patients,
            worlds.building,
            worlds.visits,
        )
    },
}


_BOUNDS = {"cheetah": (-1.0, 1.0), "maze": (-1.0, 1.0), "agents": (-1.0, 1.0), "cartpole": (0, 1)}
_RATES = {"teleop": 30.0, "arm": 30.0, "texts": 30.0, "leader": 30.0}
WITH_IMAGES = frozenset({"arm", "teleop", "leader"})
"""The kinds that can be recorded without their images."""
_WITHOUT_REWARDS = {"leader", "explorer"}


@functools.lru_cache(maxsize=64)
def record(kind: str, episodes: int = 40, seed: int = 0, *, images: bool = True) -> Recording:
    """Return a clean recording with so many episodes, of arms with or without the images, which take most of the time."""
    metadata = {"fps": _RATES[kind]} if kind in _RATES else {}
    chosen = {} if images else {"images": False}
    recorded = tuple(KINDS[kind](1_000 * seed + number, **chosen) for number in range(episodes))
    return Recording(kind, recorded, metadata, _BOUNDS.get(kind), rewarded=kind not in _WITHOUT_REWARDS)
