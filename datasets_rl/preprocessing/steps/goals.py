"""Steps that relabel goals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import random_floats, rename_fields, require_keys
from datasets_rl.ted.episode import zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, Key, as_key


@dataclass
class HindsightGoals(DataStep):
    """Replace goals by goals that were achieved later in the episode, with sparse rewards.

        step           0     1     2                   achieved goals  a0 a1 a2 a3, where a3 is that of the final state
        final          a3    a3    a3                  one goal for each episode: stored once, as a state
        future         a2    a3    a3                  a random goal after the step, of a1 a2 a3, a2 a3, a3. The same
                                                       goal is stored under "next"
        next.reward    `at` if the achieved goal at t + 1 is within a distance of the goal, else `otherwise`

    From Andrychowicz et al., 2017, "Hindsight Experience Replay". If the final state is unknown, the last known state
    replaces it, and the last step does not reach a goal. The ends of episodes are unchanged. The goals of an episode
    depend only on the seed and on the number of the episode.

    Args:
        strategy: "final" or "future".
        achieved: The field with the achieved goals, a state [N, G].
        goal: The field with the desired goals, which is replaced or added.
        within: The Euclidean distance up to which a goal counts as reached.
        at: The reward of steps that reach the goal.
        otherwise: The reward of the other steps.
        seed: The seed of the random goals.
    """

    strategy: Literal["final", "future"] = "future"
    achieved: str = "observation.achieved_goal"
    goal: str = "observation.desired_goal"
    within: float = 0.05
    at: float = 0.0
    otherwise: float = -1.0
    seed: int = 0

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        (key,), goal = require_keys(batch, [self.achieved]), as_key(self.goal)
        if key not in batch.states:
            raise InvalidArgumentError(f"{self.achieved} is not a state, expected a field with a final value")
        achieved = np.array(batch.next_states(key))
        unknown = batch.table.stops[~batch.final_known] - 1
        achieved[unknown] = np.asarray(batch.states[key])[unknown]
        stops = np.repeat(batch.table.stops, batch.lengths)
        rows = np.arange(batch.count)
        if self.strategy == "final":
            chosen = stops - 1
        else:
            indices = rows - np.repeat(batch.table.starts, batch.lengths)
            random = random_floats(self.seed, np.repeat(batch.numbers, batch.lengths), indices)
            chosen = rows + (random * (stops - rows)).astype(np.int64)
        goals = achieved[chosen]
        distances = np.linalg.norm((achieved - goals).reshape(batch.count, -1).astype(np.float64), axis=-1)
        hits = distances <= self.within
        hits[unknown] = False
        rewards = np.where(hits[:, None], self.at, self.otherwise).astype(batch.steps[NEXT_REWARD].dtype)
        return self._with_goals(batch, goal, goals, rewards)

    def _with_goals(self, batch: EpisodeBatch, goal: Key, goals: NDArray[Any], rewards: NDArray[Any]) -> EpisodeBatch:
        others = rename_fields(batch, lambda key: None if key in {goal, ("next", *goal)} else key)
        steps = {**others.steps, NEXT_REWARD: rewards}
        if self.strategy == "future":
            return replace(others, steps={**steps, goal: goals, ("next", *goal): goals})
        final_states = {**others.final_states, goal: zero_unknown_states(goals[batch.table.starts], batch.final_known)}
        return replace(others, steps=steps, states={**others.states, goal: goals}, final_states=final_states)
