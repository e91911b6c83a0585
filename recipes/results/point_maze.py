"""A maze with goals for a point that moves in the plane, and a dataset of a noisy planner in the maze.

The environment follows OGBench (Park et al., 2024, arXiv:2410.20092): observations are positions, `reset` puts the goal
into ``info["goal"]``, ``options={"task_id": 1}`` selects a fixed task, and an episode ends at its goal.

    python -m datasets_rl.recipes.results.point_maze --dataset local/point-maze
    python -m datasets_rl.recipes.train.gc_iql --dataset local/point-maze --out runs/gc_iql
"""

from __future__ import annotations

import argparse
from collections import deque
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from datasets_rl import RecordEpisodes

MAZE = """
#######
#.....#
#####.#
#####.#
#.....#
#######
"""
GRID = np.array([[cell == "." for cell in line] for line in MAZE.split()])
"""Whether a cell is free: row y, column x. The middle of the cell (x, y) is the position (x, y)."""
Cell = tuple[int, int]
CELLS: list[Cell] = [(int(x), int(y)) for y, x in np.argwhere(GRID)]
TASKS: list[tuple[Cell, Cell]] = [
    ((1, 1), (1, 4)),
    ((1, 4), (1, 1)),
    ((3, 1), (2, 4)),
    ((5, 4), (1, 1)),
    ((2, 4), (5, 1)),
]
"""Start and goal of the fixed tasks, which have the numbers 1 to 5."""


class PointMaze(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A point that moves by at most 0.4 cells per step and is stopped by walls.

    Observations are positions, float32 [2]. Actions are velocities, float32 [2] in [-1, 1]. The reward is 1 at the
    goal, which ends the episode, and else 0. ``info["success"]`` states whether the point is within 0.4 cells of the
    goal.

    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]  # gymnasium declares no ClassVar
    speed, radius, reach = 0.4, 0.15, 0.4

    def __init__(self) -> None:
        height, width = GRID.shape
        high = np.array([width, height], np.float32)
        self.observation_space = gymnasium.spaces.Box(np.zeros(2, np.float32), high)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode between random cells, or task ``options["task_id"]``.

        With ``options["endless"]``, the goal does not end the episode, as in datasets for goals in hindsight.
        """
        super().reset(seed=seed)
        options = options or {}
        task, self.endless = options.get("task_id"), options.get("endless", False)
        random = [CELLS[number] for number in self.np_random.choice(len(CELLS), 2, replace=False)]
        start, goal = random if task is None else TASKS[task - 1]
        self.position = np.asarray(start + self.np_random.uniform(-0.2, 0.2, 2), np.float32)
        self.goal = np.asarray(goal, np.float32)
        return self.position.copy(), {"goal": self.goal.copy(), "success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move along x, then along y, each unless a wall stops it."""
        move = self.speed * np.clip(action, -1.0, 1.0)
        for axis in (0, 1):
            moved = self.position.copy()
            moved[axis] += move[axis]
            if self._free(moved):
                self.position = moved
        success = bool(np.linalg.norm(self.position - self.goal) <= self.reach)
        info = {"goal": self.goal.copy(), "success": success}
        return self.position.copy(), float(success), success and not self.endless, False, info

    def _free(self, position: NDArray[np.float32]) -> bool:
        corners = position + self.radius * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
        x, y = np.rint(corners).astype(int).T
        return bool(GRID[y, x].all())


if "datasets_rl/PointMaze-v0" not in gymnasium.registry:  # a program that is run as a module is imported twice
    gymnasium.register(
        "datasets_rl/PointMaze-v0", "datasets_rl.recipes.results.point_maze:PointMaze", max_episode_steps=100
    )


def next_cells(goal: Cell) -> dict[Cell, Cell]:
    """Return, for each free cell, the next cell on a shortest path to `goal`."""
    following, queue = {goal: goal}, deque([goal])
    while queue:
        x, y = cell = queue.popleft()
        for neighbor in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)):
            if GRID[neighbor[1], neighbor[0]] and neighbor not in following:
                following[neighbor] = cell
                queue.append(neighbor)
    return following


def gather(dataset: str, episodes: int, seed: int, noise: float) -> None:
    """Record a planner that walks from a random cell to the next, with noise in its actions.

    Args:
        dataset: Id of the dataset, ``local/NAME``. An existing dataset grows.
        episodes: Number of episodes of 100 steps.
        seed: Seed of the environment and of the planner.
        noise: Standard deviation of the noise of the actions.
    """
    random = np.random.default_rng(seed)
    recorder = RecordEpisodes(gymnasium.make("datasets_rl/PointMaze-v0"), dataset)
    for episode in range(episodes):
        position, _ = recorder.reset(seed=seed * 100_000 + episode, options={"endless": True})
        goal, ended = CELLS[random.integers(len(CELLS))], False
        while not ended:
            here = (int(np.rint(position[0])), int(np.rint(position[1])))
            if here == goal:
                goal = CELLS[random.integers(len(CELLS))]
            way = np.asarray(next_cells(goal)[here]) - position
            action = way / max(PointMaze.speed, np.linalg.norm(way)) + noise * random.standard_normal(2)
            position, _, terminated, truncated, _ = recorder.step(np.clip(action, -1, 1).astype(np.float32))
            ended = terminated or truncated
    recorder.close()


def main(arguments: list[str] | None = None) -> None:
    """Gather a dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="local/point-maze", help="id of the dataset to record (%(default)s)")
    parser.add_argument("--episodes", type=int, default=300, help="number of episodes of 100 steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the environment and the planner (%(default)s)")
    parser.add_argument("--noise", type=float, default=0.5, help="deviation of the noise of actions (%(default)s)")
    args = parser.parse_args(arguments)
    gather(args.dataset, args.episodes, args.seed, args.noise)


if __name__ == "__main__":
    main()
