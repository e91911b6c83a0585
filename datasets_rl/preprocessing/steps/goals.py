"""Steps that put other goals in the place of those that were pursued."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.steps._fields import drawn, need, rekeyed
from datasets_rl.ted.episode import known_only
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, Key, as_key

__all__ = ["HindsightGoals"]


@dataclass
class HindsightGoals(Step):
    """Take for a goal what was reached later, and reward it where it is reached.

        step           0     1     2                   achieved goals  a0 a1 a2 a3, the last one of the final state
        final          a3    a3    a3                  one goal for an episode: stored once, as a state
        future         a2    a3    a3                  one of those after the step: a1 a2 a3, a2 a3, a3; the same one
                                                       stands under "next", so that it is stored for both
        next.reward    `at` where the achieved goal of t + 1 is within a distance of the goal, else `otherwise`

    From Andrychowicz et al., 2017, "Hindsight Experience Replay". Where the final state is unknown, the last one that is known stands for it, and is nowhere reached after it. Ends of
    episodes stay. Which goals are drawn depends on the seed and on the number of the episode alone.

    Args:
        strategy: "final" or "future".
        achieved: The field with what is reached, a state [N, G].
        goal: The field with the goals, which are written over, or written at first.
        within: The distance at which a goal is reached, Euclidean.
        at: The reward where it is.
        otherwise: The reward elsewhere.
        seed: For the draws.
    """

    strategy: Literal["final", "future"] = "future"
    achieved: str = "observation.achieved_goal"
    goal: str = "observation.desired_goal"
    within: float = 0.05
    at: float = 0.0
    otherwise: float = -1.0
    seed: int = 0

    summary = "goals that were reached later, with sparse rewards"

    def __call__(self, block: EpisodeBatch) -> EpisodeBatch:
        """Return the block with these goals and rewards."""
        (key,), goal = need(block, [self.achieved]), as_key(self.goal)
        if key not in block.states:
            raise InvalidArgumentError(f"{self.achieved} is no state; expected one that exists after the last step too")
        reached = np.array(block.following(key))
        unknown = block.table.stops[~block.final_known] - 1
        reached[unknown] = np.asarray(block.states[key])[unknown]
        stops = np.repeat(block.table.stops, block.lengths)
        rows = np.arange(block.count)
        if self.strategy == "final":
            chosen = stops - 1
        else:
            places = rows - np.repeat(block.table.starts, block.lengths)
            chances = drawn(self.seed, np.repeat(block.numbers, block.lengths), places)
            chosen = rows + (chances * (stops - rows)).astype(np.int64)
        goals = reached[chosen]
        distances = np.linalg.norm((reached - goals).reshape(block.count, -1).astype(np.float64), axis=-1)
        hits = distances <= self.within
        hits[unknown] = False
        rewards = np.where(hits[:, None], self.at, self.otherwise).astype(block.steps[NEXT_REWARD].dtype)
        return self._with_goals(block, goal, goals, rewards)

    def _with_goals(self, block: EpisodeBatch, goal: Key, goals: NDArray[Any], rewards: NDArray[Any]) -> EpisodeBatch:
        bare = rekeyed(block, lambda key: None if key in {goal, ("next", *goal)} else key)
        steps = {**bare.steps, NEXT_REWARD: rewards}
        if self.strategy == "future":
            return replace(bare, steps={**steps, goal: goals, ("next", *goal): goals})
        final_states = {**bare.final_states, goal: known_only(goals[block.table.starts], block.final_known)}
        return replace(bare, steps=steps, states={**bare.states, goal: goals}, final_states=final_states)
