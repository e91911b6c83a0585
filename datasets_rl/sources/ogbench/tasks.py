"""Rewards of OGBench's single tasks, from the states of the simulator and constants of the task.

The constants in the catalog were read from the running environments. The rules are the rules of `relabel_dataset` and
`add_oracle_reps` of OGBench (Park et al., 2024, arXiv:2410.20092), and the results are equal bit for bit.

    maze, soccer    success = |position - goal| <= tolerance        reward = success - 1     mask = 1 - success
    arm             a success for each cube, button, drawer       reward = successes - their number
                    and window                                      mask = 1 - (all succeed)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

Floats = NDArray[np.float32]
Bits = NDArray[np.bool_]

_FIRST_CUBE = 14  # the joints of the arm are before the cubes
_CUBE = 7
_WITHIN = 0.04  # meters
_CENTER, _SCALE = np.array([0.425, 0.0, 0.0]), 10.0
_DRAWER_SCALE, _WINDOW_SCALE = 18.0, 15.0


class Task(ABC):
    """A task of an environment: a goal for the agent or the objects."""

    qpos: int
    """Number of elements of ``qpos``."""
    buttons: int
    """Number of elements of ``button_states``."""

    @property
    def widths(self) -> Mapping[str, int]:
        """The arrays that the rewards are computed from, and the number of elements in each row."""
        return {"qpos": self.qpos, **({"button_states": self.buttons} if self.buttons else {})}

    @staticmethod
    def of(facts: Mapping[str, Any], number: int | None) -> Task:
        """Return the task with a number, from 1, or else the default task of the environment.

        Args:
            facts: The ``tasks`` of an environment in the catalog.
            number: The number of the task.
        """
        goal = facts["goals"][(number or facts["default"]) - 1]
        if "first" in facts:
            return _Reach(facts["qpos"], facts["first"], np.array(goal), facts["within"])
        return _Arrange(
            facts["qpos"],
            facts["buttons"],
            np.array(goal.get("cubes", np.empty((0, 3)))),
            np.array(goal.get("buttons", ()), np.int64),
            goal.get("drawer"),
            goal.get("window"),
        )

    @abstractmethod
    def rewards(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[Floats, Floats]:
        """Return the reward and the mask of each state, float32 [N] each. The mask is 0 where the task is solved.

        Args:
            arrays: ``qpos`` [N, Q] and, if the task needs buttons, ``button_states`` [N, B].
        """

    @abstractmethod
    def oracle_reps(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        """Return what a goal is described by in each state, float32 [N, G]: positions, and states of objects."""


@dataclass(frozen=True)
class _Reach(Task):
    """The agent, or the ball, is to reach a place."""

    qpos: int
    first: int
    """Index of the first of the two coordinates in ``qpos``."""
    goal: NDArray[np.float64]
    within: float
    buttons: int = 0

    @override
    def rewards(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[Floats, Floats]:
        distances = np.linalg.norm(arrays["qpos"][:, self.first : self.first + 2] - self.goal, axis=-1)
        solved: Floats = (distances <= self.within).astype(np.float32)
        return solved - np.float32(1), np.float32(1) - solved

    @override
    def oracle_reps(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        return arrays["qpos"][:, self.first : self.first + 2].astype(np.float32)


@dataclass(frozen=True)
class _Arrange(Task):
    """The arm is to bring cubes to places, and buttons, a drawer and a window into states."""

    qpos: int
    buttons: int
    cube_goals: NDArray[np.float64]
    """Place of each cube, [C, 3]."""
    button_goals: NDArray[np.int64]
    drawer: float | None
    window: float | None

    @override
    def rewards(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[Floats, Floats]:
        qpos = arrays["qpos"]
        bits: list[Bits] = [np.linalg.norm(self.cube_goals - self._cubes(qpos), axis=-1) <= _WITHIN]
        if self.buttons:
            bits.append(arrays["button_states"] == self.button_goals)
        bits += [
            np.abs(qpos[:, [place]] - goal) <= _WITHIN
            for place, goal in zip(self._slides, (self.drawer, self.window), strict=True)
            if goal is not None
        ]
        solved = np.concatenate(bits, axis=-1)
        rewards: NDArray[np.int64] = solved.sum(axis=-1) - solved.shape[-1]
        return rewards.astype(np.float32), np.asarray(1.0 - solved.all(axis=-1), np.float32)

    @override
    def oracle_reps(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        qpos = arrays["qpos"]
        parts = [((self._cubes(qpos) - _CENTER) * _SCALE).reshape(len(qpos), -1)]
        if self.buttons:
            parts.append(arrays["button_states"])
        drawer, window = self._slides
        if self.drawer is not None:
            parts += [qpos[:, [drawer]] * _DRAWER_SCALE, qpos[:, [window]] * _WINDOW_SCALE]
        return np.concatenate(parts, axis=-1).astype(np.float32)

    @property
    def _slides(self) -> tuple[int, int]:
        """Indices of the drawer and the window in ``qpos``."""
        drawer = _FIRST_CUBE + _CUBE * len(self.cube_goals) + self.buttons
        return drawer, drawer + 1

    def _cubes(self, qpos: NDArray[Any]) -> NDArray[Any]:
        """Return the place of each cube, [N, C, 3]."""
        count = len(self.cube_goals)
        states = qpos[:, _FIRST_CUBE : _FIRST_CUBE + _CUBE * count].reshape(len(qpos), count, _CUBE)
        return states[:, :, :3]
