"""Episodes, or parts of episodes, that are normalized by the mean and the standard deviation of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import PARTS, Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.groups import two_groups
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_LIMIT = 1.5
_TIMES = 1.5
_SHARE = 0.1
_FARTHEST = 16.0
_NEARER = 0.65
_STRONG = 5.0
_GAP = 0.15
_FEWEST_EPISODES = 8
_FEWEST_STEPS = 12
_FEWEST_ELEMENTS = 3
_LEAST = 1e-6
_MOST = 0.7
_KINDS = (0, 2, 3)
"""Of the sums of a tally: the values, the changes, and the changes of changes."""


class NormalizedTwice(Check):
    name = "normalized_twice"
    rule = (
        "In a quarter of an episode, mean values, changes, and changes of changes are nearer to those of other episodes if the values are "
        "multiplied by the standard deviation of the field and its mean is added: the mean square of the robust distance, at most "
        f"{_FARTHEST:g} for an element, becomes smaller by {_LIMIT:g}, and by {_TIMES:g} times as much as in nine of ten episodes."
    )
    why = "Training normalizes the episodes again: the same value means two states."
    limits = (
        "An element with a mean near 0 and a standard deviation near 1 looks the same when normalized twice. Of more than a tenth of "
        "the episodes, only whole episodes are found, and only where most elements become larger, or most become smaller. Fields of "
        f"fewer than {_FEWEST_ELEMENTS} elements that move are not looked at, nor are "
        "fields of about mean 0 and standard deviation 1, in which all episodes are normalized."
    )
    merges = {"sums": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < _FEWEST_EPISODES:
            return f"the dataset has fewer than {_FEWEST_EPISODES} episodes"
        keys = [key for key in [*data.states, *data.actions] if key in data.floats]
        return keys or "no observation or action has floating-point numbers"

    def measure(self, block: Block, key: Key) -> Measures:
        counted = block.tally(key)
        return {"sums": counted.sums[:, :, _KINDS].astype(np.float32), "steps": counted.steps}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        long = np.flatnonzero(data.episodes.lengths >= _FEWEST_STEPS)
        if len(long) < _FEWEST_EPISODES:
            return
        means = measures["sums"][long] / measures["steps"][long][:, :, None, None]
        moving = (np.median(means[:, :, 1], axis=0) > 0).all(axis=0)
        sample = data.sample(key)
        known = np.isfinite(sample.now).all(axis=1)
        if moving.sum() < _FEWEST_ELEMENTS or not known.any():
            return
        values, of = sample.now[known][:, moving], data.episodes.episode_of(sample.rows[known])
        if _is_normalized(values, within=0.1):  # all episodes were, as a recipe does
            return
        means = means[..., moving]

        def compare(usual: NDArray[np.bool_], others: NDArray[np.bool_], nearer: float) -> NDArray[np.float64]:
            of_others = values[~np.isin(of, long[~others])]
            return _gains(means, usual, of_others.mean(axis=0), of_others.std(axis=0), nearer)

        bends = np.log(means[:, :, 2] + _LEAST).mean(axis=1)
        groups = two_groups(np.median(bends - np.median(bends, axis=0), axis=1), _GAP)
        for suspected, others in (groups, groups[::-1]) if groups else ():
            usual = np.isin(np.arange(len(long)), others)
            gain = float(np.median(compare(usual, usual, _NEARER)[suspected].max(axis=1)))
            if gain > _LIMIT + _LIMIT / moving.sum() and _is_normalized(values[np.isin(of, long[suspected])]):
                yield self._of_group(data, key, long[suspected], gain)
                return
        usual = whole = np.ones(len(long), np.bool_)
        limit, gains = 0.0, np.zeros((0, PARTS))
        # What is suspected first must not count in the mean and the deviation.
        for nearer in (1.0, _NEARER):
            gains = compare(whole, usual, nearer)
            best = gains.max(axis=1)
            limit = float(max(_LIMIT + _LIMIT / moving.sum(), _TIMES * np.quantile(best, 1 - _SHARE)))
            usual = best <= limit
        found = np.flatnonzero(~usual)
        name = data.field(key).name
        for number in found.tolist():
            episode = int(long[number])
            start, length = int(data.episodes.starts[episode]), int(data.episodes.lengths[episode])
            parts = np.flatnonzero(gains[number] > 0.5 * gains[number].max())
            rows = start + int(parts[0]) * length // PARTS, start + (int(parts[-1]) + 1) * length // PARTS
            yield Finding(
                self.name,
                "strong" if gains[number].max() > _STRONG else "hint",
                f"{name} in the rows {rows[0]:,} to {rows[1] - 1:,} of episode {episode:,} is like the other episodes after multiplication "
                "by the standard deviation and addition of the mean of the dataset: the rows are normalized, and the others are not",
                episodes=(episode,),
                rows=(rows,),
                evidence={"gain": float(gains[number].max()), "limit": limit},
                remedy=drop([episode]),
                key=name,
            )

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        score = np.zeros(len(data.episodes))
        long = np.flatnonzero(data.episodes.lengths >= _FEWEST_STEPS)
        if not len(long):
            return score
        means = measures["sums"][long] / measures["steps"][long][:, :, None, None]
        moving = (np.median(means[:, :, 1], axis=0) > 0).all(axis=0)
        values = data.sample(key).now[:, moving]
        values = values[np.isfinite(values).all(axis=1)]
        if moving.any() and len(values):
            every = np.ones(len(long), np.bool_)
            gains = _gains(means[..., moving], every, values.mean(axis=0), values.std(axis=0), _NEARER)
            score[long] = gains.max(axis=1)
        return score

    def _of_group(self, data: Data, key: Key, episodes: NDArray[np.int64], gain: float) -> Finding:
        name = data.field(key).name
        return Finding(
            self.name,
            "strong" if gain > _STRONG else "hint",
            f"{name} of {len(episodes):,} episodes, from episode {episodes[0]:,} to episode {episodes[-1]:,}, is like the other episodes after "
            "multiplication by the standard deviation and addition of the mean of the others: they are normalized, and the others are not",
            episodes=tuple(episodes.tolist()),
            evidence={"gain": gain},
            remedy=drop(episodes.tolist()),
            key=name,
        )


def _is_normalized(values: NDArray[np.float64], within: float = 1.0) -> bool:
    """Return whether most elements of values [K, D] have about mean 0 and standard deviation 1, within 0.5 and a factor of 2."""
    deviation = np.abs(np.log(values.std(axis=0) + _LEAST))
    near = (np.abs(values.mean(axis=0)) < 0.5 * within) & (deviation < np.log(2) * within)
    return bool(near.mean() >= _MOST)


def _gains(
    means: NDArray[np.float64],
    usual: NDArray[np.bool_],
    center: NDArray[np.float64],
    deviation: NDArray[np.float64],
    nearer: float,
) -> NDArray[np.float64]:
    """Return by how much each part is nearer to usual episodes with the normalization undone, [E, 4].

    Args:
        means: Means of the values, and of the sizes of changes and of changes of changes, [E, 4, 3, D].
        usual: Whether an episode is usual, [E].
        center: Mean of each element in the usual episodes, [D].
        deviation: Standard deviation of each element in the usual episodes, [D].
        nearer: The highest share of the distance that is left. Otherwise the gain is 0.
    """
    values, *sizes = means[:, :, 0], np.log(means[:, :, 1] + _LEAST), np.log(means[:, :, 2] + _LEAST)
    scale = np.log(np.maximum(deviation, _LEAST))
    squares = [_squares(values, values * deviation + center, usual, 0.05 * deviation + _LEAST)]
    squares += [_squares(one, one + scale, usual, least) for one, least in zip(sizes, (0.1, 0.05), strict=True)]
    undone_of_kinds = np.stack([one[1].mean(axis=2) for one in squares])
    stored, undone = np.mean(squares, axis=0)
    # A part that moves in another way is nearer in some elements, and farther in others.
    helps, hurts = (undone < stored - 1).sum(axis=2), (undone > stored + 1).sum(axis=2)
    # Values, changes, and changes of changes are all as usual after that.
    fits = (undone_of_kinds < _FARTHEST / 2).all(axis=0) & (helps * (1 - _MOST) >= hurts * _MOST)
    stored, undone = stored.mean(axis=2), undone.mean(axis=2)
    return np.where((undone < nearer * stored) & fits, stored - undone, 0.0)


def _squares(
    stored: NDArray[np.float64],
    undone: NDArray[np.float64],
    usual: NDArray[np.bool_],
    least: NDArray[np.float64] | float,
) -> NDArray[np.float64]:
    """Return the squares of the robust distances of stored numbers, and of numbers with the normalization undone."""
    middle = np.median(stored[usual], axis=0)
    spread = np.maximum(1.48 * np.median(np.abs(stored[usual] - middle), axis=0), least)
    return np.minimum(((np.stack([stored, undone]) - middle) / spread) ** 2, _FARTHEST)
