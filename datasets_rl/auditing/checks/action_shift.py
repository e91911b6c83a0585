"""Actions that are stored a step or two late, or early, against the states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.alignment import LAGS, MANY, REACH, Alignment, Shift
from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.dynamics import Dynamics
from datasets_rl.auditing.finding import Finding, Level, listed
from datasets_rl.auditing.remedy import drop, dropped_by_shift, shift, shift_episode
from datasets_rl.ted.keys import Key

_CLEARLY = 2.0
_PARTS = ("in episode {:,}", "in the first half of episode {:,}", "in the second half of episode {:,}")


class ActionShift(Check):
    name = "action_shift"
    rule = (
        "A linear model predicts the action of a step from the states before and after the step. The action of a step up to two steps "
        "later or earlier is nearer to the prediction: in the whole dataset the error is 10 % smaller, or in an episode or a half "
        "of an episode 26 % smaller, and unlike in nine of ten episodes."
    )
    why = "The policy learns to act on a state that is already past, or that is not yet known."
    limits = (
        "A robot that follows an action a step later looks like this, too. Observations that are stored a step early cannot be told apart "
        "from actions that are stored a step late. Actions that the state before the step determines, or that the states do not show, are not looked at. A shift in half of an "
        f"episode by {REACH} steps, or that fits less than {_CLEARLY:g} times as well, is a hint."
    )
    merges = {"errors": "sum", "steps": "sum"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not data.states or not data.actions:
            return "the dataset has no narrow states and actions"
        if not data.model(Dynamics).elements or not data.model(Alignment, False).usable:
            return "too few steps in which the states move, or the states do not show the actions"
        return [()]

    def measure(self, block: Block, key: Key) -> Measures:
        errors, steps = block.data.model(Alignment, False).lag_errors(block)
        return {"errors": errors, "steps": steps}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        fitted = data.model(Alignment, False)
        name = ", ".join(data.field(one).name for one in data.actions)
        yield from whole_dataset(self.name, fitted, name)
        yield from single_episodes(self.name, data, fitted.shifted(measures["errors"], measures["steps"]), name)

    def score(self, data: Data, key: Key, measures: Measures) -> NDArray[np.float64]:
        return data.model(Alignment, False).scores(measures["errors"], measures["steps"])


def whole_dataset(check: str, fitted: Alignment, name: str) -> Iterator[Finding]:
    """Yield the finding that the values of all episodes are shifted, if they are."""
    lag = int(LAGS[fitted.common])
    if not lag:
        return
    left, now = fitted.errors[fitted.common].mean(), fitted.errors[REACH].mean()
    yield Finding(
        check,
        # A robot can act late, but not early.
        "strong" if lag > 0 else "hint",
        f"{name} is stored {_steps(lag)} in most episodes: the states before and after a step explain {1 - left:.1%} of the variance of "
        f"the value {_away(lag)}, and {1 - now:.1%} of that of the value of the step itself{dropped_by_shift(lag)}",
        evidence={"steps": lag, "unexplained": float(left), "unexplained_now": float(now)},
        remedy=shift(name, lag),
        key=name,
    )


def single_episodes(
    check: str, data: Data, found: Sequence[Shift], name: str, of_halves: Level = "strong"
) -> Iterator[Finding]:
    """Yield a finding for each episode with values that are shifted against those of the other episodes."""
    if len(found) > MANY * len(data.episodes):
        lags = [one.lag for one in found]
        lag = max(set(lags), key=lags.count)
        # Episodes that fit at many distances fit at none.
        if lags.count(lag) > MANY * len(data.episodes):
            alike = [one for one in found if one.lag == lag]
            for whole in (True, False):
                if of_kind := [one for one in alike if whole == (one.part == 0)]:
                    yield _many(check, len(data.episodes), of_kind, name)
        return
    for one in found:
        rows = data.episodes.rows(one.episode)
        half = rows.start + len(rows) // 2
        place = ((rows.start, rows.stop), (rows.start, half), (half, rows.stop))[one.part]
        yield Finding(
            check,
            # A half of an episode has few steps, and a drift fits best at the furthest lag.
            ("hint" if one.times < _CLEARLY or abs(one.lag) >= REACH else of_halves) if one.part else "strong",
            f"{name} is stored {_steps(one.lag)} {_PARTS[one.part].format(one.episode)}, rows {place[0]:,} to {place[1] - 1:,}: the states "
            f"before and after a step predict the value {_away(one.lag)} with an error {one.times:.1f} times smaller than the value of the step "
            "itself, unlike in the other episodes",
            episodes=(one.episode,),
            rows=(place,),
            evidence={"steps": one.lag, "times": one.times},
            remedy=drop([one.episode]) if one.part else shift_episode(data, name, one.lag, one.episode),
            key=name,
        )


def _many(check: str, episodes: int, found: Sequence[Shift], name: str) -> Finding:
    lag, named, whole = found[0].lag, tuple(one.episode for one in found), not found[0].part
    return Finding(
        check,
        "strong" if lag > 0 else "hint",
        f"{name} is stored {_steps(lag)} in {'' if whole else 'a half of each of '}{len(named):,} of {episodes:,} episodes ({listed(named)}), against "
        f"the other episodes: the states before and after a step predict the value {_away(lag)} better than the value of the step itself"
        f"{dropped_by_shift(lag * whole)}",
        episodes=named,
        evidence={"steps": lag, "episodes": len(named)},
        remedy=shift(name, lag, named) if whole else drop(named),
        key=name,
    )


def _steps(lag: int) -> str:
    return f"{abs(lag)} step{'s' * (abs(lag) > 1)} {'late' if lag > 0 else 'early'}"


def _away(lag: int) -> str:
    return f"{abs(lag)} step{'s' * (abs(lag) > 1)} {'later' if lag > 0 else 'earlier'}"
