"""Episodes that are stored twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.fingerprints.fingerprint import EVIDENCE_BITS
from datasets_rl.format.copies import first_copies, groups_of_copies
from datasets_rl.ted.keys import Key, dotted_name

INFORMATION = (
    f"at least {EVIDENCE_BITS} bits of information, such as six values that are not round, or more round values"
)
NO_INFORMATION = "no episode has enough information in its observations and actions to be recognized"


class DuplicateEpisodes(Check):
    name = "duplicate_episodes"
    rule = f"Two episodes have the same values in all observations and actions, of which one has {INFORMATION}."
    why = "A copy counts twice in training. A copy in the validation part makes the validation loss too small."
    limits = (
        "Copies with another cast, scale, length or constant are near copies. Deterministic seeds make equal episodes. Episodes that are "
        "constant or very short are not compared."
    )

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 2:
            return "the dataset has a single episode"
        return [()] if data.fingerprints.informative().any() else NO_INFORMATION

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        del key, measures
        for first, *copies in groups_of_copies(_first_equal(data)):
            yield Finding(
                self.name,
                "proof",
                f"episode {first:,} is stored {len(copies) + 1} times: also as {', '.join(map(str, copies[:5]))}"
                f"{' and others' if len(copies) > 5 else ''}",
                episodes=(first, *copies),
                evidence={"copies": len(copies), "steps": int(data.episodes.lengths[first])},
                remedy=drop(copies),
            )


def _first_equal(data: Data) -> NDArray[np.int64]:
    """Return the first copy of each episode, [E], of which all states and actions are equal, also constant ones."""
    prints = data.fingerprints
    firsts = first_copies(prints)
    copied = np.flatnonzero(np.bincount(firsts)[firsts] > 1)
    if not len(copied):
        return firsts
    names = map(dotted_name, [*data.states, *data.actions])
    words = [
        firsts[copied].astype(np.uint64)[:, None],
        *(prints.digests(name)[copied].reshape(len(copied), -1) for name in names),
    ]
    _, places, groups = np.unique(np.hstack(words), axis=0, return_index=True, return_inverse=True)
    firsts[copied] = copied[places[groups.reshape(-1)]]
    return firsts
