"""Episodes, or parts of episodes, that are normalized by the mean and the standard deviation of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import PARTS, Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.ted.keys import Key

_LIMIT = 1.5
_TIMES = 1.5
_SHARE = 0.1
_FARTHEST = 36.0
_FEWEST_EPISODES = 8
_FEWEST_STEPS = 16
_LEAST = 1e-6


class NormalizedTwice(Check):
    name = "normalized_twice"
    rule = (
        "In a quarter of an episode, mean values, changes, and changes of changes are nearer to those of other episodes if the values are "
        "multiplied by the standard deviation of the field and its mean is added: the mean square of the robust distance, at most "
        f"{_FARTHEST:g} for an element, becomes smaller by {_LIMIT:g}, and by {_TIMES:g} times as much as in nine of ten episodes."
    )
    why = "Training normalizes the episodes again: the same value means two states."
    limits = (
        "An element with a mean near 0 and a standard deviation near 1 looks the same when normalized twice. If more than a tenth of "
        "the episodes are normalized, none is found."
    )
    merges = {"sums": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < _FEWEST_EPISODES:
            return f"the dataset has fewer than {_FEWEST_EPISODES} episodes"
        keys = [key for key in [*data.states, *data.actions] if key in data.floats]
        return keys or "no observation or action has floating-point numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        counted = block.tally(key)
        return {"sums": counted.sums, "steps": counted.steps}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        sample = data.sample(key).now
        sample = sample[np.isfinite(sample).all(axis=1)]
        long = np.flatnonzero(data.episodes.lengths >= _FEWEST_STEPS)
        if len(long) < _FEWEST_EPISODES or not len(sample):
            return
        means = measures["sums"][long] / measures["steps"][long][:, :, None, None]
        moving = (np.median(means[:, :, 2], axis=0) > 0).all(axis=0)
        if not moving.any():
            return
        gains = _gains(means[..., moving], sample.mean(axis=0)[moving], sample.std(axis=0)[moving])
        best = gains.max(axis=1)
        limit = max(_LIMIT, _TIMES * float(np.quantile(best, 1 - _SHARE)))
        name = data.field(key).name
        for number in np.flatnonzero(best > limit).tolist():
            episode = int(long[number])
            start, length = int(data.episodes.starts[episode]), int(data.episodes.lengths[episode])
            parts = np.flatnonzero(gains[number] > min(limit, 0.5 * best[number]))
            rows = start + int(parts[0]) * length // PARTS, start + (int(parts[-1]) + 1) * length // PARTS
            yield Finding(
                self.name,
                "strong",
                f"{name} in the rows {rows[0]:,} to {rows[1] - 1:,} of episode {episode:,} is like the other episodes after multiplication "
                "by the standard deviation and addition of the mean of the dataset: the rows are normalized, and the others are not",
                episodes=(episode,),
                rows=(rows,),
                evidence={"gain": float(best[number]), "limit": limit},
                remedy=f"-t keep_audited:without={self.name}",
                key=name,
            )


def _gains(
    means: NDArray[np.float64], center: NDArray[np.float64], deviation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return by how much each part is nearer to other episodes with the normalization undone, [E, 4].

    Args:
        means: Means of the values, of their sizes, changes, and changes of changes, [E, 4, 4, D].
        center: Mean of each element in the dataset, [D].
        deviation: Standard deviation of each element in the dataset, [D].
    """
    values, *sizes = means[:, :, 0], np.log(means[:, :, 2] + _LEAST), np.log(means[:, :, 3] + _LEAST)
    scale = np.log(deviation)
    near = [_squares(values, values * deviation + center, 0.05 * deviation)]
    near += [_squares(one, one + scale, least) for one, least in zip(sizes, (0.1, 0.05), strict=True)]
    gains: NDArray[np.float64] = np.concatenate(near, axis=2).mean(axis=2)
    return gains


def _squares(
    stored: NDArray[np.float64], undone: NDArray[np.float64], least: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Return the square of the robust distance of stored numbers minus that of numbers with the normalization undone."""
    middle = np.median(stored, axis=0)
    spread = np.maximum(1.48 * np.median(np.abs(stored - middle), axis=0), least)
    one, two = (np.minimum(((numbers - middle) / spread) ** 2, _FARTHEST) for numbers in (stored, undone))
    return one - two
