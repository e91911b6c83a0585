"""Episodes that are in the dataset twice, with other rounding, length or scale of the actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.block import Block
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_FEWEST = 8
_VOTES = 0.35
_SAME_RANGE = 2e-3
_SAME = 2e-3
_ROUNDED = 2.0**-10
_ROWS = 0.95
_OVERLAP = 0.85
_ANCHORS = 16
_CONTROLS = 3
_NEIGHBORS = 3
_SUSPECTS = 100
_FEATURES = 1_500_000
_FEWEST_FEATURES = 8
_SCRIPTED = 0.3
_NAMED = 1_000


class NearDuplicates(Check):
    name = "near_duplicates"
    rule = (
        f"The states of two episodes of at least {_FEWEST} steps are equal to {_SAME:.1%} of their spread in {_ROWS:.0%} of the rows, over "
        f"{_OVERLAP:.0%} of the longer episode, after one is moved in time. Elements that are as equal in other episodes do not count."
    )
    why = "A copy counts twice in training. A copy in the validation part makes the validation loss too small."
    limits = f"Where more than {_SCRIPTED:.0%} of the episodes repeat others, as of a script without noise, the finding is a hint. Copies with noise, or with other states, are not found. Equal images with other states are not compared."
    merges = {"low": "min", "high": "max"}

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 3:
            return "the dataset has fewer than 3 episodes"
        return [()] if self._keys(data) else "the dataset has no narrow states"

    def measure(self, block: Block, key: Key) -> Measures:
        extremes = np.concatenate([block.tally(one).extremes for one in self._keys(block.data)], axis=2)
        return {"low": extremes[:, 0], "high": extremes[:, 1]}

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        lengths = data.episodes.lengths
        # The range of an element is the same after rounding, and mostly after trimming.
        ranges = np.hstack([measures["low"], measures["high"]]).astype(np.float64)
        ranges[np.isinf(ranges)] = np.nan  # no value is finite
        reader = _Reader(data, tuple(self._keys(data)))
        copies: dict[int, tuple[int, _Match]] = {}
        for first, second in _suspects(ranges, lengths):
            if second not in copies and (match := _compare(reader, first, second)) is not None:
                copies[second] = (first, match)
        if len(copies) > _SCRIPTED * len(lengths):
            yield self._scripted(sorted(copies), len(lengths))
            return
        for second, (first, match) in sorted(copies.items()):
            yield Finding(
                self.name,
                "strong",
                f"episode {second:,}, {lengths[second]:,} steps, is a copy of episode {first:,}, {lengths[first]:,} steps: {match.share:.0%} of "
                f"{match.rows:,} rows have the same states up to rounding{_moved(match.offset)}",
                episodes=(first, second),
                evidence={"share": match.share, "rows": match.rows, "offset": match.offset},
                remedy=drop([second]),
            )

    def _scripted(self, copies: Sequence[int], episodes: int) -> Finding:
        return Finding(
            self.name,
            "hint",
            f"{len(copies):,} of {episodes:,} episodes have the states of another episode up to rounding, first episode {copies[0]:,}: a "
            "script or a policy without noise may have acted, or the dataset may contain itself twice",
            episodes=tuple(copies[:_NAMED]),
            evidence={"copies": len(copies)},
            remedy=drop(copies),
        )

    def _keys(self, data: Data) -> list[Key]:
        return [key for key in data.states if key not in data.times]


@dataclass(frozen=True, slots=True)
class _Match:
    rows: int
    offset: int
    share: float


class _Reader:
    """Reads whole episodes, each once for consecutive comparisons."""

    def __init__(self, data: Data, keys: tuple[Key, ...]) -> None:
        self.data, self._keys = data, keys
        self._last: dict[int, NDArray[np.float64]] = {}

    def states(self, episode: int) -> NDArray[np.float64]:
        if episode not in self._last:
            if len(self._last) > 2 * _CONTROLS:
                self._last.clear()
            self._last[episode] = self._read(self._keys, episode)
        return self._last[episode]

    def is_exact(self, first: int, second: int) -> bool:
        """Return whether both episodes have the same states and actions in each number."""
        keys = (*self._keys, *self.data.actions)
        return np.array_equal(self._read(keys, first), self._read(keys, second), equal_nan=True)

    def _read(self, keys: Sequence[Key], episode: int) -> NDArray[np.float64]:
        rows = self.data.episodes.rows(episode)
        parts = [self.data.steps.read(key, rows.start, rows.stop).reshape(len(rows), -1) for key in keys]
        return np.hstack(parts).astype(np.float64)


def _suspects(ranges: NDArray[np.float64], lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return pairs of episodes with ranges that agree in many elements, the most alike first."""
    fit = np.flatnonzero(lengths >= _FEWEST)
    if len(fit) < 2:
        return []
    codes, used = [], 0
    for feature in _features(ranges[fit]):
        order = np.argsort(feature, kind="stable")
        values = feature[order]
        if np.isnan(values).all() or (np.diff(values) == 0).mean() > 0.2:
            continue
        used += 1
        low, high = np.nanquantile(feature, [0.1, 0.9])
        tolerance = _SAME_RANGE * (high - low) + _ROUNDED * np.abs(values)
        for shift in range(1, _NEIGHBORS + 1):
            near = np.flatnonzero(values[shift:] - values[:-shift] <= tolerance[shift:])
            one, two = fit[order[near]], fit[order[near + shift]]
            codes.append(np.minimum(one, two) * len(ranges) + np.maximum(one, two))
    if not codes:
        return []
    pairs, votes = np.unique(np.concatenate(codes), return_counts=True)
    chosen = np.flatnonzero(votes >= max(2, _VOTES * used))
    chosen = chosen[np.argsort(-votes[chosen], kind="stable")][: max(_SUSPECTS, len(fit))]
    first, second = np.divmod(pairs[chosen], len(ranges))
    shorter, longer = np.minimum(lengths[first], lengths[second]), np.maximum(lengths[first], lengths[second])
    alike = shorter >= _OVERLAP * longer
    return list(zip(first[alike].tolist(), second[alike].tolist(), strict=True))


