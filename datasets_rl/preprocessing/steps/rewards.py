"""Steps that replace rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import with_steps
from datasets_rl.preprocessing.steps.keep import returns_of_episodes, success_key
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED


def _with_rewards(batch: EpisodeBatch, rewards: NDArray[Any]) -> EpisodeBatch:
    """Return the batch with other rewards, [N, 1], cast to the dtype of the previous rewards."""
    return with_steps(batch, {NEXT_REWARD: rewards.astype(batch.steps[NEXT_REWARD].dtype, copy=False)})


@dataclass
class DelayRewards(DataStep):
    """Replace the reward of the last step of an episode by its return, and all others by 0.

    This is the delayed-return setting of Decision Transformer (Chen et al., 2021).
    """

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        rewards = np.zeros((batch.count, 1))
        rewards[batch.table.stops - 1, 0] = returns_of_episodes(batch)
        return _with_rewards(batch, rewards)


@dataclass
class SuccessRewards(DataStep):
    """Replace rewards by one value for steps that lead to success, and by another for all others.

    Args:
        key: The field that is greater than 0 at success. By default the only field called "success". If the field is a
            state, its value at t + 1 decides. An unknown final state does not count as success.
        at: The reward of steps that lead to success.
        otherwise: The reward of the other steps.
    """

    key: str = ""
    at: float = 1.0
    otherwise: float = 0.0

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        key = success_key(batch, self.key)
        if key in batch.steps:
            success = np.asarray(batch.steps[key]) > 0
        else:
            success = np.asarray(batch.next_states(key)) > 0
            success[batch.table.stops[~batch.final_known] - 1] = False
        hits = success.reshape(batch.count, -1).any(-1, keepdims=True)
        return _with_rewards(batch, np.where(hits, self.at, self.otherwise))


def _limited_returns(rewards: NDArray[Any], terminated: NDArray[np.bool_], max_steps: int) -> NDArray[np.float64]:
    """Return the sums of rewards between terminations, each of at most `max_steps` steps, without an unfinished sum."""
    rows = np.arange(len(rewards))
    starts = np.maximum.accumulate(np.where(np.append([True], terminated[:-1]), rows, 0))
    steps = (rows - starts) % max_steps
    sums = np.add.reduceat(rewards.astype(np.float64), np.flatnonzero(steps == 0))
    complete = bool(terminated[-1]) or steps[-1] == max_steps - 1
    return sums if complete else sums[:-1]


@dataclass
class ScaleByReturns(DataStep):
    """Scale rewards so that `to` is the difference between the highest and the lowest return.

        r * to / (highest return - lowest return)

    Implicit Q-Learning (Kostrikov, Nair and Levine, 2021) and RLPD (Ball et al., 2023) scale the rewards of D4RL's
    locomotion datasets in this way, with 1000. Returns that are not finite do not count. `modify_reward` in CORL (Tarasov et al., 2022) does so with `max_steps`:

        max_steps 3      rewards     1  2  3 |  4  5  6  7  8       terminated after 3, timed out after 8
                         returns           6       15     -         the rest, 7 + 8, is not counted

    Args:
        to: The difference between the returns after scaling.
        max_steps: The number of steps after which a return is counted even if the episode continues. If given, only
            terminations and this number end a return. Time-outs do not, and an unfinished return at the end of the
            dataset is not counted. By default, the returns are the returns of the episodes.
    """

    to: float = 1000.0
    max_steps: int | None = None
    _lowest: float = field(default=0.0, init=False, repr=False)
    _highest: float = field(default=1.0, init=False, repr=False)

    requires_fit = True

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps < 1:
            raise InvalidArgumentError(f"max_steps is {self.max_steps}, expected at least 1")

    def fit(self, batches: Iterable[EpisodeBatch]) -> None:
        """Compute the lowest and the highest return."""
        if self.max_steps is None:
            episode_returns = np.concatenate([returns_of_episodes(batch) for batch in batches])
        else:
            columns = [(batch.steps[NEXT_REWARD][:, 0], batch.steps[NEXT_TERMINATED][:, 0]) for batch in batches]
            rewards, terminated = (np.concatenate(parts) for parts in zip(*columns, strict=True))
            episode_returns = _limited_returns(rewards, terminated, self.max_steps)
        if not len(episode_returns):
            raise InvalidArgumentError(
                f"no return is complete: no step is terminated, and there are fewer than {self.max_steps}"
            )
        # A return that is not finite would make all rewards so.
        episode_returns = episode_returns[np.isfinite(episode_returns)]
        if not len(episode_returns):
            raise InvalidArgumentError("no return is finite, expected returns that differ")
        self._lowest, self._highest = float(episode_returns.min()), float(episode_returns.max())
        if self._lowest == self._highest:
            raise InvalidArgumentError(f"all episodes have the return {self._lowest:g}, expected returns that differ")

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The lowest and the highest return, before scaling."""
        return {"lowest": self._lowest, "highest": self._highest}

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        return _with_rewards(batch, batch.steps[NEXT_REWARD] * (self.to / (self._highest - self._lowest)))
