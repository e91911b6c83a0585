"""A model of what a camera shows in a state, and how well the model fits at other lags of time.

The images of sampled steps, as grids of pixels, are reduced to their principal components. Each component is predicted from the
states, and from their squares and products, some steps before or after the image:

    image of step t   <-   states of step t + lag,   lag = -8 ... 8

A lag below 0 means that the image shows an earlier state: the images are late.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data, grid_of
from datasets_rl.format.quantiles import sample_rows
from datasets_rl.ted.keys import Key

LAGS = np.arange(-8, 9)
_IMAGES = 768
_COMPONENTS = 8
_ELEMENTS = 8
_RIDGE = 1e-3

Floats = NDArray[np.float64]


class Sight:
    """What a camera shows in a state.

    Args:
        data: The dataset.
        key: The field of images.

    Attributes:
        explained: Share of the variance of the images that the states explain at each lag, in steps that the model has not seen,
            float64 [17].
    """

    def __init__(self, data: Data, key: Key) -> None:
        self._data, self._key = data, key
        rows = sample_rows(len(data), min(_IMAGES, len(data)))
        grids = grid_of(data.steps.take(key, rows).reshape(len(rows), *data.field(key).shape)).reshape(len(rows), -1)
        self._mean = grids.mean(axis=0)
        _, _, directions = np.linalg.svd(grids - self._mean, full_matrices=False)
        self._directions = directions[:_COMPONENTS].T
        images = self._components(grids)
        states = np.hstack([data.sample(one).now for one in data.states])
        states = states[np.isfinite(states).all(axis=1)]
        self._center, spread = np.median(states, axis=0), states.std(axis=0)
        self._used = np.argsort(-(spread > 0).astype(int), kind="stable")[: min(_ELEMENTS, int((spread > 0).sum()))]
        self._spread = spread[self._used]
        episodes = data.episodes.episode_of(rows)
        low, high = data.episodes.starts[episodes], data.episodes.stops[episodes] - 1
        self.explained = np.zeros(len(LAGS))
        self._weights: list[Floats] = []
        for number, lag in enumerate(LAGS.tolist()):
            inside = (rows + lag >= low) & (rows + lag <= high)
            inputs = self._features(self._states(rows[inside] + lag))
            targets = images[inside]
            # Neighboring samples are of one episode: the halves are the first and the second part of the dataset.
            half = len(inputs) // 2
            errors = np.concatenate(
                [
                    targets[half:] - inputs[half:] @ _fit(inputs[:half], targets[:half]),
                    targets[:half] - inputs[:half] @ _fit(inputs[half:], targets[half:]),
                ]
            )
            variance = max(float(targets.var(axis=0).sum()), 1e-12)
            self.explained[number] = 1 - float((errors**2).mean(axis=0).sum()) / variance
            self._weights.append(_fit(inputs, targets))

    def errors(self, block: Block, lag: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return the errors of the model of a lag for the images of a block, when the states are read at each lag.

        Args:
            block: The block.
            lag: Index of the lag at which the images usually fit.

        Returns:
            The errors, [N, 17, C], the components of the images, [N, C], and the steps with states at all lags, bool [N].
        """
        reach = int(LAGS[-1])
        rows = np.arange(block.start - reach, block.stop + reach)
        features = self._features(self._states(np.clip(rows, 0, len(self._data) - 1)))
        predictions = features @ self._weights[lag]
        images = self._components(block.grids(self._key).reshape(len(block), -1))
        lengths = self._data.episodes.lengths[block.episodes][block.episode]
        inside = (
            (block.time + LAGS[0] >= 0)
            & (block.time + LAGS[-1] < lengths)
            & np.isfinite(features[reach:-reach]).all(axis=1)
        )
        # A model of lag l predicts the image of t from the state of t + l: an image that is later by k fits at l - k.
        places = np.arange(len(block))[:, None] + reach + LAGS[None, :]
        errors: Floats = images[:, None, :] - np.nan_to_num(predictions)[places]
        return errors, images, inside

    def _states(self, rows: NDArray[np.int64]) -> Floats:
        order = np.unique(rows)
        taken = np.hstack([self._data.take(key, order).astype(np.float64) for key in self._data.states])
        return taken[np.searchsorted(order, rows)]

    def _features(self, states: Floats) -> Floats:
        values = (states[:, self._used] - self._center[self._used]) / self._spread
        first, second = np.triu_indices(values.shape[1])
        return np.hstack([np.ones((len(values), 1)), values, values[:, first] * values[:, second]])

    def _components(self, grids: NDArray[np.float32]) -> Floats:
        components: Floats = ((grids - self._mean) @ self._directions).astype(np.float64)
        return components


def _fit(inputs: Floats, targets: Floats) -> Floats:
    finite = np.isfinite(inputs).all(axis=1)
    inputs, targets = inputs[finite], targets[finite]
    square = inputs.T @ inputs + _RIDGE * max(len(inputs), 1) * np.eye(inputs.shape[1])
    weights: Floats = np.linalg.solve(square, inputs.T @ targets)
    return weights
