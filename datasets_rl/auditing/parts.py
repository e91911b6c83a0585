"""Parts of a dataset that are stored as datasets of their own, such as for training and validation: episodes that are in two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.checks.duplicate_episodes import INFORMATION, NO_INFORMATION
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Audit, Finding, Level
from datasets_rl.auditing.remedy import drop
from datasets_rl.auditing.run import open_members
from datasets_rl.format.copies import Shared, shared_episodes
from datasets_rl.settings import Settings
from datasets_rl.ted.keys import dotted_name

_NAMED = 1_000


class SharedEpisodes:
    """The check of several datasets for equal episodes, which looks at all of them together, and therefore is not a check of a dataset."""

    name = "shared_episodes"
    rule = (
        f"An episode of a dataset has the same values as an episode of another dataset, in an observation or action with {INFORMATION}, that no "
        "other episode of its dataset shares. A proof is equal in all observations and actions, other copies are strong."
    )
    why = (
        "If one dataset is for training and the other for validation, the validation loss is too small. In a mixture, the episode counts "
        "twice."
    )
    limits = (
        "Copies with another cast, scale or length of all observations and actions are not found. A script that acts once in each dataset is "
        "a copy in the actions."
    )


def audit_parts(
    datasets: Sequence[str | Path],
    *,
    name: str = "parts",
    settings: Settings | None = None,
) -> Audit:
    """Look for episodes that are in two of several datasets, such as the parts for training and validation.

    Args:
        datasets: The ids or the folders of stored datasets.
        name: The name of all datasets together in the report.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id, or a dataset is not stored.
        ManifestError: If a manifest cannot be trusted.
    """
    settings = settings or Settings.from_env()
    parts = open_members(datasets, settings=settings)
    known = [part for part in parts if part[1].fingerprints.informative().any()]
    findings: list[Finding] = []
    for shared in shared_episodes([data.fingerprints for _, data in known]):
        findings += _findings(shared, known[shared.first], known[shared.second])
    return Audit(
        id=name,
        steps=sum(len(data) for _, data in parts),
        episodes=sum(len(data.episodes) for _, data in parts),
        findings=tuple(findings),
        checked=(SharedEpisodes.name,) if len(known) > 1 else (),
        skipped={} if len(known) > 1 else {SharedEpisodes.name: NO_INFORMATION},
    )


def _findings(shared: Shared, first: tuple[str, Data], second: tuple[str, Data]) -> Iterator[Finding]:
    """Yield the findings that a second dataset has episodes of a first one: those that are equal, and episodes that are equal in some fields."""
    (one, data), (other, others) = first, second
    is_proof = shared.whole & _are_constants_equal(data, others, shared.pairs)
    kinds: list[tuple[Level, NDArray[np.bool_], str]] = [
        ("proof", is_proof, "all observations and actions"),
        ("strong", ~is_proof, " and ".join(shared.fields) or "some observations or actions"),
    ]
    for level, chosen, fields in kinds:
        pairs = sorted(map(tuple, shared.pairs[chosen].tolist()))
        if not pairs:
            continue
        several = len(pairs) > 1
        yield Finding(
            SharedEpisodes.name,
            level,
            f"{len(pairs):,} of {len(others.episodes):,} episodes of {other} {'are' if several else 'is'} equal to "
            f"{'episodes' if several else 'an episode'} of {one} in {fields}, {'such as ' if several else ''}episode {pairs[0][1]:,} of {other} "
            f"to episode {pairs[0][0]:,} of {one}: a policy that is trained on one dataset cannot be validated by the other",
            evidence={"copies": len(pairs), "datasets": [one, other], "pairs": [list(pair) for pair in pairs[:_NAMED]]},
            remedy=f"{drop(sorted(copy for _, copy in pairs))} in {other}",
        )


def _are_constants_equal(data: Data, others: Data, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pairs of episodes, [n, 2], have equal states and actions under equal keys, also those without information, [n]."""
    names, other_names = ({dotted_name(key) for key in [*one.states, *one.actions]} for one in (data, others))
    equal = np.ones(len(pairs), np.bool_)
    for name in names & other_names:
        equal &= data.fingerprints.digests(name)[pairs[:, 0]] == others.fingerprints.digests(name)[pairs[:, 1]]
    return equal
