"""Episodes that are in the training part and in the validation part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

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
        "Two copies, as in duplicate_episodes, have another value in a column of the episodes, or in a field of the steps, that is named split, "
        "fold, partition, subset or part."
    )
    why = "The validation loss is too small: the model was trained on the same steps."
    limits = (
        "Parts that are datasets of their own are compared if they are audited together: see shared_episodes. Copies with another cast, scale or "
        "length are near copies."
    )

    def targets(self, data: Data) -> Sequence[Key] | str:
        if not _parts(data):
            return "no column of the episodes and no field is named split, fold, partition, subset or part"
        return super().targets(data)

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        parts_by_name = _parts(data)
        for found in super().judge(data, key, measures):
            for name, parts in parts_by_name.items():
                different = dict.fromkeys(parts[episode] for episode in found.episodes)
                if len(different) > 1:
                    yield Finding(
                        self.name,
                        "proof",
                        f"the episodes {', '.join(f'{one:,}' for one in found.episodes[:5])} are equal, and are in different parts of the "
                        f"dataset: {name} is {' and '.join(list(different)[:5])}",
                        episodes=found.episodes,
                        evidence={"parts": len(different), "copies": len(found.episodes)},
                        remedy=drop(found.episodes[1:]),
                    )


def _parts(data: Data) -> dict[str, list[str]]:
    """Return the part of each episode, by the name of the column or the field that states the parts."""
    found = {
        name: [str(value) for value in data.episodes[name].tolist()]
        for name in data.episodes.names
        if name.lower() in _NAMES
    }
    for key in [*data.texts, *data.numbers]:
        field = data.field(key)
        if key[-1].lower() in _NAMES and int(np.prod(field.shape)) == 1:
            values = data.take(key, data.episodes.starts)[:, 0].tolist()
            texts = data.steps.stored.texts(key) if field.text else None
            found[field.name] = [str(value if texts is None else texts[value]) for value in values]
    return found
