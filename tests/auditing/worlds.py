"""Clean recordings of robots, rooms and records that no package simulates: encoders in ticks, late frames, prices, patients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from recorded import REWARD, Recorded

_TICK = 2 * np.pi / 4096
_CELL = 6


def _rewards(steps: int, last: float = 0.0) -> NDArray[np.float32]:
    rewards = np.zeros((steps, 1), np.float32)
    rewards[-1] = last
    return rewards


def leader(seed: int, *, images: bool = True) -> Recorded:
    """A person moves a leader arm, which a follower arm repeats: encoders in ticks, pauses, late frames, no rewards.

    A loop that was late is followed by a shorter one: no frame is missing. The images are those of a video of 8 x 8 blocks.
    """
    rng = np.random.default_rng([11, seed])
    steps = int(rng.integers(90, 160))
    knots = rng.uniform(-1.0, 1.0, (int(rng.integers(3, 6)), 6))
    # The person waits before the first movement, and between two.
    speed = np.ones(steps + 1)
    for start in (0, int(rng.integers(20, steps - 20))):
        speed[start : start + int(rng.integers(0, 9))] = 0
    where = np.cumsum(speed)
    where = (where - where[0]) / (where[-1] - where[0]) * (len(knots) - 1)
    index = np.minimum(where.astype(int), len(knots) - 2)
    blend = (1 - np.cos(np.pi * (where - index)))[:, None] / 2
    tremor = np.cumsum(rng.normal(0, 0.0008, (steps + 1, 6)), axis=0)
    targets = knots[index] * (1 - blend) + knots[index + 1] * blend + tremor
    closed = np.clip((where[:, None] - rng.uniform(0.8, 1.6)) * 6, 0, 1)
    targets = np.hstack([targets, closed])
    position = [targets[0]]
    for target in targets[:-1]:
        position.append(position[-1] + 0.45 * (target - position[-1]))
    joints = np.array(position)
    late = np.where(
        rng.random(steps + 1) < 0.01, rng.uniform(0.4, 0.8, steps + 1), 0.05 * np.abs(rng.normal(size=steps + 1))
    )
    times = (np.arange(steps + 1) + late) / 30
    return Recorded(
        states={
            ("observation", "state"): (np.round(joints / _TICK) * _TICK).astype(np.float32),
            **({("observation", "top"): _table(joints, rng)} if images else {}),
            ("timestamp",): (times - times[0]).astype(np.float32)[:, None],
        },
        steps={
            ("action",): (np.round(targets[:-1] / _TICK) * _TICK).astype(np.float32),
            REWARD: _rewards(steps),
        },
        metadata={"operator": int(rng.integers(2))},
    )


def _table(joints: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return images [T + 1, 48, 64, 3] of a table with a block and a hand, as lossy video shows them."""
    rows, columns = np.mgrid[0:48, 0:64]
    images = np.empty((len(joints), 48, 64, 3))
    images[:] = (
        np.array([150.0, 130.0, 105.0]) + rng.uniform(-12, 12) + 0.4 * columns[..., None] - 0.3 * rows[..., None]
    )
    block = rng.uniform([20, 14], [42, 50])
    near = (abs(rows - block[0]) < 4) & (abs(columns - block[1]) < 4)
    images[:, near] = [60, 110, 190]
    hand = np.array([24.0, 32.0]) + 9 * np.stack(
        [np.sin(joints[:, 0]) + joints[:, 2], np.cos(joints[:, 1]) + joints[:, 3]], axis=1
    )
    near = ((rows - hand[:, 0, None, None]) ** 2 + (columns - hand[:, 1, None, None]) ** 2) < 40
    images[near] = [40, 40, 45]
    images += 1.5 * rng.normal(size=images.shape)
    # The coarse part of a block of the video changes in steps, and the fine part is often left out.
    blocks = images.reshape(len(joints), 6, 8, 8, 8, 3)
    coarse = blocks.mean(axis=(2, 4), keepdims=True)
    fine = np.round((blocks - coarse) / 12) * 12
    return np.clip(np.round(coarse / 3) * 3 + fine, 0, 255).reshape(images.shape).astype(np.uint8)


