"""Whether a check names episodes only because they are long, or short.

Of a score that grows with the length of an episode, the highest are those of the longest episodes. The part of the score that
grows with the length is a line through the medians of the shortest and the longest third of the episodes, which single
episodes do not bend:

    score                    .  x        named: x
    |           . -- .  -- .
    | . -- .                             the remainder of a score: the distance from the line
    +--------------------------- length
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LengthControl:
    """What the length of episodes has to do with the score of a check.

    Attributes:
        check: Name of the check.
        key: Dotted key of the field that the check looks at. Empty if the check looks at several fields together.
        scored: Whether the check has a score. The score of other checks is 1 for a named episode, and 0 for other episodes.
        correlation: Rank correlation (Spearman) of the score with the length, from -1 to 1.
        named: Number of episodes that the check names.
        standing: How many of the named episodes are among as many highest scores after the part that grows with the
            length is taken out. None for a check without a score.
    """

    check: str
    key: str
    scored: bool
    correlation: float
    named: int
    standing: int | None

    def __str__(self) -> str:
        name = f"{self.check}, {self.key}" if self.key else self.check
        what = "score" if self.scored else "being named"
        text = f"{name}: rank correlation of {what} and length of the episodes {self.correlation:.2f}"
        if self.standing is None:
            return text
        rest = f"{text}; apart from the length, {self.standing:,} of {self.named:,} named still stand out"
        return f"{rest}: the length may be why they are named" if 2 * self.standing < self.named else rest


def control(
    check: str, key: str, score: NDArray[np.float64] | None, named: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> LengthControl | None:
    """Return what the length has to do with the score, or None if all lengths, or all scores, are equal.

    Args:
        check: Name of the check.
        key: Dotted key of the field.
        score: Score of each episode, [E], or None.
        named: Whether the check names each episode, bool [E].
        lengths: Number of steps of each episode, [E].
    """
    correlation = rank_correlation(named.astype(np.float64) if score is None else score, lengths.astype(np.float64))
    if correlation is None:
        return None
    count, standing = int(named.sum()), None
    if score is not None:
        left = without_length(score, lengths)
        limit = np.sort(left)[-count] if count else np.inf
        standing = int((named & (left >= limit)).sum())
    return LengthControl(check, key, score is not None, correlation, count, standing)


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Return the rank correlation of two numbers of each episode, [E], or None if all numbers of either are equal."""
    one, two = (_ranks(np.nan_to_num(values)) for values in (first, second))
    deviation = float(one.std() * two.std()) if len(one) else 0.0
    if not deviation:
        return None
    return float(((one - one.mean()) * (two - two.mean())).mean() / deviation)


def without_length(score: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the score of each episode without the part that grows with the length, [E]."""
    score = np.nan_to_num(score)
    order = np.argsort(lengths, kind="stable")
    third = -(-len(order) // 3)
    shortest, longest = order[:third], order[len(order) - third :]
    apart = float(np.median(lengths[longest]) - np.median(lengths[shortest])) if third else 0.0
    if not apart:
        return score
    slope = float(np.median(score[longest]) - np.median(score[shortest])) / apart
    result: NDArray[np.float64] = score - slope * lengths
    return result


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, [E]. Equal values have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
