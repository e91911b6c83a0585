"""A linear model of the usual step of a dataset: which observation follows from an observation and an action.

Two models tell unusual steps apart. Each is fitted to sampled steps without the most unusual 2 %:

    forward   s_t+1 - s_t, predicted from s_t and a_t
    joint     each element of s_t+1, predicted from s_t, a_t and the other elements of s_t+1. In a system with contacts the
              change of a position follows from the speeds before and after the step, and not from the action.

The score of a step is the mean over the elements of log(1 + |error| / usual error), where the usual error is the 98 %
quantile of the errors of the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data

_ELEMENTS = 128
_DISCRETE = 32
_ROUNDS = 4
_KEPT = 0.98
_USUAL = 0.98
_RIDGE = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Linear:
    """Prediction of the changes, [N, D], from inputs [N, F], and the usual error of each element, [D]."""

    weights: Floats
    usual: Floats

    def scores(self, inputs: Floats, targets: Floats) -> Floats:
        errors = np.abs(targets - inputs @ self.weights) / self.usual
        scores: Floats = np.log1p(errors).mean(axis=1)
        return scores


class Dynamics:
    """The usual step of a dataset.

    Args:
        data: The dataset.

    Attributes:
        elements: Number of elements of the observations in the model. 0 if no element changes.
    """

    def __init__(self, data: Data) -> None:
        self.states, self.actions = tuple(data.states), tuple(data.actions)
        samples = [data.sample(key) for key in self.states]
        now = np.hstack([sample.now for sample in samples])
        after = np.hstack([sample.after for sample in samples])
        has_after = samples[0].has_after & np.isfinite(now).all(axis=1) & np.isfinite(after).all(axis=1)
        acts = [data.sample(key).now for key in self.actions]
        self._levels = [
            np.unique(one) if data.field(key).dtype.kind in "iu" and len(np.unique(one)) <= _DISCRETE else None
            for key, one in zip(self.actions, acts, strict=True)
        ]
        has_after &= np.isfinite(np.hstack([now[:, :1], *acts])).all(axis=1)
        change = np.abs(after - now)[has_after]
        moving = (np.median(change, axis=0) > 0) if len(change) else np.zeros(now.shape[1], np.bool_)
        self._moving = np.flatnonzero(moving)[:_ELEMENTS]
        self.elements = len(self._moving)
        if not self.elements or has_after.sum() < 4 * (2 * self.elements + 8):
            self.elements = 0
            return
        now, after = now[has_after][:, self._moving], after[has_after][:, self._moving]
        chosen = self._encoded([one[has_after] for one in acts])
        inputs = np.hstack([now, chosen])
        self._center, self._scale = np.median(inputs, axis=0), inputs.std(axis=0) + 1e-12
        self._unit = (after - now).std(axis=0) + 1e-12
        inputs, targets = self._inputs(now, chosen), (after - now) / self._unit
        # Steps with an extreme change have too much weight in a least-squares fit.
        kept = (np.abs(targets) <= 4 * np.quantile(np.abs(targets), 0.99, axis=0)).all(axis=1)
        self._forward = _fit_forward(inputs, targets, kept)
        self._joint = _fit_joint(np.hstack([inputs[:, 1:], targets]), targets.shape[1], kept)
        self.usual = np.stack(self._scores(inputs, targets), axis=1)
        """Scores of the sampled steps by the two models, [K, 2]."""

    def scores(self, block: Block) -> Floats:
        """Return the scores of the steps of a block by the two models, [N, 2]. 0 without a row after, or without a number."""
        now = np.hstack([block.now(key) for key in self.states]).astype(np.float64)[:, self._moving]
        after = np.hstack([block.after(key) for key in self.states]).astype(np.float64)[:, self._moving]
        chosen = self._encoded([block.now(key).astype(np.float64) for key in self.actions], len(block))
        inputs, targets = self._inputs(now, chosen), (after - now) / self._unit
        valid = block.has_after & np.isfinite(inputs).all(axis=1) & np.isfinite(targets).all(axis=1)
        scores = np.zeros((len(block), 2))
        scores[valid] = np.stack(self._scores(inputs[valid], targets[valid]), axis=1)
        return scores

    def _scores(self, inputs: Floats, targets: Floats) -> tuple[Floats, Floats]:
        joint = np.hstack([inputs, targets])
        return self._forward.scores(inputs, targets), self._joint.scores(joint, np.zeros_like(targets))

    def _inputs(self, now: Floats, chosen: Floats) -> Floats:
        values = (np.hstack([now, chosen]) - self._center) / self._scale
        return np.hstack([np.ones((len(values), 1)), values])

    def _encoded(self, actions: Sequence[Floats], rows: int = 0) -> Floats:
        """Return actions as numbers, [N, A]: a column for each value of a discrete action but the first."""
        parts = [
            action if levels is None else np.hstack([action == level for level in levels[1:]] or [action * 0])
            for action, levels in zip(actions, self._levels, strict=True)
        ]
        return np.hstack(parts).astype(np.float64) if parts else np.zeros((rows or 1, 0))


def _fit_forward(inputs: Floats, targets: Floats, kept: NDArray[np.bool_]) -> _Linear:
    for _ in range(_ROUNDS):
        chosen = inputs[kept]
        square = chosen.T @ chosen + _RIDGE * len(chosen) * np.eye(inputs.shape[1])
        fitted = _linear(np.linalg.solve(square, chosen.T @ targets[kept]), inputs, targets, kept)
        kept = _usual_steps(fitted.scores(inputs, targets))
    return fitted


def _fit_joint(values: Floats, elements: int, kept: NDArray[np.bool_]) -> _Linear:
    """Return the model whose errors are those of the last elements, each predicted from all other values."""
    inputs = np.hstack([np.ones((len(values), 1)), values])
    zeros = np.zeros((len(values), elements))
    for _ in range(_ROUNDS):
        mean = values[kept].mean(axis=0)
        covariance = np.cov(values[kept].T) + _RIDGE * np.eye(values.shape[1])
        precision = np.linalg.inv(covariance)[:, -elements:]
        weights = precision / precision[-elements:].diagonal()
        fitted = _linear(np.vstack([-mean @ weights, weights]), inputs, zeros, kept)
        kept = _usual_steps(fitted.scores(inputs, zeros))
    return fitted


def _linear(weights: NDArray[np.floating[Any]], inputs: Floats, targets: Floats, kept: NDArray[np.bool_]) -> _Linear:
    errors = np.abs(targets - inputs @ weights)[kept]
    return _Linear(weights.astype(np.float64), np.quantile(errors, _USUAL, axis=0) + 1e-5)


def _usual_steps(scores: Floats) -> NDArray[np.bool_]:
    kept: NDArray[np.bool_] = scores <= np.quantile(scores, _KEPT)
    return kept
