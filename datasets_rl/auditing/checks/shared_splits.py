"""Episodes that are in the training part and in the validation part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datasets_rl.auditing.base import Measures
from datasets_rl.auditing.checks.duplicate_episodes import DuplicateEpisodes
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.ted.keys import Key

_NAMES = frozenset({"split", "fold", "partition", "subset", "part"})


class SharedSplits(DuplicateEpisodes):
    name = "shared_splits"
    rule = (
        "Two episodes with the same states and actions in every step have another value in a column of the episodes named split, fold, "
        "partition, subset or part."
    )
    why = "The validation loss is too small: the model was trained on the same steps."
    limits = "Parts that are datasets of their own are not compared. Copies with another cast, scale or length are near copies."

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not _columns(data):
            return "the episodes have no column named split, fold, partition, subset or part"
        return super().targets(data)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        for found in super().judge(data, key, measures):
            for column in _columns(data):
                parts = dict.fromkeys(str(value) for value in data.episodes[column][list(found.episodes)].tolist())
                if len(parts) > 1:
                    yield Finding(
                        self.name,
                        "proof",
                        f"the episodes {', '.join(f'{one:,}' for one in found.episodes[:5])} are equal, and are in different parts of the "
                        f"dataset: {column} is {' and '.join(list(parts)[:5])}",
                        episodes=found.episodes,
                        evidence={"parts": len(parts), "copies": len(found.episodes)},
                        remedy=drop(found.episodes[1:]),
                    )


def _columns(data: Data) -> list[str]:
    return [name for name in data.episodes.names if name.lower() in _NAMES]
