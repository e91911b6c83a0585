"""Frames that a camera lost: the images jump ahead of the states, or repeat the image before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.checks.frozen_frames import fewest_repeats
from datasets_rl.auditing.checks.video_lag import sighted
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.auditing.sight import LAGS, MERGES, PARTS, SPAN, ZERO, Sight, sight_measures
from datasets_rl.ted.keys import Key

_REPEATS = 3
_NORMAL = 0.6745
"""The median absolute deviation of a normal distribution, in standard deviations."""
_SUSPECTED = 4.0
_SUSPECTS = 0.1
_FEWEST_SUSPECTS = 8
_FLOOR = 0.3
_LEAST, _MOST = 0.7, 3.0
_SPREADS, _LEAST_SPREAD = 4.5, 0.1
_HINT = (12.0, 4.0)
_HINT_IN_VIDEO = (25.0, 15.0)
_STRONG = (40.0, 25.0)
_FEWEST_PAIRS = 4
_NEAR = 3
_PLACES = 3


class DroppedFrames(Check):
    name = "dropped_frames"
    rule = (
        "From some step of an episode on, the images fit the states of some steps later, and before that step those of the same step, "
        f"as in `video_lag`: the cost per step falls by {_HINT[0]:g}, or by {_HINT[1]:g} where the images jump, in lossy video by "
        f"{_HINT_IN_VIDEO[0]:g} and {_HINT_IN_VIDEO[1]:g}, for a strong finding by {_STRONG[0]:g} and {_STRONG[1]:g}. Or at least "
        f"{_REPEATS} images, and three times as many as in four of five episodes, repeat the image before while states change. A hint if, in "
        "lossy video, images nearly repeat the image before while states move, and the next image changes by more, of which the mean is "
        f"{_SPREADS:g} standard deviations above the median of all episodes."
    )
    why = "From the lost frame on, the policy sees the result of an action before the action."
    limits = (
        f"Fewer than four frames, frames lost in the last {2 * LAGS[-1]} steps, and frames lost while nothing moves are rarely found. More "
        f"than {LAGS[-1]} frames are counted as {LAGS[-1]}. Lossy video of small images repeats images by itself: three lost frames that repeat the image before "
        "are rarely found there, and twelve only where things move by a pixel or more in a step."
    )
    merges = {
        **MERGES,
        "calm": "sum",
        "calmest": "max",
        "calmest_row": "with calmest",
        "rows": "sum",
        "repeats": "sum",
        "longest": "max",
        "first": "min",
    }

    def targets(self, data: Data) -> Sequence[Key] | str:
        return sighted(data)

    def measure(self, block: Block, key: Key) -> Measures:
        same = block.same_images(key)
        rows = np.arange(block.start, block.stop) + 1
        # Images with noise that are not lossy video are equal if the camera repeats an image.
        calm = np.zeros(len(block)) if block.data.never_equal(key) else _calm(block, key)
        calmest = block.maxima(calm)
        return {
            **sight_measures(block, key),
            "calm": block.sums(calm),
            "calmest": calmest,
            "calmest_row": block.row_of(calm, calmest) + 1,
            "rows": block.sums(np.ones(len(block))),
            "repeats": block.sums(same),
            "longest": block.longest_runs(same)[0],
            "first": block.minima(np.where(same, rows, np.iinfo(np.int64).max)),
        }

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        yield from self._repeats(data, key, measures)
        yield from self._nearly_repeats(data, key, measures)
        sight = data.model(Sight, key)
        if not sight.shows_states:
            return
        # Lossy video changes every second image, or every few images, more than the images between.
        hint = _HINT if data.never_equal(key) else _HINT_IN_VIDEO
        for episode in _suspected(measures).tolist():
            skip = _skip(sight, episode)
            if any(skip.gain >= gain or skip.gain * skip.jump >= jump for gain, jump in (hint, _STRONG)):
                yield self._skipped(data, key, episode, skip)

    def _repeats(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        # A longer run is a frozen camera.
        longest = measures["longest"]
        repeats = measures["repeats"] - np.where(longest >= fewest_repeats(data, key), longest, 0)
        name = data.field(key).name
        for episode in np.flatnonzero(repeats >= max(_REPEATS, 3 * float(np.quantile(repeats, 0.8)))).tolist():
            count, row = int(repeats[episode]), int(measures["first"][episode])
            yield Finding(
                self.name,
                "strong",
                f"{name} lost frames in episode {episode:,}: {count:,} images repeat the image before while states change, the first "
                f"in row {row:,}",
                episodes=(episode,),
                rows=((row, row + 1),),
                evidence={"repeats": count, "first_row": row},
                remedy=drop([episode]),
                key=name,
            )

    def _nearly_repeats(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        calm, name = measures["calm"] / measures["rows"], data.field(key).name
        apart = (calm - np.median(calm)) * np.sqrt(measures["rows"])
        spreads = apart / max(float(np.median(np.abs(apart))) / _NORMAL, _LEAST_SPREAD)
        for episode in np.flatnonzero(spreads >= _SPREADS).tolist():
            row = int(measures["calmest_row"][episode])
            yield Finding(
                self.name,
                "hint",
                f"{name} may have lost frames in episode {episode:,}: more images than in other episodes nearly repeat the image before while "
                f"states move, and the next image changes by more, such as in row {row:,}",
                episodes=(episode,),
                rows=((row, row + 1),),
                evidence={"spreads": float(spreads[episode]), "row": row},
                remedy=drop([episode]),
                key=name,
            )

    def _skipped(self, data: Data, key: Key, episode: int, skip: _Skip) -> Finding:
        start, stop = int(data.episodes.starts[episode]), int(data.episodes.stops[episode])
        row, name = start + skip.step, data.field(key).name
        strong = skip.gain >= _STRONG[0] or skip.gain * skip.jump >= _STRONG[1]
        return Finding(
            self.name,
            "strong" if strong else "hint",
            f"{name} lost about {skip.frames} frames in episode {episode:,}: from about row {row:,} on, the images show the states of "
            f"{skip.frames} steps later",
            episodes=(episode,),
            rows=((row, stop),),
            evidence={"frames": skip.frames, "first_row": row, "gain": skip.gain, "jump": skip.jump},
            remedy=drop([episode]),
            key=name,
        )


@dataclass(frozen=True, slots=True)
class _Skip:
    """The most likely step at which frames were lost, counted from the start of the episode."""

    step: int = 0
    frames: int = 0
    gain: float = 0.0
    """By how much the cost falls, in costs of a step."""
    jump: float = 0.0
    """Logarithm of the change of the image at the step, relative to the steps around."""


def _calm(block: Block, key: Key) -> NDArray[np.float64]:
    """Return how much less an image changes than usual, and how much more the next image does, in a moving scene, [N].

    If the camera repeats an image, the next image differs from the repeat by the movement of two steps. Lossy video stores every second
    image alone, or every few images, so each change is compared with the changes two steps before and two steps after.
    """
    change = np.log(block.image_changes(key) + _FLOOR * block.data.usual_change(key) + 1e-6)
    usual, next_usual = (_mean_of(change, block, steps) for steps in ((-2, 2), (-1, 3)))
    calm = usual - change + _moved(change, block, 1) - next_usual
    return np.where(block.moves & np.isfinite(calm), np.clip(calm - _LEAST, 0, _MOST), 0.0)


def _moved(values: NDArray[np.float64], block: Block, steps: int) -> NDArray[np.float64]:
    """Return the values so many steps later in the same episode, or NaN, [N]."""
    rows = np.arange(len(block)) + steps
    inside = np.clip(rows, 0, len(block) - 1)
    return np.where((rows == inside) & (block.episode[inside] == block.episode), values[inside], np.nan)


def _mean_of(values: NDArray[np.float64], block: Block, steps: tuple[int, int]) -> NDArray[np.float64]:
    """Return the mean of the values so many steps later, of those that are known, [N]."""
    first, second = (_moved(values, block, one) for one in steps)
    return np.where(np.isnan(first), second, np.where(np.isnan(second), first, (first + second) / 2))


def _suspected(measures: Measures) -> NDArray[np.int64]:
    """Return the episodes with images that most likely fit another lag after a boundary of two parts than before, ascending.

    Their images are read again: at most a tenth of the episodes, or eight.
    """
    costs, pairs = measures["changes"].astype(np.float64), measures["pairs"].astype(np.float64)
    gains = np.zeros(len(costs))
    for part in range(1, PARTS):
        before, after = costs[:, :part].sum(axis=1), costs[:, part:].sum(axis=1)
        unit = (before.min(axis=1) + after.min(axis=1)) / np.maximum(pairs.sum(axis=1), 1)
        enough = (pairs[:, part:].sum(axis=1) >= _FEWEST_PAIRS) & (np.abs(after.argmin(axis=1) - ZERO) >= 2)
        gains = np.maximum(gains, enough * (after[:, ZERO] - after.min(axis=1)) / np.maximum(unit, 1e-12))
    most = np.argsort(-gains, kind="stable")[: max(_FEWEST_SUSPECTS, int(_SUSPECTS * len(gains)))]
    return np.sort(most[gains[most] >= _SUSPECTED])


def _skip(sight: Sight, episode: int) -> _Skip:
    both, costs, moved = sight.changes_of(episode)
    if not len(both):
        return _Skip()
    total = np.concatenate([np.zeros((1, len(LAGS))), np.cumsum(costs, axis=0, dtype=np.float64)])
    count = np.concatenate([[0], np.cumsum(both)])
    steps = np.arange(_NEAR + SPAN, len(moved) - SPAN)
    if not len(steps):
        return _Skip()
    # A pair of steps before and after the lost frame belongs to neither side.
    before, after = total[steps - SPAN], total[-1] - total[np.minimum(steps, len(costs))]
    pairs, rest = count[steps - SPAN], count[-1] - count[np.minimum(steps, len(costs))]
    unit = np.maximum((before.min(axis=1) + after.min(axis=1)) / np.maximum(pairs + rest, 1), 1e-12)
    lags = LAGS[after.argmin(axis=1)]
    gains = (after[:, ZERO] - after.min(axis=1) - before[:, ZERO] + before.min(axis=1)) / unit
    gains = np.where((lags >= 2) & (rest >= _FEWEST_PAIRS), gains, 0)
    jumps = _jumps(moved, sight.usual_change)[steps - 1]
    top = np.argsort(-jumps)[:_PLACES]
    near = top[int((gains[top] * np.maximum(jumps[top], 0)).argmax())]
    best = int(gains.argmax())
    if gains[near] * max(jumps[near], 0) >= _HINT[1]:
        best = int(near)
    return _Skip(int(steps[best]), int(lags[best]), float(gains[best]), max(float(jumps[best]), 0.0))


def _jumps(moved: NDArray[np.float32], usual: float) -> NDArray[np.float64]:
    """Return the logarithm of the change of each image relative to the median of the steps around, [T - 1]."""
    around = sliding_window_view(np.pad(moved, _NEAR, mode="reflect"), 2 * _NEAR + 1)
    middle = np.median(np.delete(around, _NEAR, axis=1), axis=1)
    jumps: NDArray[np.float64] = np.log((moved + usual / 4) / (middle + usual / 4))
    return jumps
