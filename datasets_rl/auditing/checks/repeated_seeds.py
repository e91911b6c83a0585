"""Episodes that begin in exactly the same random state: the seed of the environment was used again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.format.copies import groups_of_copies
from datasets_rl.ted.keys import Key

_UNIQUE = 0.6
_MANY = 0.5
_SEEDS = frozenset({"seed", "env_seed", "reset_seed", "episode_seed"})


class RepeatedSeeds(Check):
    name = "repeated_seeds"
    rule = (
        f"Two episodes begin with the same observation in each number, or have the same number in a column named seed, while {_UNIQUE:.0%} of "
        "the beginnings occur once."
    )
    why = "The dataset has fewer situations than episodes, and a validation part may have the beginnings of the training part."
    limits = (
        "Environments with few beginnings, or beginnings of integers, show nothing. Beginnings that are repeated on purpose look the "
        "same. Equal episodes belong to duplicate_episodes."
    )

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 5:
            return "the dataset has fewer than 5 episodes"
        if not self._keys(data) and not _seed_names(data):
            return "the dataset has no narrow states and no column named seed"
        return [()]

    def conclude(self, data: Data, measured: Mapping[Key, Measures]) -> Iterator[Finding]:
        starts, keys = data.episodes.starts, self._keys(data)
        last = [data.take(key, data.episodes.stops - 1) for key in keys]
        ends = np.hstack([_bytes(values) for values in last]) if last else np.zeros((len(starts), 0), np.uint8)
        named: set[int] = set()
        for name in _seed_names(data):
            column = np.asarray(data.episodes[name])
            for group in _groups(column.reshape(len(column), -1).view(np.uint8), ends):
                named.update(group)
                yield self._finding(group, f"have the same {name}, {column[group[0]]}")
        if keys:
            firsts = [data.take(key, starts) for key in keys]
            varied = sum(int((one != one[0]).any(axis=0).sum()) for one in firsts)
            # A single number may be equal by chance, or be drawn from few.
            if varied >= 2:
                for group in _groups(np.hstack([_bytes(one) for one in firsts]), ends):
                    if not named.issuperset(group):
                        yield self._finding(group, f"begin with the same observation in all of {varied} numbers")

    def _finding(self, group: Sequence[int], what: str) -> Finding:
        numbers = ", ".join(f"{episode:,}" for episode in group[:5])
        return Finding(
            self.name,
            "strong",
            f"the episodes {numbers}{' and others' if len(group) > 5 else ''} {what}, while most episodes begin differently: a seed may "
            "have been used again",
            episodes=tuple(group),
            evidence={"episodes": len(group)},
            remedy=drop(group[1:]),
        )

    def _keys(self, data: Data) -> list[Key]:
        return [key for key in data.states if key not in data.times]


def _seed_names(data: Data) -> list[str]:
    return [
        name
        for name in data.episodes.names
        if name.lower() in _SEEDS and data.episodes[name].dtype.kind in "iu" and data.episodes[name].ndim == 1
    ]


def _bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _groups(begins: NDArray[np.uint8], ends: NDArray[np.uint8]) -> Iterator[list[int]]:
    """Yield the episodes, ascending, of each repeated beginning with different ends, if most beginnings occur once."""
    _, inverse, counts = np.unique(begins, axis=0, return_inverse=True, return_counts=True)
    if counts.max() > max(2, _MANY * len(begins)) or (counts == 1).sum() < _UNIQUE * len(counts):
        return
    for episodes in groups_of_copies(inverse.reshape(-1)):
        if not ends.shape[1] or (ends[episodes] != ends[episodes[0]]).any():
            yield episodes
