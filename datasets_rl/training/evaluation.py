"""Evaluation episodes in vectorized environments, summarized by means with standard errors, and success rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.catalog.scores import normalized_score
from datasets_rl.errors import InvalidArgumentError

Policy = Callable[[Any, NDArray[np.float64], Mapping[str, Any]], Any]
"""Observations [E, ...], returns so far [E] and infos of E episodes to actions [E, ...], in the units of the environment."""

_SUCCESS_KEYS = ("success", "is_success")
_Z = 1.959964
"""Quantile 0.975 of the normal distribution."""


@dataclass(frozen=True)
class Episodes:
    """The outcome of whole episodes."""

    returns: NDArray[np.float64]
    """Sums of rewards, [E]."""
    success: NDArray[np.bool_] | None
    """Whether any step reported success, [E], or None if the environment does not report success."""

    @classmethod
    def concatenate(cls, parts: Sequence[Episodes]) -> Episodes:
        """Return the episodes of several evaluations, joined."""
        success = [part.success for part in parts if part.success is not None]
        returns = np.concatenate([part.returns for part in parts])
        return cls(returns, np.concatenate(success) if len(success) == len(parts) else None)


class StoppedError(Exception):
    """Raised when an evaluation was interrupted before all episodes ended."""


def play(
    envs: Any,
    policy: Policy,
    seeds: Sequence[int],
    *,
    options: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Episodes:
    """Play an episode in each of E environments.

    Args:
        envs: A vector of E Gymnasium environments.
        policy: The policy.
        seeds: The seed of each environment, [E].
        options: Options of `reset`, for all environments.
        max_steps: Steps after which an episode is cut. By default only the environment ends an episode.
        stop: Called before every step. True interrupts the evaluation.

    Raises:
        StoppedError: If `stop` returned True.
    """
    observations, infos = envs.reset(seed=[*seeds], options=None if options is None else dict(options))
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    success, reported, step = np.zeros(envs.num_envs, bool), False, 0
    while running.any() and (max_steps is None or step < max_steps):
        if stop():
            raise StoppedError
        observations, rewards, terminated, truncated, infos = envs.step(policy(observations, returns.copy(), infos))
        returns += rewards * running
        for name in _SUCCESS_KEYS:
            if name in infos:
                reported = True
                success |= np.asarray(infos[name], bool) & running
        running &= ~(terminated | truncated)
        step += 1
    return Episodes(returns, success if reported else None)


def summarize(dataset_id: str, episodes: Episodes) -> dict[str, float]:
    """Return the numbers of episodes that a program reports.

    `return` and `score`, normalized and in percent, are means over the episodes, with the standard errors of the means if
    there are several episodes. `success` is the share of successful episodes in percent, with the 95% interval (Wilson
    1927).
    """
    summary = _mean("return", episodes.returns)
    with suppress(InvalidArgumentError):  # there are no reference scores
        summary |= _mean("score", np.asarray(normalized_score(dataset_id, episodes.returns, percent=True)))
    if episodes.success is not None:
        count = len(episodes.success)
        low, high = success_interval(int(episodes.success.sum()), count)
        success = 100 * float(episodes.success.mean())
        summary |= {"success": success, "success_low": 100 * low, "success_high": 100 * high}
    return summary


def _mean(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    error = {f"{name}_stderr": float(values.std(ddof=1)) / math.sqrt(len(values))} if len(values) > 1 else {}
    return {name: float(values.mean()), **error}


def success_interval(successes: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a success rate (Wilson 1927, doi:10.1080/01621459.1927.10502953).

        >>> success_interval(8, 10)
        (0.4901..., 0.9433...)

    Args:
        successes: Number of successful episodes.
        count: Number of episodes, above 0.
    """
    share, spread = successes / count, _Z**2 / count
    middle, half = share + spread / 2, _Z * math.sqrt((share * (1 - share) + spread / 4) / count)
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
