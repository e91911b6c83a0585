"""A model of the usual step of a dataset: which observation follows from an observation and an action.

Two linear models tell unusual steps apart. With few elements, such as of a pendulum, products of the elements of s_t and a_t are
inputs, too. Each model is fitted to sampled steps without the most unusual 2 %:

    forward   s_t+1 - s_t, predicted from s_t and a_t
    joint     each element of s_t+1, predicted from s_t, a_t and the other elements of s_t+1. In a system with contacts the
              change of a position follows from the speeds before and after the step, and not from the action.

The score of a step is the weighted mean over the elements of log(1 + |error| / usual error), where the usual error is the 98 %
quantile of the errors of the element. The weight is the index of the tail of the errors: an element with contacts has large
errors in clean steps, which say little.

Elements that never change inside most episodes, such as a goal, are not in the models: see `Dynamics.resting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.ted.keys import Key

_ELEMENTS = 128
_DISCRETE = 32
_ROUNDS = 4
_KEPT = 0.98
_USUAL = 0.98
_RIDGE = 1e-6
_FITTED = 1 << 12
_AROUND = 16
_FEW = 12
_ROWS_PER_INPUT = 10
_ROWS = 1 << 13
_STEEPEST = 12.0
_SMALLEST = 1e-4

Floats = NDArray[np.float64]


class Dynamics:
    """The usual step of a dataset.

    Args:
        data: The dataset.

    Attributes:
        elements: Number of elements of the observations in the model. 0 if no element changes.
        usual: Scores of the sampled steps by the two models, float32 [K, 2].
        rows: The sampled steps, int64 [K], ascending.
        sampled: Elements before, actions, and elements after of the sampled steps, less their centers, float32 [K, D + A + D].
        resting: Elements by field that have a value of their own in each episode, and change in no sampled step.
    """

    def __init__(self, data: Data) -> None:
        self._data, self.states, self.actions = data, tuple(data.states), tuple(data.actions)
        samples = {key: data.sample(key) for key in self.states}
        first = samples[self.states[0]]
        now = np.hstack([sample.now for sample in samples.values()])
        after = np.hstack([sample.after for sample in samples.values()])
        has_after = first.has_after & np.isfinite(now).all(axis=1) & np.isfinite(after).all(axis=1)
        acts = [data.sample(key).now for key in self.actions]
        self._levels = [
            np.unique(one) if data.field(key).dtype.kind in "iu" and len(np.unique(one)) <= _DISCRETE else None
            for key, one in zip(self.actions, acts, strict=True)
        ]
        has_after &= np.isfinite(np.hstack([now[:, :1], *acts])).all(axis=1)
        change = np.abs(after[has_after] - now[has_after])
        moving = (np.median(change, axis=0) > 0) if len(change) else np.zeros(now.shape[1], np.bool_)
        chosen = np.flatnonzero(moving)[:_ELEMENTS]
        edges = np.cumsum([0, *(sample.now.shape[1] for sample in samples.values())])
        self._moving = [chosen[(chosen >= start) & (chosen < stop)] - start for start, stop in pairwise(edges.tolist())]
        self.resting = {key: _resting(data, key) for key in self.states}
        self.elements = len(chosen)
        if not self.elements or has_after.sum() < 4 * (2 * self.elements + 8):
            self.elements = 0
            self.usual = np.zeros((1, 2), np.float32)
            return
        usable = np.flatnonzero(has_after)
        has_after = np.zeros_like(has_after)
        has_after[usable[:: -(-len(usable) // _FITTED)]] = True
        values = np.hstack(
            [
                now[has_after][:, chosen],
                self._raw([one[has_after] for one in acts], int(has_after.sum())),
                after[has_after][:, chosen],
            ]
        )
        self.rows: NDArray[np.int64] = first.rows[has_after]
        self._fit(values)

    def _fit(self, values: Floats) -> None:
        """Fit both models to values before, actions and values after of steps, [K, D + A + D]."""
        count = self.elements
        now, after = values[:, :count], values[:, -count:]
        unit = (after - now).std(axis=0) + 1e-12
        # The elements before and after the step have the same center: their difference is exact in float32.
        center, scale = np.median(values, axis=0), values.std(axis=0) + 1e-12
        center[-count:], scale[-count:] = center[:count], scale[:count]
        self._center, self._scale = center, scale
        self._pairs = _pairs(len(scale) - count, len(values))
        inputs = self._with_products((values - center) / scale, np.ones(len(scale)))
        targets = (after - now) / unit
        # Steps with an extreme change have too much weight in a least-squares fit.
        kept = (np.abs(targets) <= 4 * np.quantile(np.abs(targets), 0.99, axis=0)).all(axis=1)
        forward = _fit_forward(inputs[:, :-count], targets, kept)
        joint = _fit_joint(np.hstack([inputs[:, :-count], targets]), count, kept)
        # Both models as weights of the values: [1, before, actions, after] -> errors / usual errors.
        parts = []
        for weights, usual, tails in (forward, joint):
            whole = np.zeros((1 + inputs.shape[1], count))
            whole[: len(weights) if len(weights) < len(whole) else -count] = (
                weights if len(weights) < len(whole) else weights[:-count]
            )
            of_targets = np.eye(count) if len(weights) < len(whole) else -weights[-count:]
            whole[: len(whole) - count] *= -1
            whole[-count:] += of_targets / unit[:, None] * scale[:count, None]
            whole[1 : 1 + count] -= of_targets / unit[:, None] * scale[:count, None]
            parts.append((whole / usual, tails))
        self._weights = np.hstack([part[0] for part in parts])
        scale = np.concatenate([scale[:-count], np.ones(self._pairs.shape[1]), scale[-count:]])
        self._offset = self._weights[0].astype(np.float32)
        self._matrix = np.ascontiguousarray(self._weights[1:] / scale[:, None], np.float32)
        self._tails = np.zeros((2 * count, 2), np.float32)
        self._tails[:count, 0], self._tails[count:, 1] = (part[1] / part[1].sum() for part in parts)
        self.sampled = (values - center).astype(np.float32)
        self.usual = self._scores(self.sampled)

    def scores(self, block: Block) -> NDArray[np.float32]:
        """Return the scores of the steps of a block by the two models, float32 [N, 2].

        0 without a row after, or with a value that is not finite.
        """
        found = np.zeros((len(block), 2), np.float32)
        if not self.elements:
            return found
        values = self.values(block)
        # Chunks stay in the cache of the processor.
        for start in range(0, len(block), _ROWS):
            found[start : start + _ROWS] = self._scores(values[start : start + _ROWS])
        found[~block.has_after] = 0
        return np.nan_to_num(found, copy=False, nan=0.0, posinf=0.0)

    def around(self, row: int) -> NDArray[np.float32]:
        """Return the scores of the 16 sampled steps that start most like a step, float32 [16, 2]. The step itself is left out."""
        count = self.elements
        start = self.values(Block(self._data, row, row + 1))[0, :-count]
        distances = np.abs((self.sampled[:, :-count] - start) / self._scale[:-count]).max(axis=1)
        distances[np.abs(self.rows - row) <= 1] = np.inf
        found: NDArray[np.float32] = self.usual[np.argsort(distances)[:_AROUND]]
        return found

    def values(self, block: Block) -> NDArray[np.float32]:
        """Return the elements before, the actions, and the elements after, less their centers, float32 [N, D + A + D].

        After the last row of an episode, the elements after are those of another episode.
        """
        if "dynamics" not in block.shared:
            block.shared["dynamics"] = self._values(block)
        return block.shared["dynamics"]

    def _values(self, block: Block) -> NDArray[np.float32]:
        count, width = self.elements, len(self._center)
        # The row after the block is there, too: the elements after a row are the elements before the next row.
        values = np.empty((len(block) + 1, width), np.float32)
        column = 0
        for key, moving in zip(self.states, self._moving, strict=True):
            field = block.values(key)
            chosen = field if len(moving) == field.shape[1] else field.take(moving, axis=1)
            center = self._center[column : column + len(moving)].astype(np.result_type(field.dtype, np.float32))
            np.subtract(chosen, center, out=values[:, column : column + len(moving)], casting="same_kind")
            column += len(moving)
        values[:-1, -count:] = values[1:, :count]
        values = values[:-1]
        if width > 2 * count:
            values[:, count:-count] = self.encoded([block.now(key) for key in self.actions], len(block))
        return values

    def _scores(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore", over="ignore"):
            values = self._with_products(values, self._scale)
            errors = values @ self._matrix
            errors += self._offset
            np.abs(errors, out=errors)
            errors += 1
            scores: NDArray[np.float32] = np.log(errors, out=errors) @ self._tails
        return scores

    def _with_products(self, values: NDArray[Any], scale: Floats) -> NDArray[Any]:
        """Return the values with the products of the elements before and the actions, in front of the elements after."""
        if not self._pairs.shape[1]:
            return values
        first, second = self._pairs
        products = values[:, first] * values[:, second] * (1 / (scale[first] * scale[second])).astype(values.dtype)
        return np.hstack([values[:, : -self.elements], products, values[:, -self.elements :]])

    def encoded(self, actions: Sequence[NDArray[Any]], rows: int) -> NDArray[np.float32]:
        """Return the actions of rows as numbers less their centers, float32 [N, A].

        A discrete action has a column for each value but the first.
        """
        raw = self._raw(actions, rows)
        center = self._center[self.elements : -self.elements]
        encoded: NDArray[np.float32] = (raw - center.astype(np.result_type(raw.dtype, np.float32))).astype(
            np.float32, copy=False
        )
        return encoded

    def _raw(self, actions: Sequence[NDArray[Any]], rows: int) -> NDArray[Any]:
        parts = [
            action if levels is None else np.hstack([action == level for level in levels[1:]] or [action * 0])
            for action, levels in zip(actions, self._levels, strict=True)
        ]
        return np.hstack(parts) if parts else np.zeros((rows, 0), np.float32)


def _pairs(inputs: int, rows: int) -> NDArray[np.int64]:
    """Return the pairs of inputs that are multiplied into further inputs, int64 [2, P]: all pairs of few inputs, or none."""
    pairs = np.stack(np.triu_indices(inputs))
    few = inputs <= _FEW and rows >= _ROWS_PER_INPUT * (pairs.shape[1] + 2 * inputs)
    return pairs if few else pairs[:, :0]


def _resting(data: Data, key: Key) -> NDArray[np.int64]:
    """Return the elements that change in no sampled step, and between most episodes."""
    sample, starts = data.sample(key), data.episodes.starts
    inside = sample.has_after & np.isfinite(sample.now).all(axis=1) & np.isfinite(sample.after).all(axis=1)
    changed = (sample.now != sample.after)[inside].mean(axis=0) if inside.any() else np.ones(sample.now.shape[1])
    firsts = data.take(key, starts[np.unique(np.linspace(0, len(starts) - 1, min(len(starts), 1000)).astype(int))])
    between = (firsts[1:] != firsts[:-1]).mean(axis=0) if len(firsts) > 2 else np.zeros(firsts.shape[1])
    return np.flatnonzero((changed < 0.01) & (between > 0.5))


_Fitted = tuple[Floats, Floats, Floats]
"""Weights [1 + F, D], usual errors [D], and indices of the tails [D]."""


def _fit_forward(inputs: Floats, targets: Floats, kept: NDArray[np.bool_]) -> _Fitted:
    inputs = np.hstack([np.ones((len(inputs), 1)), inputs])
    for _ in range(_ROUNDS):
        chosen = inputs[kept]
        square = chosen.T @ chosen + _RIDGE * len(chosen) * np.eye(inputs.shape[1])
        fitted = _measured(np.linalg.solve(square, chosen.T @ targets[kept]), inputs, targets, kept)
        kept = _usual_steps(fitted, inputs, targets)
    return fitted


def _fit_joint(values: Floats, elements: int, kept: NDArray[np.bool_]) -> _Fitted:
    """Return the model with the errors of the last elements, each predicted from all other values."""
    inputs = np.hstack([np.ones((len(values), 1)), values])
    zeros = np.zeros((len(values), elements))
    for _ in range(_ROUNDS):
        mean = values[kept].mean(axis=0)
        covariance = np.cov(values[kept].T) + _RIDGE * np.eye(values.shape[1])
        precision = np.linalg.inv(covariance)[:, -elements:]
        weights = precision / precision[-elements:].diagonal()
        fitted = _measured(np.vstack([-mean @ weights, weights]), inputs, zeros, kept)
        kept = _usual_steps(fitted, inputs, zeros)
    return fitted


def _measured(weights: NDArray[np.floating[Any]], inputs: Floats, targets: Floats, kept: NDArray[np.bool_]) -> _Fitted:
    errors = np.abs(targets - inputs @ weights)
    usual = np.quantile(errors[kept], _USUAL, axis=0) + _SMALLEST
    return weights.astype(np.float64), usual, _tails(errors / usual)


def _tails(errors: Floats) -> Floats:
    """Return the index of the tail of each element by Hill's estimator, [D], of errors relative to the usual error, [K, D]."""
    beyond = errors > 1
    logs = np.where(beyond, np.log(np.maximum(errors, 1)), 0).sum(axis=0)
    found: Floats = np.clip((beyond.sum(axis=0) + 1) / (logs + 1 / _STEEPEST), 1, _STEEPEST)
    return found


def _usual_steps(fitted: _Fitted, inputs: Floats, targets: Floats) -> NDArray[np.bool_]:
    weights, usual, tails = fitted
    scores = np.log1p(np.abs(targets - inputs @ weights) / usual) @ tails
    kept: NDArray[np.bool_] = scores <= np.quantile(scores, _KEPT)
    return kept
