"""Parts of a dataset that are stored as datasets of their own, such as for training and validation: episodes that are in two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from datasets_rl.auditing.checks.duplicate_episodes import DuplicateEpisodes, long_enough
from datasets_rl.auditing.data import Data
from datasets_rl.auditing.finding import Audit, Finding
from datasets_rl.auditing.remedy import drop
from datasets_rl.auditing.run import measure_check, open_named
from datasets_rl.settings import Settings

_NAMED = 1_000


class SharedEpisodes:
    """The check of several datasets for equal episodes, which looks at all of them together, and therefore is not a check of a dataset."""

    name = "shared_episodes"
    rule = "An episode of a dataset has the same states and actions in every step as an episode of another dataset, as in duplicate_episodes."
    why = (
        "If one dataset is for training and the other for validation, the validation loss is too small. In a mixture, the episode counts "
        "twice."
    )
    limits = "Datasets with other fields are not compared. Copies with another cast, scale or length are not found."


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
    parts = [(shown, Data(steps)) for shown, steps in open_named(datasets, settings=settings)]
    check = DuplicateEpisodes()
    groups: dict[tuple[str, ...], list[tuple[str, Data]]] = {}
    for shown, data in parts:
        if fields := check.fields(data):
            groups.setdefault(fields, []).append((shown, data))
    findings: list[Finding] = []
    compared = [group for group in groups.values() if len(group) > 1]
    for group in compared:
        hashes = [_hashes(check, shown, data, settings) for shown, data in group]
        for one, other in combinations(range(len(group)), 2):
            findings += _shared(check, group[one], group[other], hashes[one], hashes[other])
    return Audit(
        id=name,
        steps=sum(len(data) for _, data in parts),
        episodes=sum(len(data.episodes) for _, data in parts),
        findings=tuple(findings),
        checked=(SharedEpisodes.name,) if compared else (),
        skipped={} if compared else {SharedEpisodes.name: "no two datasets have the same narrow states and actions"},
    )


def _hashes(check: DuplicateEpisodes, name: str, data: Data, settings: Settings) -> dict[tuple[int, int], int]:
    """Return the first episode with each hash and length."""
    measures = measure_check(data, check, (), name=name, settings=settings)
    fit = long_enough(data, measures)[::-1].tolist()
    return {(int(measures["hash"][one]), int(data.episodes.lengths[one])): one for one in fit}


def _shared(
    check: DuplicateEpisodes,
    first: tuple[str, Data],
    second: tuple[str, Data],
    of_first: dict[tuple[int, int], int],
    of_second: dict[tuple[int, int], int],
) -> Iterator[Finding]:
    """Yield the finding that two datasets have equal episodes, if they have any."""
    (one, data), (other, others) = first, second
    suspected = [(of_first[code], of_second[code]) for code in of_first.keys() & of_second.keys()]
    pairs = sorted(pair for pair in suspected if check.are_equal(data, pair[0], others, pair[1]))
    if not pairs:
        return
    copies = sorted(copy for _, copy in pairs)
    several = len(pairs) > 1
    yield Finding(
        SharedEpisodes.name,
        "proof",
        f"{len(pairs):,} of {len(others.episodes):,} episodes of {other} {'are' if several else 'is'} equal to "
        f"{'episodes' if several else 'an episode'} of {one} in all states and actions, {'such as ' if several else ''}episode "
        f"{pairs[0][1]:,} of {other} to episode {pairs[0][0]:,} of {one}: a policy that is trained on one dataset cannot be validated by "
        "the other",
        evidence={"copies": len(pairs), "datasets": [one, other], "pairs": [list(pair) for pair in pairs[:_NAMED]]},
        remedy=f"{drop(copies)} in {other}",
    )
