"""Steps that add n-step targets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import with_steps
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED


@dataclass
class NStepTargets(DataStep):
    """Add n-step targets as new fields. The existing fields are unchanged.

        step                 0                1                2          episode of 3 steps, n = 2
        n_step.reward        r0 + g r1        r1 + g r2        r2
        n_step.observation   s2               f                f          f: the final state, so for every state
        n_step.gamma         g^2              g^2              g
        n_step.nonterminal   True             not terminated   not terminated

        target = n_step.reward + n_step.gamma * n_step.nonterminal * V(n_step.observation)

    Near the end of an episode, windows have fewer steps. No target uses an unknown final state: if a truncated episode
    ends so, the windows that reach the end are one step shorter, and end at the last known state. Only the last
    transition has no such state. Its `n_step.nonterminal` is False, and ``("next", "final_known")`` marks the
    transition in batches. The targets of a terminated episode do not use the final state, so that its windows are not
    shortened.

    Args:
        n_steps: The number of steps of a window, n, at least 1.
        gamma: The discount factor, g.
    """

    n_steps: int
    gamma: float = 0.99

    def __post_init__(self) -> None:
        problems = [] if self.n_steps >= 1 else [f"n_steps is {self.n_steps}, expected at least 1"]
        problems += [] if 0 <= self.gamma <= 1 else [f"gamma is {self.gamma}, expected a number in [0, 1]"]
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        rewards = batch.steps[NEXT_REWARD]
        rows = np.arange(batch.count)
        last = np.repeat(batch.table.stops - 1, batch.lengths)
        terminated = batch.steps[NEXT_TERMINATED][:, 0]
        usable = np.repeat(batch.final_known | terminated[batch.table.stops - 1], batch.lengths)
        ends = np.maximum(rows, np.minimum(rows + self.n_steps - 1, last - ~usable))
        sums = np.zeros((batch.count, 1))
        for ahead in range(min(self.n_steps, int(batch.lengths.max()))):
            inside = rows[: batch.count - ahead] + ahead <= ends[: batch.count - ahead]
            sums[: batch.count - ahead][inside] += self.gamma**ahead * rewards[ahead:][inside].astype(np.float64)
        targets = {("n_step", *key): batch.next_states(key)[ends] for key in batch.states}
        targets["n_step", "reward"] = sums.astype(rewards.dtype)
        targets["n_step", "gamma"] = (self.gamma ** (ends - rows + 1.0))[:, None].astype(rewards.dtype)
        targets["n_step", "nonterminal"] = (~terminated[ends] & (usable | (ends < last)))[:, None]
        texts = {("n_step", *key): batch.vocabulary[key] for key in batch.states if key in batch.vocabulary}
        return replace(with_steps(batch, targets), vocabulary={**batch.vocabulary, **texts})
