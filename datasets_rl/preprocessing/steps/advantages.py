"""Steps that add advantages and value targets from stored values of states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl import transforms
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import require_keys, with_steps
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, NEXT_TERMINATED, as_key
from datasets_rl.transforms.advantages import Advantages


@dataclass
class _Advantages(DataStep):
    """Base class of steps that add the results of a transform of the package as new fields, [N, 1] each.

    Args:
        gamma: The discount factor.
        lmbda: The weight of longer returns, lambda: 0 for one step, 1 for whole episodes.
        value_key: The field with the values of states, [N, 1].
        advantage_key: The name of the new field with the advantages.
        value_target_key: The name of the new field with the value targets.
    """

    transform: ClassVar[type[Advantages]]
    """The class of the transform."""

    gamma: float = 0.99
    lmbda: float = 0.95
    value_key: str = "state_value"
    advantage_key: str = "advantage"
    value_target_key: str = "value_target"

    def __post_init__(self) -> None:
        factors = {"gamma": self.gamma, "lmbda": self.lmbda}
        problems = [
            f"{name} is {one}; expected a number in [0, 1]" for name, one in factors.items() if not 0 <= one <= 1
        ]
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        rewards = batch.steps[NEXT_REWARD]
        done, known = np.zeros((batch.count, 1), np.bool_), np.ones((batch.count, 1), np.bool_)
        done[batch.table.stops - 1] = True
        known[batch.table.stops - 1, 0] = batch.final_known
        value, next_value, reward = (
            torch.from_numpy(each.astype(np.float64)) for each in (*self._values(batch), rewards)
        )
        terminated = torch.from_numpy(np.array(batch.steps[NEXT_TERMINATED]))
        estimates = self.transform(gamma=self.gamma, lmbda=self.lmbda).estimate_known(
            value, next_value, reward, torch.from_numpy(done), terminated, torch.from_numpy(known), time_dim=0
        )
        keys = (as_key(self.advantage_key), as_key(self.value_target_key))
        return with_steps(
            batch, {key: each.numpy().astype(rewards.dtype) for key, each in zip(keys, estimates, strict=True)}
        )

    def _values(self, batch: EpisodeBatch) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return the values of the states and of the next states, [N, 1] each."""
        (key,) = require_keys(batch, [self.value_key])
        if key in batch.states:
            return np.asarray(batch.states[key]), np.asarray(batch.next_states(key))
        require_keys(batch, [f"{NEXT}.{self.value_key}"])
        return np.asarray(batch.steps[key]), np.asarray(batch.steps[(NEXT, *key)])


@dataclass
class GAE(_Advantages):
    """Add generalized advantage estimates and value targets, computed from stored values of states.

    Formulas and drawings: `datasets_rl.returns.generalized_advantage_estimate`. Unknown final states:
    `datasets_rl.transforms.advantages.Advantages`.
    """

    transform = transforms.GAE


@dataclass
class TDLambda(_Advantages):
    """Add lambda-returns as value targets, and advantages, computed from stored values of states.

    Formulas and drawings: `datasets_rl.returns.td_lambda_return_estimate`. Unknown final states:
    `datasets_rl.transforms.advantages.Advantages`.
    """

    transform = transforms.TDLambda
