"""A success column that contradicts the returns, or that no episode reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_NAMES = ("success", "is_success", "succeeded", "task_success", "solved")
_SHARE = 0.8
_FEW = 3
_WRONG_OF_FEW = 0.8
_WRONG_OF_MANY = 0.5


class SuccessColumns(Check):
    name = "success_columns"
    rule = (
        f"No episode has success, or: one threshold of the return separates success from failure in at least {_SHARE:.0%} of the "
        "episodes, and the other episodes are on the wrong side."
    )
    why = "A filter by success keeps failures, or nothing."
    limits = "If returns and success agree in fewer episodes, they measure different things, and nothing is found."

    def targets(self, data: Data) -> Sequence[Key] | str:
        return [()] if _success(data) is not None else f"the episode table has no column {', '.join(_NAMES[:3])}"

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        success, returns = _success(data), data.episodes["return"]
        if success is None or len(success) < 10:
            return
        if not success.any():
            yield Finding(
                self.name,
                "strong",
                f"none of {len(success):,} episodes is a success, by the success column",
                evidence={"episodes": len(success)},
                remedy="record the success column again, or compute it from the rewards or from the last states",
            )
            return
        if success.all() or not np.isfinite(returns).all():
            return
        threshold, wrong = _separate(returns, success)
        # The best of many thresholds separates any column a little. A single threshold, of two returns, does not.
        most = _WRONG_OF_MANY if len(np.unique(returns)) > _FEW else _WRONG_OF_FEW
        if not wrong.any() or wrong.mean() > 1 - _SHARE or wrong.sum() > most * min(success.sum(), (~success).sum()):
            return
        for episode in np.flatnonzero(wrong).tolist():
            yield Finding(
                self.name,
                "strong",
                f"episode {episode:,} is a {'success' if success[episode] else 'failure'} by the success column, and has a return of "
                f"{returns[episode]:g}. In {1 - wrong.mean():.0%} of the episodes, success means a return above {threshold:g}",
                episodes=(episode,),
                evidence={"return": float(returns[episode]), "threshold": threshold},
                remedy=drop([episode]),
            )


def _success(data: Data) -> NDArray[np.bool_] | None:
    names = [name for name in data.episodes.names if name.lower() in _NAMES]
    return None if not names else np.asarray(data.episodes[names[0]], np.float64) > 0.5


def _separate(returns: NDArray[np.float64], success: NDArray[np.bool_]) -> tuple[float, NDArray[np.bool_]]:
    """Return the threshold of the return that fits the success of most episodes, and which episodes do not fit."""
    values = np.unique(returns)
    if len(values) < 2:
        return float(values[0]), np.zeros(len(returns), np.bool_)
    thresholds = (values[1:] + values[:-1]) / 2
    order = np.argsort(returns)
    failures = np.concatenate([[0], np.cumsum(~success[order])])
    below = np.searchsorted(returns[order], thresholds)
    # Right are failures below the threshold, and successes above the threshold.
    right = failures[below] + (success.sum() - (below - failures[below]))
    best = float(thresholds[right.argmax()])
    return best, (returns > best) != success