def _features(ranges: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return the limits by which episodes differ, [E] each: fewer of many episodes, and a single limit of an element that rests."""
    low, high = np.hsplit(ranges, 2)
    moves = (low != high).mean(axis=0) > 0.5
    features = [*low.T, *high[:, moves].T]
    most = max(_FEWEST_FEATURES, _FEATURES // max(len(ranges), 1))
    return features[:: -(-len(features) // most)] if len(features) > most else features


def _compare(reader: _Reader, first: int, second: int) -> _Match | None:
    """Return how the second episode repeats the first one, or None. Exact copies belong to another check."""
    one, two = reader.states(first), reader.states(second)
    spread = np.nanstd(one, axis=0)
    tolerance = _SAME * spread + _ROUNDED * np.nanmax(np.abs(one), axis=0)
    fine = (spread > 0) & (tolerance < 0.05 * spread) & np.isfinite(one).all(axis=0) & np.isfinite(two).all(axis=0)
    if not fine.any():
        return None
    aligned = _aligned(one[:, fine] / tolerance[fine], two[:, fine] / tolerance[fine])
    if aligned is None:
        return None
    rows, offset, same = aligned
    count = len(reader.data.episodes)
    own = np.ones(same.shape[1], np.bool_)
    for control in {count // 4, count // 2, 3 * count // 4} - {first, second}:
        other = reader.states(control)[:, fine] / tolerance[fine]
        shared = min(len(other), len(one))
        like = np.abs(other[:shared] - one[:shared][:, fine] / tolerance[fine]) <= 1
        own &= like.mean(axis=0) < 0.5
    changes = (np.diff(one[:, fine][:, own], axis=0) != 0).any(axis=1).sum()
    share = float(same[:, own].all(axis=1).mean()) if own.any() else 0.0
    if share < _ROWS or changes < _FEWEST - 1 or rows < _OVERLAP * max(len(one), len(two)):
        return None
    if len(one) == len(two) and reader.is_exact(first, second):
        return None
    return _Match(rows, offset, share)


def _aligned(one: NDArray[np.float64], two: NDArray[np.float64]) -> tuple[int, int, NDArray[np.bool_]] | None:
    """Return the number of rows that overlap, the offset of the second episode, and which elements agree, [rows, D]."""
    anchors = np.unique(np.linspace(0.15 * len(one), 0.85 * (len(one) - 1), _ANCHORS).astype(int))
    nearest = [int(np.abs(two - one[anchor]).max(axis=1).argmin()) - int(anchor) for anchor in anchors]
    offset = int(np.median(nearest))
    start, stop = max(0, -offset), min(len(one), len(two) - offset)
    if stop - start < _FEWEST // 2:
        return None
    return stop - start, offset, np.abs(one[start:stop] - two[start + offset : stop + offset]) <= 1


def _moved(offset: int) -> str:
    return "" if not offset else f", {abs(offset)} steps {'later' if offset > 0 else 'earlier'}"
