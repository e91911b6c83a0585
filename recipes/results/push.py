"""A task of images: push a disc to a goal. An environment like PushT, and a dataset of a scripted expert.

The environment follows gym-pusht (Chi et al. 2023, arXiv:2303.04137): a table of 512 x 512, images of 96 x 96 pixels, actions
that are positions where the pusher goes, and as reward the share of the goal that is covered. The block is a disc, so that numpy
is all that the task needs.

    python -m datasets_rl.recipes.results.push --dataset local/push
    python -m datasets_rl.recipes.train.act --dataset local/push --out runs/act
"""

from __future__ import annotations

import argparse
import math
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from datasets_rl import RecordEpisodes

TABLE, SIDE = 512.0, 96
DISC, PUSHER, STEP = 60.0, 20.0, 24.0
"""The radii of the disc and of the pusher, and how far the pusher moves in a step."""
GOAL = np.array([256.0, 256.0])
COVERED = 0.9
"""The share of the goal that is a success."""
_PIXELS = (np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1) + 0.5) * (TABLE / SIDE)
_COLORS = np.array([[144, 238, 144], [119, 136, 153], [65, 105, 225]], np.float64)

Observation = dict[str, NDArray[Any]]


class Push(gymnasium.Env[Observation, NDArray[np.float32]]):
    """A pusher that pushes a disc over a table. Friction stops the disc when the pusher leaves.

    Observations are ``pixels``, uint8 [96, 96, 3], and ``agent_pos``, the position of the pusher, float32 [2] in [0,
    512]. Only the pixels show the disc. Actions are positions to go to, float32 [2]. The reward is the covered share of
    the goal. At 0.9 of the goal, the episode ends with ``info["success"]``. The goal is the same in all episodes.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # type: ignore[misc]  # gymnasium declares no ClassVar

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Box(0.0, TABLE, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment]  # not a Space of dicts for gymnasium
            pixels=gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            agent_pos=gymnasium.spaces.Box(0.0, TABLE, (2,), np.float32),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode with the disc away from the goal, and the pusher away from the disc."""
        super().reset(seed=seed, options=options)
        while True:
            self.disc, self.pusher = self.np_random.uniform(100, 412, 2), self.np_random.uniform(40, 472, 2)
            if np.linalg.norm(self.disc - GOAL) > DISC and np.linalg.norm(self.disc - self.pusher) > DISC + 2 * PUSHER:
                return self._observe(), {"success": False, "coverage": self.coverage()}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move the pusher by at most 24 towards a position. The disc gives way."""
        way = np.clip(action, PUSHER, TABLE - PUSHER) - self.pusher
        way *= min(1.0, STEP / max(float(np.linalg.norm(way)), 1e-9))
        for _ in range(4):
            self.pusher = self.pusher + way / 4
            between = self.disc - self.pusher
            distance = max(float(np.linalg.norm(between)), 1e-9)
            if distance < DISC + PUSHER:
                self.disc = np.clip(self.pusher + between / distance * (DISC + PUSHER), DISC, TABLE - DISC)
        coverage = self.coverage()
        success = coverage >= COVERED
        return self._observe(), coverage, success, False, {"success": success, "coverage": coverage}

    def coverage(self) -> float:
        """Return the share of the goal, a disc of the same radius, that the disc covers."""
        part = min(1.0, float(np.linalg.norm(self.disc - GOAL)) / (2 * DISC))
        return 2 / math.pi * (math.acos(part) - part * math.sqrt(1 - part * part))

    def _observe(self) -> Observation:
        return {"pixels": self.render(), "agent_pos": self.pusher.astype(np.float32)}

    def render(self) -> NDArray[np.uint8]:
        """Return the image of the table, uint8 [96, 96, 3]: the goal, over it the disc, over both the pusher."""
        image = np.full((SIDE, SIDE, 3), 255.0)
        for center, radius, color in zip((GOAL, self.disc, self.pusher), (DISC, DISC, PUSHER), _COLORS, strict=True):
            outside = np.linalg.norm(_PIXELS - center, axis=-1, keepdims=True) - radius
            image += (color - image) * np.clip(0.5 - outside * (SIDE / TABLE), 0, 1)
        return image.round().astype(np.uint8)


if "datasets_rl/Push-v0" not in gymnasium.registry:  # a program that is run as a module is imported twice
    gymnasium.register("datasets_rl/Push-v0", "datasets_rl.recipes.results.push:Push", max_episode_steps=100)


def expert(env: Push) -> NDArray[np.float64]:
    """Return where a pusher that knows the position of the disc goes: around the disc, then through it to the goal."""
    way = GOAL - env.disc
    left = float(np.linalg.norm(way))
    ahead = way / max(left, 1e-9)
    between = env.disc - env.pusher
    distance = float(np.linalg.norm(between))
    cosine = float(between @ ahead) / max(distance, 1e-9)
    if cosine > 0.97:
        goal: NDArray[np.float64] = env.disc - ahead * (DISC + PUSHER - min(left, STEP))
        return goal
    behind = math.atan2(-ahead[1], -ahead[0])
    angle = math.atan2(-between[1], -between[0])
    turn = (behind - angle + math.pi) % (2 * math.pi) - math.pi
    radius = DISC + PUSHER + 16
    if distance > radius + STEP:  # not yet near the disc
        angle += np.clip(turn, -1, 1)
    else:
        angle += np.clip(turn, -STEP / radius, STEP / radius)
    return env.disc + radius * np.array([math.cos(angle), math.sin(angle)])


def gather(dataset: str, episodes: int, seed: int, noise: float) -> float:
    """Record the expert, with noise in the actions, and return the share of successful episodes.

    Args:
        dataset: Id of the dataset, ``local/NAME``. An existing dataset grows.
        episodes: Number of episodes of at most 100 steps.
        seed: Seed of the environment and of the noise.
        noise: Standard deviation of the noise of the actions.
    """
    random = np.random.default_rng(seed)
    recorder = RecordEpisodes(gymnasium.make("datasets_rl/Push-v0"), dataset)
    env: Any = recorder.unwrapped
    successes = 0
    for episode in range(episodes):
        recorder.reset(seed=seed * 100_000 + episode)
        ended = False
        while not ended:
            action = expert(env) + noise * random.standard_normal(2)
            _, _, terminated, truncated, _ = recorder.step(np.clip(action, 0, TABLE).astype(np.float32))
            ended = terminated or truncated
        successes += terminated
    recorder.close()
    return successes / episodes


def main(arguments: list[str] | None = None) -> None:
    """Gather a dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="local/push", help="id of the dataset to record (%(default)s)")
    parser.add_argument("--episodes", type=int, default=100, help="number of episodes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the environment and the noise (%(default)s)")
    parser.add_argument("--noise", type=float, default=6.0, help="deviation of the noise of actions (%(default)s)")
    args = parser.parse_args(arguments)
    success = gather(args.dataset, args.episodes, args.seed, args.noise)
    print(f"{args.dataset}: {args.episodes} episodes, {100 * success:.0f}% a success")


if __name__ == "__main__":
    main()
