"""Episodes that are stored twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datasets_rl.auditing.base import Check, Measures
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.fingerprints.fingerprint import EVIDENCE_BITS
from datasets_rl.look.copies import first_copies, groups_of_copies
from datasets_rl.ted.keys import Key, dotted_name

INFORMATION = (
    f"at least {EVIDENCE_BITS} bits of information, such as six values that are not round, or more round values"
)
NO_INFORMATION = "no episode has enough information in its observations and actions to be recognized"


class DuplicateEpisodes(Check):
    name = "duplicate_episodes"
    rule = f"Two episodes have the same values in all observations and actions with {INFORMATION}."
    why = "A copy counts twice in training. A copy in the validation part makes the validation loss too small."
    limits = (
        "Copies with another cast, codec, scale or length are near copies. Deterministic seeds make equal episodes. Episodes that are "
        "constant or very short are not compared."
    )

    def targets(self, data: Data) -> Sequence[Key] | str:
        if len(data.episodes) < 2:
            return "the dataset has a single episode"
        return [()] if data.fingerprints.informative().any() else NO_INFORMATION

    def judge(self, data: Data, key: Key, measures: Measures) -> Iterator[Finding]:
        del key, measures
        for first, *others in groups_of_copies(first_copies(data.fingerprints)):
            different = _different(data, [first, *others])
            yield Finding(
                self.name,
                "strong" if different else "proof",
                f"episode {first:,} is stored {len(others) + 1} times: also as {', '.join(map(str, others[:5]))}"
                f"{' and others' if len(others) > 5 else ''}{f', with another {different[0]}' if different else ''}",
                episodes=(first, *others),
                evidence={"copies": len(others), "steps": int(data.episodes.lengths[first])},
                remedy=drop(others),
            )


def _different(data: Data, episodes: Sequence[int]) -> list[str]:
    """Return the states and actions that some of the episodes have with other values: they have no information in the episodes."""
    prints = data.fingerprints
    digests = {name: prints.digests(name)[list(episodes)] for name in map(dotted_name, [*data.states, *data.actions])}
    return [name for name, values in digests.items() if (values != values[0]).any()]
