"""Steps that add returns-to-go and n-step targets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import with_steps
from datasets_rl.returns import discounted
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, as_key


@dataclass
class ReturnsToGo(DataStep):
    """Add the return-to-go: the discounted sum of the rewards from each step to the end of its episode.

        step             0                    1           2        episode of 3 steps
        next.reward      r0                   r1          r2
        returns_to_go    r0 + g r1 + g^2 r2   r1 + g r2   r2

    Args:
        gamma: The discount factor, g.
        key: The name of the new field, [N, 1], with the dtype of the rewards.
        scale: A number by which the sums are divided.
        failure: The reward of every step of a failed episode, if rewards are sparse: an episode of only such rewards
            counts as one that never ends, whose return-to-go is failure / (1 - gamma) in every step. This is the rule of
            Cal-QL (Nakamoto et al., 2023, arXiv:2303.05479).
    """

    gamma: float = 1.0
    key: str = "returns_to_go"
    scale: float = 1.0
    failure: float | None = None

    def __post_init__(self) -> None:
        problems = [] if 0 <= self.gamma <= 1 else [f"gamma is {self.gamma}; expected a number in [0, 1]"]
        problems += ["scale is 0; expected another number"] * (self.scale == 0)
        problems += ["gamma is 1; expected a smaller number with failure"] * (
            self.failure is not None and self.gamma == 1
        )
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        rewards = batch.steps[NEXT_REWARD]
        carry = np.full((batch.count, 1), self.gamma)
        carry[batch.table.stops - 1] = 0
        sums = discounted(torch.from_numpy(rewards.astype(np.float64)), torch.from_numpy(carry)).numpy()
        if self.failure is not None:
            other = rewards != rewards.dtype.type(self.failure)
            failed = ~np.logical_or.reduceat(other[:, 0], batch.table.starts)
            sums[np.repeat(failed, batch.lengths)] = self.failure / (1 - self.gamma)
        return with_steps(batch, {as_key(self.key): (sums / self.scale).astype(rewards.dtype)})


@dataclass
class NStepTargets(DataStep):
    """Add n-step targets as new fields; the existing fields are unchanged.

        step                 0                1                2          episode of 3 steps, n = 2
        n_step.reward        r0 + g r1        r1 + g r2        r2
        n_step.observation   s2               f                f          f: the final state; so for every state
        n_step.gamma         g^2              g^2              g
        n_step.nonterminal   True             not terminated   not terminated

        target = n_step.reward + n_step.gamma * n_step.nonterminal * V(n_step.observation)

    Near the end of an episode, windows have fewer steps. No target uses an unknown final state: if a truncated episode
    ends with one, the windows that reach it end one step earlier, at the last known state. Only the last transition has
    no such state; its `n_step.nonterminal` is False, and ``("next", "final_known")`` marks it in batches. The targets
    of a terminated episode do not use the final state, so that its windows are not shortened.

    Args:
        n_steps: The number of steps of a window, n, at least 1.
        gamma: The discount factor, g.
    """

    n_steps: int
    gamma: float = 0.99

    def __post_init__(self) -> None:
        problems = [] if self.n_steps >= 1 else [f"n_steps is {self.n_steps}; expected at least 1"]
        problems += [] if 0 <= self.gamma <= 1 else [f"gamma is {self.gamma}; expected a number in [0, 1]"]
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
