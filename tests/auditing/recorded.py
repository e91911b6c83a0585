"""A recording in memory: the episodes that the kinds of clean data make, and that faults change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from datasets_rl.format.manifest import AppliedDecision
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.ted.episode import Episode, TextStates
from datasets_rl.ted.keys import Key
from datasets_rl.testing.stored_data import FLAGS, Whole, write_dataset

REWARD: Key = ("next", "reward")
TERMINATED: Key = ("next", "terminated")
TRUNCATED: Key = ("next", "truncated")


@dataclass(frozen=True)
class Recorded:
    """An episode as plain arrays, which faults change."""

    states: Mapping[Key, Any]
    """[T + 1, ...] by key. A list of T + 1 texts for a text field."""
    steps: Mapping[Key, Any]
    """[T, ...] by key, with reward and without flags."""
    terminated: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps[REWARD])

    def with_arrays(self, arrays: Mapping[Key, Any], **changes: Any) -> Recorded:
        """Return the episode with other arrays in place of those of the same keys."""
        return replace(
            self,
            states={key: arrays.get(key, value) for key, value in self.states.items()},
            steps={key: arrays.get(key, value) for key, value in self.steps.items()},
            **changes,
        )

    def array(self, key: Key) -> Any:
        """Return a copy of an array."""
        value = self.states[key] if key in self.states else self.steps[key]
        return list(value) if isinstance(value, list) else np.array(value)

    def part(self, start: int, stop: int) -> Recorded:
        """Return the steps [start, stop) as an episode."""
        return replace(
            self,
            states={key: value[start : stop + 1] for key, value in self.states.items()},
            steps={key: value[start:stop] for key, value in self.steps.items()},
        )


@dataclass(frozen=True)
class Recording:
    """A dataset in memory."""

    kind: str
    episodes: tuple[Recorded, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    """Lowest and highest value of the space of the actions, where the environment states one."""
    rewarded: bool = True
    """Whether the upstream has rewards. Otherwise the converter sets all rewards to 0."""

    def store(self, folder: Any) -> StoredDataset:
        """Write the dataset."""
        first = self.episodes[0]
        columns = [_column(key, value, shared=True) for key, value in first.states.items()]
        columns += [_column(key, value, shared=False) for key, value in first.steps.items()]
        episodes = [Whole(_episode(one)) for one in self.episodes]
        zero = AppliedDecision("reward-missing", "episodes have no reward, which was set to 0", len(episodes))
        stored = write_dataset(
            folder,
            episodes,
            [*columns, *FLAGS],
            metadata=dict(self.metadata),
            decisions=() if self.rewarded else (zero,),
        )
        if self.bounds:
            low, high = self.bounds
            action = {**stored.manifest.specs["action"], "kind": "bounded", "low": low, "high": high}
            replace(stored.manifest, specs={**stored.manifest.specs, "action": action}).write(stored.folder)
            return StoredDataset(stored.folder)
        return stored

    def replaced(self, changed: Mapping[int, Recorded]) -> Recording:
        """Return the recording with other episodes at some numbers."""
        return replace(self, episodes=tuple(changed.get(n, one) for n, one in enumerate(self.episodes)))


def _column(key: Key, value: Any, *, shared: bool) -> Column:
    if isinstance(value, list):
        return Column(key, np.dtype(np.int32), (), shared=shared, text=True)
    return Column(key, value.dtype, value.shape[1:], shared=shared)


def _episode(one: Recorded) -> Episode:
    last = (np.arange(len(one)) == len(one) - 1)[:, None]

    def stored(value: Any) -> Any:
        return TextStates.from_texts(value) if isinstance(value, list) else value

    return Episode(
        steps={
            **{key: stored(value) for key, value in one.steps.items()},
            TERMINATED: last & one.terminated,
            TRUNCATED: last & (not one.terminated),
        },
        states={key: stored(value) for key, value in one.states.items()},
        metadata=one.metadata,
    )
