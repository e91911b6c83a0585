"""Steps that write other rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import with_steps
from datasets_rl.preprocessing.steps.keep import returns, success_key
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD

__all__ = ["ClipRewards", "DelayRewards", "ScaleByReturns", "ScaleRewards", "SparseRewards", "SuccessRewards"]


def _with_rewards(block: EpisodeBatch, rewards: NDArray[Any]) -> EpisodeBatch:
    """Return the block with other rewards, [N, 1], of the dtype that they had."""
    return with_steps(block, {NEXT_REWARD: rewards.astype(block.steps[NEXT_REWARD].dtype, copy=False)})


@dataclass
class ScaleRewards(Step):
    """Multiply rewards, and then add to them: r * scale + shift."""

    scale: float = 1.0
    shift: float = 0.0

    summary = "rewards times a number, plus a number"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these rewards."""
        return _with_rewards(block, block.steps[NEXT_REWARD] * self.scale + self.shift)


@dataclass
class ClipRewards(Step):
    """Keep rewards between two numbers."""

    least: float = -1.0
    most: float = 1.0

    summary = "rewards between two numbers"

    def __post_init__(self) -> None:
        if self.most < self.least:
            raise InvalidArgumentError(
                f"least is {self.least} and most is {self.most}; expected most to be the greater one"
            )

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these rewards."""
        return _with_rewards(block, np.clip(block.steps[NEXT_REWARD], self.least, self.most))


@dataclass
class SparseRewards(Step):
    """Reward only what was rewarded with more than a number: 1 there, 0 elsewhere."""

    above: float = 0.0

    summary = "1 where the reward is above a number, 0 elsewhere"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these rewards."""
        return _with_rewards(block, block.steps[NEXT_REWARD] > self.above)


@dataclass
class DelayRewards(Step):
    """Give the whole return of an episode with its last step, and nothing before, as Decision Transformer's study does."""

    summary = "the whole return with the last step"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these rewards."""
        rewards = np.zeros((block.count, 1))
        rewards[block.table.stops - 1, 0] = returns(block)
        return _with_rewards(block, rewards)


@dataclass
class SuccessRewards(Step):
    """Reward the steps that lead to success.

    Args:
        key: The field that is above 0 at success; by default the only one called "success". Of a state it is the one
            at t + 1 that counts, and it does not where that one is unknown.
        at: The reward of these steps.
        otherwise: The reward of the others.
    """

    key: str = ""
    at: float = 1.0
    otherwise: float = 0.0

    summary = "one reward at success, another elsewhere"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these rewards."""
        key = success_key(block, self.key)
        if key in block.steps:
            found = np.asarray(block.steps[key]) > 0
        else:
            found = np.asarray(block.following(key)) > 0
            found[block.table.stops[~block.final_known] - 1] = False
        hits = found.reshape(block.count, -1).any(-1, keepdims=True)
        return _with_rewards(block, np.where(hits, self.at, self.otherwise))


@dataclass
class ScaleByReturns(Step):
    """Scale rewards so that the highest return and the lowest one are some distance apart.

        r * to / (highest return - lowest return)

    Implicit Q-Learning (Kostrikov, Nair and Levine, 2021) does it to D4RL's locomotion data, with 1000.
    """

    to: float = 1000.0
    _lowest: float = field(default=0.0, init=False, repr=False)
    _highest: float = field(default=1.0, init=False, repr=False)

    requires_fit = True
    summary = "rewards so that returns span a number"

    def fit(self, blocks: Iterable[EpisodeBatch]) -> None:
        """Find the lowest and the highest return."""
        found = np.concatenate([returns(block) for block in blocks])
        self._lowest, self._highest = float(found.min()), float(found.max())
        if self._lowest == self._highest:
            raise InvalidArgumentError(f"all episodes have the return {self._lowest:g}; expected returns that differ")

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The two returns, as they were."""
        return {"lowest": self._lowest, "highest": self._highest}

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these rewards."""
        return _with_rewards(block, block.steps[NEXT_REWARD] * (self.to / (self._highest - self._lowest)))