def stations(seed: int) -> Recorded:
    """A script moves a gripper between places, without noise: 80 steps in each episode, straight ways, waits."""
    rng = np.random.default_rng([12, seed])
    source, target = rng.uniform(-0.4, 0.4, (2, 2))
    home, high, low = np.array([0.0, 0.0, 0.5]), 0.3, 0.02
    points = [
        *((home, 0.0), (np.r_[source, high], 0.0), (np.r_[source, low], 0.0), (np.r_[source, low], 1.0)),
        *((np.r_[source, high], 1.0), (np.r_[target, high], 1.0), (np.r_[target, low], 1.0), (np.r_[target, low], 0.0)),
        (home, 0.0),
    ]
    place, opening, number = home.copy(), 0.0, 1
    states, actions = [np.r_[place, opening, source, target]], []
    for _ in range(80):
        wanted, closed = points[min(number, len(points) - 1)]
        way = wanted - place
        step = way * min(1.0, 0.06 / max(float(np.linalg.norm(way)), 1e-9))
        place, opening = place + step, opening + np.clip(closed - opening, -0.25, 0.25)
        actions.append(np.r_[step / 0.06, 2 * closed - 1])
        states.append(np.r_[place, opening, source, target])
        number += bool(np.linalg.norm(wanted - place) < 1e-6 and abs(closed - opening) < 1e-6)
    return Recorded(
        states={("observation",): np.array(states, np.float32)},
        steps={("action",): np.array(actions, np.float32), REWARD: _rewards(80, 1.0)},
        terminated=True,
        metadata={"success": True},
    )


def explorer(seed: int) -> Recorded:
    """A point that explores a square without a task: 100 steps in each episode, and no rewards."""
    rng = np.random.default_rng([13, seed])
    place, speed, push = rng.uniform(-1, 1, 2), np.zeros(2), np.zeros(2)
    states, actions = [np.r_[place, speed]], []
    for _ in range(100):
        push = np.clip(0.9 * push + 0.35 * rng.normal(size=2), -1, 1)
        speed = 0.92 * speed + 0.02 * push
        hit = np.abs(place + speed) > 1
        place, speed = np.clip(place + speed, -1, 1), np.where(hit, 0, speed)
        states.append(np.r_[place, speed])
        actions.append(push)
    return Recorded(
        states={("observation",): np.array(states, np.float32)},
        steps={("action",): np.array(actions, np.float32), REWARD: _rewards(100)},
    )


def grid(seed: int) -> Recorded:
    """Images of a room of cells, of which the agent fills one: a blocked step leaves the image as it is."""
    rng = np.random.default_rng([14, seed])
    room = np.zeros((9, 9), bool)
    room[0] = room[-1] = room[:, 0] = room[:, -1] = room[4, :] = True
    room[4, int(rng.integers(1, 8))] = False
    free = np.argwhere(~room)
    place, goal = free[rng.choice(len(free), 2, replace=False)]
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0], [0, 0]])
    images, actions = [_cells(room, place, goal)], []
    for _ in range(80):
        action = int(rng.integers(5))
        moved = place + moves[action]
        place = place if room[tuple(moved)] else moved
        images.append(_cells(room, place, goal))
        actions.append(action)
        if (place == goal).all():
            break
    done = bool((place == goal).all())
    return Recorded(
        states={("observation",): np.array(images)},
        steps={("action",): np.array(actions, np.int64)[:, None], REWARD: _rewards(len(actions), float(done))},
        terminated=done,
        metadata={"success": done},
    )


def _cells(room: NDArray[np.bool_], place: NDArray[np.int64], goal: NDArray[np.int64]) -> NDArray[np.uint8]:
    image = np.zeros((9, 9, 3), np.uint8)
    image[room] = [100, 100, 100]
    image[tuple(goal)] = [0, 255, 0]
    image[tuple(place)] = [255, 0, 0]
    return image.repeat(_CELL, axis=0).repeat(_CELL, axis=1)


def prices(seed: int) -> Recorded:
    """Returns of four prices with heavy tails and calm and wild times, which no action changes."""
    rng = np.random.default_rng([15, seed])
    steps = int(rng.integers(100, 140))
    wild = np.exp(np.cumsum(0.15 * rng.normal(size=steps + 1)) - 1)
    shocks = rng.standard_t(4, (steps + 1, 4)) + 0.5 * rng.standard_t(4, (steps + 1, 1))
    returns = 0.01 * np.clip(wild, 0.1, 3)[:, None] * shocks
    held = np.zeros(steps + 1)
    actions = np.clip(rng.normal(size=steps), -1, 1)
    for step in range(steps):
        held[step + 1] = np.clip(held[step] + 0.2 * actions[step], -1, 1)
    rewards = held[1:] * returns[1:, 0] - 0.0005 * np.abs(actions)
    return Recorded(
        states={
            ("observation",): np.hstack([returns, 100 * np.exp(np.cumsum(returns, axis=0)), held[:, None]]).astype(
                np.float32
            )
        },
        steps={("action",): actions.astype(np.float32)[:, None], REWARD: rewards.astype(np.float32)[:, None]},
    )


