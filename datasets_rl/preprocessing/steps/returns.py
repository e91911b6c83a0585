"""Steps that write what lies ahead: returns to go, and targets several steps ahead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import with_steps
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, as_key
from datasets_rl.transforms._time import discounted

__all__ = ["MultiStep", "ReturnsToGo"]


@dataclass
class ReturnsToGo(Step):
    """Write the discounted sum of the rewards from each step to the end of its episode.

        step             0                    1           2        episode of 3 steps
        next.reward      r0                   r1          r2
        returns_to_go    r0 + g r1 + g^2 r2   r1 + g r2   r2

    Args:
        gamma: The discount factor, g.
        key: Where it is written, [N, 1], as the rewards.
        scale: What the sums are divided by.
    """

    gamma: float = 1.0
    key: str = "returns_to_go"
    scale: float = 1.0

    summary = "the sum of the rewards that are still to come"

    def __post_init__(self) -> None:
        problems = [] if 0 <= self.gamma <= 1 else [f"gamma is {self.gamma}; expected a number from 0 to 1"]
        problems += ["scale is 0; expected another number"] * (self.scale == 0)
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with the sums."""
        rewards = block.steps[NEXT_REWARD]
        carry = np.full((block.count, 1), self.gamma)
        carry[block.table.stops - 1] = 0
        sums = discounted(torch.from_numpy(rewards.astype(np.float64)), torch.from_numpy(carry)).numpy()
        return with_steps(block, {as_key(self.key): (sums / self.scale).astype(rewards.dtype)})


@dataclass
class MultiStep(Step):
    """Write the targets of n-step learning beside the single steps, which stay.

        step                 0                1                2          episode of 3 steps, n = 2
        n_step.reward        r0 + g r1        r1 + g r2        r2
        n_step.observation   s2               f                f          f: the final state; so for every state
        n_step.gamma         g^2              g^2              g
        n_step.nonterminal   True             not terminated   not terminated

        target = n_step.reward + n_step.gamma * n_step.nonterminal * V(n_step.observation)

    Near the end of an episode there are fewer steps. No target uses an unknown final state: where a truncated episode
    ends with one, the windows that reach it end one step earlier, at the last known state. Only the last transition has
    no such state; its `n_step.nonterminal` is False, and ``("next", "final_known")`` marks it in batches. A terminated
    episode needs no final state, so its windows stay as they are.

    Args:
        n_steps: Steps that are looked ahead, n, at least 1.
        gamma: The discount factor, g.
    """

    n_steps: int
    gamma: float = 0.99

    summary = "rewards, states and discounts n steps ahead"

    def __post_init__(self) -> None:
        problems = [] if self.n_steps >= 1 else [f"n_steps is {self.n_steps}; expected at least 1"]
        problems += [] if 0 <= self.gamma <= 1 else [f"gamma is {self.gamma}; expected a number from 0 to 1"]
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with the targets."""
        rewards = block.steps[NEXT_REWARD]
        rows = np.arange(block.count)
        last = np.repeat(block.table.stops - 1, block.lengths)
        terminated = block.steps[NEXT_TERMINATED][:, 0]
        usable = np.repeat(block.final_known | terminated[block.table.stops - 1], block.lengths)
        there = np.maximum(rows, np.minimum(rows + self.n_steps - 1, last - ~usable))
        sums = np.zeros((block.count, 1))
        for ahead in range(min(self.n_steps, int(block.lengths.max()))):
            inside = rows[: block.count - ahead] + ahead <= there[: block.count - ahead]
            sums[: block.count - ahead][inside] += self.gamma**ahead * rewards[ahead:][inside].astype(np.float64)
        found = {("n_step", *key): block.following(key)[there] for key in block.states}
        found["n_step", "reward"] = sums.astype(rewards.dtype)
        found["n_step", "gamma"] = (self.gamma ** (there - rows + 1.0))[:, None].astype(rewards.dtype)
        found["n_step", "nonterminal"] = (~terminated[there] & (usable | (there < last)))[:, None]
        return with_steps(block, found)
