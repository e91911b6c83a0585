"""Episodes of eight kinds, as a simulator or a robot gives them, and the dataset that is recorded of them.

An episode has T actions and T + 1 states. All floats are exact as float32, which most formats store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import EpisodeWriter

F32 = np.float32
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Recording:
    """An episode."""

    states: Arrays
    """Observations by name, [T + 1, ...] each. A single one is named "". Texts are arrays of objects."""
    actions: Arrays
    """Actions by name, [T, ...] each. A single one is named ""."""
    rewards: NDArray[Any]
    """[T], float32."""
    terminated: bool
    """Whether the last action terminated the episode. Otherwise the episode was truncated."""
    task: str = ""
    """An instruction."""
    info: Arrays = field(default_factory=dict)
    """The state of the simulator, [T + 1, ...] each."""

    def __len__(self) -> int:
        """Return the number of actions, T."""
        return len(self.rewards)

    def steps(self) -> Arrays:
        """Return the observations before each action, [T, ...] each."""
        return {name: values[:-1] for name, values in self.states.items()}


def _walk(generator: np.random.Generator, length: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the states and the actions of a linear system with noise, [T + 1, width] and [T, width // 2]."""
    push = np.random.default_rng(width).normal(size=(width // 2, width)) * 0.3
    actions = np.clip(generator.normal(size=(length, width // 2)) * 0.5, -1, 1).astype(F32)
    states = [generator.normal(size=width)]
    for action in actions:
        states.append(0.95 * states[-1] + action @ push + 0.01 * generator.normal(size=width))
    return F32(states), actions


def locomotion(generator: np.random.Generator, length: int) -> Recording:
    """A robot of MuJoCo: 17 states and torques."""
    states, actions = _walk(generator, length, 17)
    rewards = states[1:, 8] - F32(0.1) * (actions**2).sum(axis=1)
    joints = {"qpos": np.hstack([states[:, 16:], states[:, :8]]), "qvel": states[:, 8:]}
    return Recording({"": states}, {"": actions}, rewards, terminated=True, info=joints)


def maze(generator: np.random.Generator, length: int) -> Recording:
    """A point with a goal, as in PointMaze."""
    states, actions = _walk(generator, length, 4)
    goal = np.repeat(generator.uniform(-3, 3, (1, 2)), length + 1, axis=0).astype(F32)
    near = np.linalg.norm(states[1:, :2] - goal[1:], axis=1) < 0.5
    parts = {"observation": states, "achieved_goal": states[:, :2], "desired_goal": goal}
    joints = {"qpos": states[:, :2], "qvel": states[:, 2:]}
    return Recording(parts, {"": actions}, F32(near), terminated=False, info=joints)


def grid(generator: np.random.Generator, length: int) -> Recording:
    """Cells around an agent, and actions of seven kinds, as in MiniGrid."""
    actions = generator.integers(0, 7, length)
    world, place, views = generator.integers(0, 11, (40, 40, 3), np.uint8), np.array([20, 20]), []
    for action in [*actions, 0]:
        views.append(world[place[0] - 3 : place[0] + 4, place[1] - 3 : place[1] + 4])
        place = np.clip(place + [(0, 1), (1, 0), (0, -1), (-1, 0), (0, 0), (0, 0), (0, 0)][action], 3, 36)
    return Recording({"": np.array(views)}, {"": actions}, F32(actions == 6), terminated=True)


def atari(generator: np.random.Generator, length: int) -> Recording:
    """Frames of a game in color, and actions of six kinds."""
    actions, ball = generator.integers(0, 6, length), generator.uniform(10, 50, 2)
    speed, frames, paddle = generator.uniform(-3, 3, 2), [], 30
    for action in [*actions, 0]:
        frame = np.full((64, 48, 3), (144, 72, 17), np.uint8)
        row, column = ball.astype(int).clip(1, [60, 44])
        frame[row : row + 3, column : column + 3] = 236
        frame[paddle : paddle + 8, 44:46] = (92, 186, 92)
        frames.append(frame)
        paddle = int(np.clip(paddle + 2 * (int(action) % 3 - 1), 0, 56))
        ball, speed = ball + speed, np.where((ball + speed < 1) | (ball + speed > [60, 44]), -speed, speed)
    return Recording({"": np.array(frames)}, {"": actions}, F32(generator.integers(-1, 2, length)), terminated=True)


def _image(place: NDArray[Any], size: int, seed: int) -> NDArray[np.uint8]:
    ground = np.random.default_rng(seed).integers(60, 90, (size, size, 3), np.uint8)
    row, column = (size / 2 + size / 6 * place[:2]).astype(int).clip(0, size - 6)
    ground[row : row + 6, column : column + 6] = (220, 40, 40)
    return ground


def arm(generator: np.random.Generator, length: int) -> Recording:
    """A robot arm with two cameras and an instruction."""
    states, actions = _walk(generator, length, 14)
    cameras = {
        name: np.array([_image(state, 48, seed) for state in states]) for seed, name in enumerate(("front", "wrist"))
    }
    success = np.zeros(length, F32)
    success[-1] = 1
    task = f"put the {('red', 'blue')[generator.integers(2)]} block into the bowl"
    return Recording({"proprio": states, **cameras}, {"": actions}, success, terminated=True, task=task)


def texts(generator: np.random.Generator, length: int) -> Recording:
    """A text game: sentences, and actions of twenty kinds."""
    rooms, things = ("hall", "cellar", "attic", "garden", "kitchen"), ("lamp", "key", "sword", "book", "rope", "map")
    said = [
        f"You are in the {generator.choice(rooms)}. There is a {generator.choice(things)}. Turn {turn}, {generator.integers(999)}."
        for turn in range(length + 1)
    ]
    actions = generator.integers(0, 20, length)
    return Recording({"": np.array(said, object)}, {"": actions}, F32(actions == 3), terminated=True)


def agents(generator: np.random.Generator, length: int) -> Recording:
    """Two agents with observations and actions of their own."""
    parts = {name: _walk(generator, length, width) for name, width in (("chaser_0", 10), ("runner_0", 8))}
    states = {name: states for name, (states, _) in parts.items()}
    return Recording(states, {name: actions for name, (_, actions) in parts.items()}, states["runner_0"][1:, 0], False)


def teleoperation(generator: np.random.Generator, length: int) -> Recording:
    """A recording as LeRobot's programs make: a leader moves a follower, with a camera and a task, without a reward."""
    states, _ = _walk(generator, length, 6)
    actions = F32(states[1:] + F32(0.02) * generator.normal(size=(length, 6)).astype(F32))
    camera = np.array([_image(state, 32, 7) for state in states])
    return Recording({"state": states, "top": camera}, {"": actions}, np.zeros(length, F32), False, "fold the towel")


KINDS: Mapping[str, Callable[[np.random.Generator, int], Recording]] = {
    "locomotion": locomotion,
    "maze": maze,
    "grid": grid,
    "atari": atari,
    "arm": arm,
    "texts": texts,
    "agents": agents,
    "teleoperation": teleoperation,
}
LENGTHS = (60, 45, 72, 51, 66)


def recordings(kind: str, lengths: Sequence[int] = LENGTHS) -> list[Recording]:
    """Return the episodes of a kind."""
    generator = np.random.default_rng([7, list(KINDS).index(kind)])
    return [KINDS[kind](generator, length) for length in lengths]


def record(kind: str, home: Path, lengths: Sequence[int] = LENGTHS) -> None:
    """Record the episodes of a kind as ``local/<kind>``."""
    episodes = recordings(kind, lengths)
    with EpisodeWriter(f"local/{kind}", root=home / "local", infos=[*episodes[0].info]) as writer:
        for one in episodes:
            writer.start(_row(one.states, 0, one.task), {name: values[0] for name, values in one.info.items()})
            for step, reward in enumerate(one.rewards):
                last = step == len(one) - 1
                writer.step(
                    _row(one.actions, step),
                    _row(one.states, step + 1, one.task),
                    float(reward),
                    terminated=last and one.terminated,
                    truncated=last and not one.terminated,
                    info={name: values[step + 1] for name, values in one.info.items()},
                )


def _row(arrays: Arrays, row: int, task: str = "") -> Any:
    """Return the values of a row: an array or a text, or a dict of them."""
    values = {name: array[row] for name, array in arrays.items()} | ({"task": task} if task else {})
    return values[""] if [*values] == [""] else values
