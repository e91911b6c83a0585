"""What the images of a camera say about the states, and at which lag of time they say it.

A linear model reads the states from the image, as means over the cells of a grid of pixels:

    states of step t + lag   <-   image of step t,   lag = -8 ... 8

A lag below 0 means that the image shows an earlier state: the images are late. The model is fitted without the mean of each
clip, because a tint and a camera that was moved belong to the episode and not to the states. States that the images do not
show, such as a friction, get no weight. Each episode is read by a model that was fitted to other episodes.

Two costs of a lag tell where an episode fits best. The level of the errors is exact but follows a drift of the model. Their change
over four steps is noisy but free of the drift. A fault shows in both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Measures
from datasets_rl.auditing.block import Block, products
from datasets_rl.auditing.data import Clips, Data
from datasets_rl.ted.keys import Key

LAGS = np.arange(-8, 9)
ZERO = 8
"""Index of the lag 0."""
PARTS = 8
"""Parts of an episode, of equal length, whose costs are kept apart."""
_CELLS = 12
_FOLDS = 4
_STATES = 32
_DIRECTIONS = 4
_RIDGE = 1e-2
_SHOWN = 0.2
SPAN = 4
"""Steps over which the change of the errors is taken."""
_FEWEST_CLIPS = 8
_FEWEST_STEPS = 200
_READ_BYTES = 16 << 20

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

MERGES = {"steps": "sum", "errors": "sum", "squares": "sum", "pairs": "sum", "changes": "sum"}
"""The measures of `Sight.measure`."""


class Sight:
    """What a camera shows of the states.

    Args:
        data: The dataset.
        key: The field of images.

    Attributes:
        lag: The lag in steps at which the images of most episodes fit.
        gain: By how much the images fit better at that lag than at 0, as the logarithm of the ratio of the costs: of the errors, and
            of their changes.
        usual_change: Median of the mean square difference between an image and the next, in cells.
        sure: How sure it is that the images fit better at that lag, in standard errors over the clips.
    """

    def __init__(self, data: Data, key: Key) -> None:
        self.data, self.key = data, key
        self.lag, self.gain, self.sure = 0, (0.0, 0.0), 0.0
        self.usual_change = 1.0
        self._patterns: Singles = np.zeros((0, 0), np.float32)
        clips = data.clips(key)
        targets = self._fit_states(clips)
        if targets is None:
            return
        rows, states = targets
        images = cells_of(clips.grids[rows]).astype(np.float64)
        clip, fold = clips.clip[rows], data.episodes.episode_of(clips.rows[rows]) % _FOLDS
        self.usual_change = float(np.median((np.diff(images, axis=0) ** 2).mean(axis=1)))
        images, states = _centered(images, clip), _centered(states, clip)
        weights, errors = _fitted(images, states.reshape(len(states), -1), fold)
        self._choose_lag(states, errors.reshape(states.shape), clip)
        self._choose_directions(states, errors.reshape(states.shape), clip, weights)

    @property
    def shows_states(self) -> bool:
        """Whether the images show any state."""
        return len(self._patterns) > 0

    def measure(self, block: Block) -> Measures:
        """Return the measures of the episodes of a block.

        The costs are sums for each of 17 lags, relative to `lag`: `errors` float32 [E, 17, K] and `squares` [E, 17] over `steps` [E],
        and `changes` [E, 8, 17] over `pairs` [E, 8] in the parts of the episode.
        """
        count = len(block.episodes)
        if not self.shows_states:
            return {
                "steps": np.zeros(count),
                "errors": np.zeros((count, len(LAGS), 1), np.float32),
                "squares": np.zeros((count, len(LAGS)), np.float32),
                "pairs": np.zeros((count, PARTS), np.float32),
                "changes": np.zeros((count, PARTS, len(LAGS)), np.float32),
            }
        errors, inside = self._errors(block.pixels(self.key).grids, block.start)
        errors[~inside] = 0
        lengths = self.data.episodes.lengths[block.episodes][block.episode]
        both, changes = self._changes(errors, inside, block.episode)
        part = block.episode[:-SPAN] * PARTS + (block.time[:-SPAN] * PARTS) // lengths[:-SPAN] if len(both) else both
        pairs, kept = np.zeros(count * PARTS, np.float32), np.zeros((count * PARTS, len(LAGS)), np.float32)
        if len(both):
            firsts = np.flatnonzero(np.diff(part, prepend=-1))
            pairs[part[firsts]] = np.add.reduceat(both, firsts, dtype=np.float32)
            kept[part[firsts]] = np.add.reduceat(changes, firsts, axis=0)
        return {
            "steps": block.sums(inside),
            "errors": block.sums(errors).astype(np.float32),
            "squares": block.sums(np.einsum("nlk,nlk->nl", errors, errors)).astype(np.float32),
            "pairs": pairs.reshape(count, PARTS),
            "changes": kept.reshape(count, PARTS, len(LAGS)),
        }

    def changes_of(self, episode: int) -> tuple[NDArray[np.bool_], Singles, Singles]:
        """Read an episode again, and return the cost of each lag at each step t, and how much the images change.

        Returns:
            Whether t and t + 4 are compared, bool [T - 4], the costs, float32 [T - 4, 17], and the mean square difference between
            the images of t and t + 1, float32 [T - 1].
        """
        start, stop = (int(one) for one in (self.data.episodes.starts[episode], self.data.episodes.stops[episode]))
        size = max(SPAN, _READ_BYTES // max(self.data.field(self.key).step_bytes, 1))
        parts, moved, last = [], [], None
        for first in range(start, stop, size):
            grids = self.data.grids(self.key, np.arange(first, min(first + size, stop)))
            parts.append(self._errors(grids, first))
            cells = cells_of(grids)
            joined = cells if last is None else np.concatenate([last, cells])
            moved.append((np.diff(joined, axis=0) ** 2).mean(axis=1))
            last = cells[-1:]
        errors, inside = (np.concatenate(one) for one in zip(*parts, strict=True))
        both, changes = self._changes(errors, inside, np.zeros(len(errors), np.int64))
        return both, changes, np.concatenate(moved)

    def _fit_states(self, clips: Clips) -> tuple[NDArray[np.int64], Floats] | None:
        """Return indices of steps of the clips, [K], and the states at all lags, [K, 17, D], without a unit."""
        episodes = self.data.episodes.episode_of(clips.rows)
        low, high = self.data.episodes.starts[episodes], self.data.episodes.stops[episodes]
        rows = np.flatnonzero((clips.rows + LAGS[0] >= low) & (clips.rows + LAGS[-1] < high))
        states = self._read_states(clips.rows[rows][:, None] + LAGS)
        finite = np.isfinite(states).all(axis=(1, 2))
        rows, states = rows[finite], states[finite]
        if len(rows) < _FEWEST_STEPS or len(np.unique(clips.clip[rows])) < _FEWEST_CLIPS:
            return None
        spread = _centered(states[:, ZERO], clips.clip[rows]).std(axis=0)
        self._used = np.flatnonzero(spread > 1e-6 * np.abs(states[:, ZERO]).max(axis=0, initial=0))[:_STATES]
        if not len(self._used):
            return None
        self._center, self._scale = states[:, ZERO, self._used].mean(axis=0), spread[self._used]
        return rows, (states[:, :, self._used] - self._center) / self._scale

    def _choose_lag(self, states: Floats, errors: Floats, clip: NDArray[np.int64]) -> None:
        shown = 1 - (errors**2).sum(axis=0) / np.maximum((states**2).sum(axis=0), 1e-12)
        used = shown.max(axis=0) > _SHOWN
        if not used.any():
            return
        _, firsts = np.unique(clip, return_index=True)
        together = clip[SPAN:] == clip[:-SPAN]
        changes = (errors[SPAN:] - errors[:-SPAN]) * together[:, None, None]
        level = np.add.reduceat((errors[:, :, used] ** 2), firsts, axis=0)
        change = np.add.reduceat(
            np.concatenate([changes[:, :, used] ** 2, np.zeros((SPAN, len(LAGS), used.sum()))]), firsts, axis=0
        )
        best = [0, 0]
        for number, of_state in enumerate((level, change)):
            costs = (of_state / np.maximum(of_state.sum(axis=0).min(axis=0), 1e-12)).sum(axis=2)
            total = costs.sum(axis=0)
            best[number] = int(total.argmin())
            gains = costs[:, ZERO] - costs[:, best[number]]
            self.sure = gains.sum() / max(float(np.sqrt((gains**2).sum())), 1e-12)
            gain = float(np.log(total[ZERO] / total[best[number]]))
            self.gain = (gain, self.gain[1]) if number == 0 else (self.gain[0], gain)
        if (
            best[0] == best[1]
            and abs(best[0] - ZERO) >= 2
            and self.gain[0] > 0.2
            and self.gain[1] > 0.04
            and self.sure > 2.0
        ):
            self.lag = int(LAGS[best[0]])

    def _choose_directions(self, states: Floats, errors: Floats, clip: NDArray[np.int64], weights: Floats) -> None:
        """Keep the combinations of the states that the images show best, in units of the errors of the model."""
        place = ZERO + self.lag
        errors, states = errors[:, place], states[:, place]
        noise = errors.T @ errors / len(errors)
        values, vectors = np.linalg.eigh(noise)
        whitened = vectors / np.sqrt(np.maximum(values, 1e-4 * values[-1]))
        ratios, turned = np.linalg.eigh(whitened.T @ (states.T @ states / len(states)) @ whitened)
        chosen = [number for number in np.argsort(-ratios)[:_DIRECTIONS] if ratios[number] > 1 / (1 - _SHOWN)]
        if not chosen:
            return
        self._directions = (whitened @ turned[:, chosen]).astype(np.float64)
        together = clip[SPAN:] == clip[:-SPAN]
        moved = ((errors[SPAN:] - errors[:-SPAN]) @ self._directions)[together]
        self._unit = (1 / np.maximum(moved.std(axis=0), 1e-9)).astype(np.float32)
        shape = (_FOLDS, weights.shape[1], len(LAGS), -1)
        of_lag = weights.reshape(shape)[:, :, place] @ self._directions
        self._patterns = _patterns(of_lag, self.data.places(self.key).shape)

    def _read_states(self, rows: NDArray[np.int64]) -> Floats:
        unique, places = np.unique(rows, return_inverse=True)
        values = np.hstack([self.data.take(key, unique).astype(np.float64) for key in self.data.states])
        result: Floats = values[places.reshape(rows.shape)]
        return result

    def _errors(self, grids: NDArray[np.uint8], start: int) -> tuple[Singles, NDArray[np.bool_]]:
        """Return the errors of consecutive images from a row on, float32 [N, 17, K], and which of them have states at all lags."""
        count = len(grids)
        rows = np.arange(start, start + count)
        episodes = self.data.episodes.episode_of(rows)
        read = products(grids, self._patterns).reshape(count, _FOLDS, -1)
        read = read[np.arange(count), episodes % _FOLDS]
        first = start + self.lag + int(LAGS[0])
        around = np.clip(np.arange(first, first + count + len(LAGS) - 1), 0, len(self.data) - 1)
        around_states = (self._read_states(around)[:, self._used] - self._center) / self._scale
        states = np.einsum("nd,dk->nk", around_states, self._directions).astype(np.float32)
        places = np.arange(count)[:, None] + np.arange(len(LAGS))
        errors: Singles = read[:, None, :] - states[places]
        low, high = self.data.episodes.starts[episodes], self.data.episodes.stops[episodes]
        inside = (rows + self.lag + LAGS[0] >= low) & (rows + self.lag + LAGS[-1] < high)
        return errors, inside & np.isfinite(errors).all(axis=(1, 2))

    def _changes(
        self, errors: Singles, inside: NDArray[np.bool_], episode: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], Singles]:
        both = inside[SPAN:] & inside[:-SPAN] & (episode[SPAN:] == episode[:-SPAN])
        changes = (errors[SPAN:] - errors[:-SPAN]) * self._unit
        changes[~both] = 0
        return both, np.einsum("nlk,nlk->nl", changes, changes)


def cells_of(grids: NDArray[np.generic]) -> Singles:
    """Return the mean of each cell of pixels, at most 12 x 12 cells, float32 [N, F], of grids [N, h, w, c]."""
    count, height, width, channels = grids.shape
    tall, wide = -(-height // _CELLS), -(-width // _CELLS)
    rows, columns = height // tall, width // wide
    cells = np.zeros((count, rows, columns, channels), np.float32)
    for row, column in np.ndindex(tall, wide):
        cells += grids[:, row : rows * tall : tall, column : columns * wide : wide]
    cells /= tall * wide
    return cells.reshape(count, -1)


def _patterns(weights: Floats, shape: tuple[int, ...]) -> Singles:
    """Return weights of the cells of a grid as weights of its pixels, float32 [4 * K, h * w * c].

    Args:
        weights: Weights of the cells, [4, F, K]: see `cells_of`.
        shape: Shape of the grid, (h, w, c).
    """
    height, width, channels = shape
    tall, wide = -(-height // _CELLS), -(-width // _CELLS)
    rows, columns = height // tall, width // wide
    of_cells = np.moveaxis(weights, 1, 2).reshape(-1, rows, columns, channels) / (tall * wide)
    patterns = np.zeros((len(of_cells), *shape), np.float32)
    patterns[:, : rows * tall, : columns * wide] = of_cells.repeat(tall, axis=1).repeat(wide, axis=2)
    return patterns.reshape(len(patterns), -1)


def best_lags(costs: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Return the lag in steps with the lowest cost, between two steps, [E], and the logarithm of its gain over lag 0, [E].

    Args:
        costs: Cost of each lag, [E, 17].
    """
    costs = np.maximum(costs.astype(np.float64), 1e-12)
    number, best = np.arange(len(costs)), costs.argmin(axis=1)
    inner = np.clip(best, 1, len(LAGS) - 2)
    left, middle, right = costs[number, inner - 1], costs[number, inner], costs[number, inner + 1]
    bend = left - 2 * middle + right
    offset = np.where((inner == best) & (bend > 0), 0.5 * (left - right) / np.where(bend > 0, bend, 1), 0)
    return LAGS[best] + offset, np.log(costs[:, ZERO] / costs[number, best])


