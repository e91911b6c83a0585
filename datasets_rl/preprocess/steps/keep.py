"""Steps that keep some of the episodes, as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import BadArgument
from datasets_rl.preprocess._base import Step
from datasets_rl.ted.episodes import Episodes
from datasets_rl.ted.keys import NEXT_REWARD

__all__ = ["KeepLengths", "KeepReturns", "returns"]


def returns(block: Episodes) -> NDArray[np.float64]:
    """Return the sum of the rewards of each episode, [E]."""
    rewards = block.steps[NEXT_REWARD][:, 0].astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduceat(rewards, block.table.starts)
    return sums


def _kept(block: Episodes, mask: NDArray[np.bool_]) -> Episodes | None:
    return block.pick(mask) if mask.any() else None


@dataclass
class KeepReturns(Step):
    """Keep the episodes whose return lies between two numbers, both included."""

    least: float = -np.inf
    most: float = np.inf

    purpose = "episodes by their return"

    def __call__(self, block: Episodes) -> Episodes | None:
        """Return those that are kept."""
        found = returns(block)
        return _kept(block, (found >= self.least) & (found <= self.most))


@dataclass
class KeepLengths(Step):
    """Keep the episodes of a number of steps between two, both included."""

    least: int = 1
    most: int | None = None

    purpose = "episodes by their length"

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.least:
            raise BadArgument(f"least is {self.least} and most is {self.most}; expected most to be the greater one")

    def __call__(self, block: Episodes) -> Episodes | None:
        """Return those that are kept."""
        most = np.inf if self.most is None else self.most
        return _kept(block, (block.lengths >= self.least) & (block.lengths <= most))
