"""How well the actions and the rewards of nearby steps follow from the states before and after a step.

The action of a step shows in the change of the state. A linear model predicts a_t from s_t and s_t+1, and another one r_t from
s_t, a_t, s_t+1, their squares and absolute values. If the action of the next step fits better than the action of the step, the actions are
stored a step late.

    steps          t - 2   t - 1   t   t + 1   t + 2
    states                        s_t  s_t+1              -> predicted action, compared with each of
    stored actions  a_t-2  a_t-1  a_t  a_t+1   a_t+2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.dynamics import Dynamics
from datasets_rl.ted.keys import Key

REACH = 2
LAGS: NDArray[np.int64] = np.arange(-REACH, REACH + 1)
"""Steps by which the compared action or reward is later than the states."""
HALVES = 2
_RIDGE = 1e-6
_FLOOR = 1e-4
MANY = 0.15
"""Share of the episodes above which a shift is a difference between two groups of episodes."""
_GAIN = 0.3
_FEWEST = 5
_GREAT = 2.0
_BESIDE = 0.1
_KNOWN = 0.8
_FEWEST_GREAT = 3
_LOOSE = 1.0
_EXPLAINED = np.log(0.1)
_CLEARLY = 0.1
_CLEARLY_REWARDS = 0.7

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shift:
    """An episode that fits at another lag.

    Attributes:
        episode: Number of the episode.
        lag: Steps by which the values are later than in the other episodes.
        part: 0 for the whole episode, 1 or 2 for a half.
        times: Factor by which the error is smaller at this lag.
    """

    episode: int
    lag: int
    part: int
    times: float


class Alignment:
    """What the states before and after a step say about the action, or the reward, of the step.

    Args:
        data: The dataset, with a model of the usual step.
        rewards: Whether to look at the reward, in place of the actions.

    Attributes:
        errors: Share of the variance of each element that the states do not explain, by lag, [5, A]. 1 by chance.
        common: Index of the lag at which the dataset fits best.
    """

    def __init__(self, data: Data, rewards: bool) -> None:
        self._rewards, self._dynamics = rewards, data.model(Dynamics)
        self._keys: tuple[Key, ...] = tuple(data.rewards if rewards else self._dynamics.actions)
        rows = self._dynamics.rows
        episodes = data.episodes.episode_of(rows)
        inside = (rows - REACH >= data.episodes.starts[episodes]) & (rows + REACH < data.episodes.stops[episodes])
        rows, values = rows[inside], self._dynamics.sampled[inside]
        targets = [self._targets([data.take(key, rows + lag) for key in self._keys], len(rows)) for lag in LAGS]
        finite = np.isfinite(np.hstack(targets)).all(axis=1) if len(rows) else np.zeros(0, np.bool_)
        self.usable = bool(finite.sum() > 4 * (values.shape[1] * (3 if rewards else 1) + 8))
        if not self.usable:
            return
        inputs = self._inputs(values[finite]).astype(np.float64)
        self._center, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-12
        inputs = (inputs - self._center) / scale
        wanted = np.hstack([one[finite] for one in targets]).astype(np.float64)
        level = wanted.mean(axis=0)
        weights, left = _fit(inputs, wanted - level)
        # By lag and element.
        self.errors: Floats = left.reshape(len(LAGS), -1)
        self._variance = np.maximum(wanted.var(axis=0).reshape(len(LAGS), -1)[REACH], 1e-12)
        self.common = self._common()
        # Where the states do not say anything about the values, one lag fits as well as another by chance.
        self.usable = float(self.errors[self.common].min()) < _KNOWN
        best = weights.reshape(len(weights), len(LAGS), -1)[:, self.common] / scale[:, None]
        self._weights = best.astype(np.float32)
        self._offset = (level.reshape(len(LAGS), -1)[self.common] - self._center @ best).astype(np.float32)

    def _common(self) -> int:
        fit = np.log(self.errors).mean(axis=1)
        best = int(fit.argmin())
        return best if fit[best] < fit[REACH] - (_CLEARLY_REWARDS if self._rewards else _CLEARLY) else REACH

    def lag_errors(self, block: Block) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the summed squares of the errors by half of the episode and lag, [E, 2, 5, A], and the steps, int64 [E, 2].

        The errors are shares of the variance. Steps with a value that is not finite, or less than 2 steps from an end of the
        episode, are left out. Errors above four standard deviations count as four.
        """
        from datasets_rl.auditing._lags import add_errors

        predicted = self._predicted(self._dynamics.values(block))
        stored = self._targets([_padded(block, key) for key in self._keys], len(block) + 2 * REACH)
        sums = np.zeros((len(block.starts), HALVES, len(LAGS), stored.shape[1]))
        counts = np.zeros((len(block.starts), HALVES), np.int64)
        add_errors(
            np.ascontiguousarray(predicted),
            np.ascontiguousarray(stored),
            block.starts,
            block.time[block.starts],
            block.data.episodes.lengths[block.episodes],
            (1 / self._variance).astype(np.float32),
            sums,
            counts,
        )
        return sums, counts

    def shifted(self, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> list[Shift]:
        """Return the episodes, or halves of episodes, that fit clearly better at another lag, unlike the other episodes.

        Args:
            sums: Errors by half of the episode, as of `lag_errors`, [E, 2, 5, A].
            counts: Steps by half of the episode, [E, 2].
        """
        counts, logs, gains = self._gains(sums, counts)
        half, high = np.quantile(gains, [0.5, 0.9], axis=0)
        found = (gains > _GAIN) & (counts >= _FEWEST)[:, :, None]
        # Of few steps only a great difference counts.
        found |= (gains > _GREAT) & (counts >= _FEWEST_GREAT)[:, :, None]
        found[:, :, self.common] = False
        found[:, 0] &= ((gains[:, 1:] > 0) | (counts[:, 1:] < _FEWEST)[:, :, None]).all(axis=1)
        if self._rewards:
            # In half of an episode, a drift of the reward looks like a shift: steps nearer and farther must fit less.
            beside = np.pad(gains, ((0, 0), (0, 0), (1, 1)), constant_values=np.inf)
            found[:, 1:] &= (gains > np.maximum(beside[..., :-2], beside[..., 2:]) + _BESIDE)[:, 1:]
        # Where many episodes are shifted, the quantiles say nothing about the others.
        if not (found[:, 0].mean(axis=0) > MANY).any():
            found &= gains > high + 1.5 * (high - half)
            # At the right lag, an episode fits as other episodes do: where nothing fits, nothing is known.
            found &= logs <= np.maximum(_EXPLAINED, np.quantile(logs[:, :, self.common], 0.9, axis=0) + _LOOSE)[:, None]
        best = np.where(found, gains, -np.inf)
        result = []
        for episode in np.flatnonzero(found.any(axis=(1, 2))).tolist():
            part = 0 if found[episode, 0].any() else 1 + int(best[episode, 1:].max(axis=1).argmax())
            lag = int(best[episode, part].argmax())
            times = float(np.exp(gains[episode, part, lag]))
            result.append(Shift(episode, int(LAGS[lag] - LAGS[self.common]), part, times))
        return result

    def scores(self, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return by how much each episode, or a half of it, fits better at another lag, on a logarithmic scale, [E].

        Args:
            sums: Errors by half of the episode, as of `lag_errors`, [E, 2, 5, A].
            counts: Steps by half of the episode, [E, 2].
        """
        counts, _, gains = self._gains(sums, counts)
        best: NDArray[np.float64] = np.where(counts >= _FEWEST, gains.max(axis=2), 0).max(axis=1)
        return best

    def _gains(
        self, sums: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the steps, the errors and by how much they are smaller than at the usual lag, of episodes and halves.

        Errors are logarithms, [E, 3, 5], and so are the gains. The steps are [E, 3].
        """
        sums = np.concatenate([sums.sum(axis=1, keepdims=True), sums], axis=1)
        counts = np.concatenate([counts.sum(axis=1, keepdims=True), counts], axis=1)
        mean = sums / np.maximum(counts, 1)[:, :, None, None]
        # What the model does not explain in the median episode says nothing in another episode.
        floor = 0.1 * np.median(mean[:, 0, self.common], axis=0) + _FLOOR
        logs = np.log(mean + floor).mean(axis=3)
        return counts, logs, logs[:, :, self.common, None] - logs

    def _predicted(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        width, count = values.shape[1], self._dynamics.elements
        if self._rewards:
            first, squares, sizes = self._weights.reshape(3, width, -1)
            predicted = values @ first + (values * values) @ squares + np.abs(values) @ sizes
        else:
            weights = np.zeros((width, self._weights.shape[1]), np.float32)
            weights[:count], weights[-count:] = self._weights[:count], self._weights[-count:]
            # Infinite values have no prediction.
            with np.errstate(invalid="ignore"):
                predicted = values @ weights
        result: NDArray[np.float32] = predicted + self._offset
        return result

    def _inputs(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        count = self._dynamics.elements
        if self._rewards:
            # Costs of actions are squares, and distances to goals are nearer to absolute values.
            return np.hstack([values, values**2, np.abs(values)])
        return np.hstack([values[:, :count], values[:, -count:]])

    def _targets(self, values: list[NDArray[np.generic]], rows: int) -> NDArray[np.float32]:
        if self._rewards:
            return np.hstack(values).astype(np.float32)
        return self._dynamics.encoded(values, rows)


def _fit(inputs: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Return the weights [F, A] of the inputs, and the share of the variance that is left, [A], of centered targets."""
    square = inputs.T @ inputs
    covariance = inputs.T @ targets
    weights = np.linalg.solve(square + _RIDGE * len(inputs) * np.eye(len(square)), covariance)
    total = (targets**2).sum(axis=0)
    left = total - 2 * (weights * covariance).sum(axis=0) + (weights * (square @ weights)).sum(axis=0)
    return weights.astype(np.float64), np.maximum(left / np.maximum(total, 1e-12), _FLOOR)


def _padded(block: Block, key: Key) -> NDArray[np.generic]:
    """Return a field of the rows of a block and of the two rows before and after, [N + 4, D]. Copies stand for no rows."""
    steps = block.data.steps
    before = np.arange(block.start - REACH, block.start).clip(0)
    after = np.arange(block.stop, block.stop + REACH).clip(0, len(block.data) - 1)
    outside = np.unique(np.concatenate([before, after]))
    values = steps.take(key, outside).reshape(len(outside), -1)
    return np.concatenate(
        [values[np.searchsorted(outside, before)], block.now(key), values[np.searchsorted(outside, after)]]
    )