def _centered(values: Floats, clip: NDArray[np.int64]) -> Floats:
    """Return values [K, ...] without the mean of their clip."""
    _, firsts, places, counts = np.unique(clip, return_index=True, return_inverse=True, return_counts=True)
    sums = np.add.reduceat(values, firsts, axis=0)
    means = sums / counts.reshape(-1, *[1] * (values.ndim - 1))
    result: Floats = values - means[places]
    return result


def _fitted(inputs: Floats, targets: Floats, fold: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the weights without the steps of each fold, [4, F, M], and the errors in the steps of each fold, [K, M]."""
    weights = np.empty((_FOLDS, inputs.shape[1], targets.shape[1]))
    errors = np.empty_like(targets)
    parts = [(inputs[fold == number], targets[fold == number]) for number in range(_FOLDS)]
    squares, covariances = ([one.T @ two for one, two in pairs] for pairs in ([(one, one) for one, _ in parts], parts))
    for number, (part, of_part) in enumerate(parts):
        square = sum(squares) - squares[number]
        square += (_RIDGE * np.trace(square) / len(square) + 1e-9) * np.eye(len(square))
        weights[number] = np.linalg.solve(square, sum(covariances) - covariances[number])
        errors[fold == number] = part @ weights[number] - of_part
    return weights, errors


def sight_measures(block: Block, key: Key) -> Measures:
    """Return how well the images of a block fit the states at several lags, for all checks that ask: see `Sight.measure`."""
    return block.once("sight", key, lambda: block.data.model(Sight, key).measure(block))