def patients(seed: int) -> Recorded:
    """Hours of a patient: an age, values that are carried on until the next measurement, doses that are mostly none."""
    rng = np.random.default_rng([16, seed])
    steps = int(rng.integers(12, 48))
    hidden = rng.normal(size=4)
    age, weight = float(rng.integers(20, 90)), float(np.round(rng.normal(75, 15), 1))
    seen = hidden.copy()
    states, actions, rewards = [], [], []
    for step in range(steps + 1):
        measured = rng.random(4) < [0.9, 0.5, 0.3, 0.15]
        seen = np.where(measured | (step == 0), hidden + 0.1 * rng.normal(size=4), seen)
        states.append(np.r_[age, weight, np.round(20 * seen + [80, 120, 95, 37], 0), measured])
        doses = np.where(rng.random(2) < 0.3, np.round(rng.gamma(2, 1, 2), 1), 0.0)
        hidden = 0.95 * hidden + 0.25 * rng.normal(size=4) - 0.05 * np.r_[doses, 0, 0]
        actions.append(doses)
        rewards.append(-float(np.abs(hidden).mean()))
    survives = bool(rng.random() < 0.8)
    rewards[steps - 1] += 15.0 if survives else -15.0
    return Recorded(
        states={("observation",): np.array(states, np.float32)},
        steps={
            ("action",): np.array(actions[:steps], np.float32),
            REWARD: np.array(rewards[:steps], np.float32)[:, None],
        },
        terminated=True,
        metadata={"survives": survives},
    )


def building(seed: int) -> Recorded:
    """Three days of a heating in steps of ten minutes: sensors of a tenth of a degree, set points that rest for hours."""
    rng = np.random.default_rng([17, seed])
    steps = 3 * 144
    hours = np.arange(steps + 1) / 6
    outside = rng.normal(5, 4) + 4 * np.sin(2 * np.pi * (hours - 9) / 24) + np.cumsum(0.05 * rng.normal(size=steps + 1))
    people = np.where((hours % 24 > 8) & (hours % 24 < 18), rng.integers(0, 12, steps + 1), 0)
    night, day = np.round(rng.uniform([15, 19], [18, 23]) * 2) / 2
    set_point = np.where((hours % 24 > 6) & (hours % 24 < 21), day, night)
    inside = [float(rng.uniform(16, 22))]
    for step in range(steps):
        heat = np.clip(0.6 * (set_point[step] - inside[-1]), 0, 1)
        change = 0.02 * (outside[step] - inside[-1]) + 0.55 * heat + 0.01 * people[step] + 0.02 * rng.normal()
        inside.append(inside[-1] + change)
    temperature = np.array(inside)
    used = np.clip(0.6 * (set_point - temperature), 0, 1)
    states = np.stack([temperature, outside, people, hours % 24, used], axis=1)
    rewards = -used[1:] - 0.1 * np.abs(temperature[1:] - set_point[1:]) * (people[1:] > 0)
    return Recorded(
        states={("observation",): np.round(states, 1).astype(np.float32)},
        steps={
            ("action",): set_point[:-1, None].astype(np.float32),
            REWARD: rewards.astype(np.float32)[:, None],
        },
    )


def visits(seed: int) -> Recorded:
    """A visit of a page: a single step with what is known of the visitor, the item that was shown, and a rare click."""
    rng = np.random.default_rng([18, seed])
    visitor: Any = np.r_[rng.normal(size=5), rng.integers(0, 2, 3)]
    item = int(rng.integers(10))
    return Recorded(
        states={("observation",): np.tile(visitor.astype(np.float32), (2, 1))},
        steps={
            ("action",): np.array([[item]], np.int64),
            REWARD: np.array([[float(rng.random() < 0.1)]], np.float32),
        },
        terminated=True,
    )
