"""The table of docs/audit.md about length: whether the score of a check finds faults, or the length of episodes.

python tests/auditing/length_table.py [--seed N] [--kept FILE] [--write] [CHECK ...]

Half of the episodes of each recording are cut, so that episodes have several lengths. Planted episodes are compared with all other episodes, and with
those whose length is within a tenth. With a file for what was measured, a run that was stopped goes on.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import zlib
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import clean
import numpy as np
from numpy.typing import NDArray
from planting import CHECKS_OF_IMAGES, EPISODES, Fault, audited, load_faults
from results import Results
from table import arguments, write

from datasets_rl.auditing.checks import check_class
from datasets_rl.auditing.lengths import rank_correlation
from datasets_rl.auditing.run import score_steps
from datasets_rl.look.steps import StepReader
from datasets_rl.settings import Settings

START, END = "<!-- measured by tests/auditing/length_table.py -->", "<!-- end of the measured lengths -->"
_NEAR = 0.1
_FEWEST = 10
_OF_LENGTH = frozenset({"ends_at_limit"})
"""Checks that name episodes by their length."""


@dataclass(frozen=True)
class Measured:
    """What was measured of a fault in a recording."""

    score: float | None
    """Share of the pairs of a planted and another episode in which the planted one has the higher score. None: no score."""
    matched: float | None
    """The same of pairs of about one length. None: no score, or no pairs."""
    length: float
    """The same with the length as the score, or its negative, whichever is better."""
    counts: list[int]
    """Planted, found, others, falsely named, others of the length of a planted episode, falsely named of these."""


@dataclass
class Row:
    """What was measured of a check."""

    correlations: dict[str, float] = field(default_factory=dict)
    """Rank correlations of the score with the length, in clean recordings, by kind."""
    faults: list[Measured] = field(default_factory=list)


def cut(recording: clean.Recording, rng: np.random.Generator) -> clean.Recording:
    """Return the recording without up to half of the steps of half of the episodes, at their start: ends stay as they are."""
    cuts = [len(one) > _FEWEST and rng.random() < 0.5 for one in recording.episodes]
    starts = [
        int(rng.integers(1, len(one) // 2)) if is_cut else 0
        for one, is_cut in zip(recording.episodes, cuts, strict=True)
    ]
    episodes = tuple(one.part(start, len(one)) for one, start in zip(recording.episodes, starts, strict=True))
    return replace(recording, episodes=episodes)


def scored(recording: clean.Recording, check: str) -> NDArray[np.float64] | None:
    """Return the score of each episode, [E], or None. Of several fields, the field with the highest score counts.

    The scores of a field are counted from their median, in units of the distance from the median to the 90 % quantile.
    """
    with tempfile.TemporaryDirectory() as folder:
        stored = recording.store(Path(folder) / "dataset")
        found = score_steps(StepReader(stored), [check_class(check)()], name="", settings=Settings.from_env())
        if not found:
            return None
        scores = [np.nan_to_num(one) for one in found.values()]
        if len(scores) == 1:
            return scores[0]
        spread = [max(float(np.quantile(one, 0.9) - np.median(one)), 1e-9) for one in scores]
        scaled = [(one - np.median(one)) / unit for one, unit in zip(scores, spread, strict=True)]
        highest: NDArray[np.float64] = np.max(scaled, axis=0)
        return highest


def auc(score: NDArray[np.float64], truth: NDArray[np.bool_], pairs: NDArray[np.bool_] | None = None) -> float:
    """Return the share of pairs of a true and another episode in which the true one has the higher score. Ties are half.

    Args:
        score: Score of each episode, [E].
        truth: Whether each episode is true, [E].
        pairs: Which pairs count, [true, others], by default all.
    """
    apart = score[truth][:, None] - score[~truth]
    higher = (apart > 0) + 0.5 * (apart == 0)
    return float(higher.mean() if pairs is None else higher[pairs].mean())


def measure(fault: Fault, kind: str, seed: int) -> dict[str, Any] | None:
    """Return the fields of `Measured` of the medium fault in a recording of a kind. A fault of a whole dataset has none."""
    rng = np.random.default_rng([zlib.crc32(fault.name.encode()), seed])
    planted = fault.plant(_recording(fault.check, kind, seed), "medium", rng)
    truth = np.isin(np.arange(len(planted.recording.episodes)), list(planted.episodes))
    if planted.others or not truth.any() or truth.all():
        return None
    lengths = _lengths(planted.recording)
    named = {one for finding in audited(planted.recording, [fault.check]).findings for one in finding.episodes}
    found = np.isin(np.arange(len(lengths)), list(named))
    near = np.abs(lengths[truth][:, None] - lengths[~truth]) <= _NEAR * lengths[truth][:, None]
    alike, of_length, score = near.any(axis=0), auc(lengths, truth), scored(planted.recording, fault.check)
    measured = Measured(
        score=None if score is None else auc(score, truth),
        matched=None if score is None or not near.any() else auc(score, truth, near),
        length=max(of_length, 1 - of_length),
        counts=[int(one.sum()) for one in (truth, found & truth, ~truth, found[~truth], alike, found[~truth][alike])],
    )
    return asdict(measured)


def correlation(check: str, kind: str, seed: int) -> float | None:
    """Return the rank correlation of the score of a check with the length in a clean recording of a kind, or None."""
    recording = _recording(check, kind, seed)
    score = scored(recording, check)
    return None if score is None else rank_correlation(score, _lengths(recording))


def measured_rows(checks: list[str], seed: int, results: Results) -> dict[str, Row]:
    """Return what was measured by check."""
    rows: dict[str, Row] = defaultdict(Row)
    faults = [
        one for one in load_faults().values() if one.check not in _OF_LENGTH and (not checks or one.check in checks)
    ]
    # Faults of images take most of the time.
    for fault in sorted(faults, key=lambda one: one.check in CHECKS_OF_IMAGES):
        for kind in fault.kinds:
            print(fault.name, kind, file=sys.stderr)
            case = f"length {fault.name} {kind} {seed}"
            if fields := results.of(case, functools.partial(measure, fault, kind, seed)):
                clean_case = f"length clean {fault.check} {kind} {seed}"
                of_clean = results.of(clean_case, functools.partial(correlation, fault.check, kind, seed))
                rows[fault.check].faults.append(Measured(**fields))
                if of_clean is not None:
                    rows[fault.check].correlations[kind] = of_clean
    return rows


@functools.lru_cache(maxsize=16)
def _recording(check: str, kind: str, seed: int) -> clean.Recording:
    """Return a cut recording of a kind, of arms with images only if the check looks at images."""
    images = kind not in clean.WITH_IMAGES or check in CHECKS_OF_IMAGES
    return cut(clean.record(kind, EPISODES, seed, images=images), np.random.default_rng([seed, len(kind)]))


def _lengths(recording: clean.Recording) -> NDArray[np.float64]:
    return np.array([len(one) for one in recording.episodes], np.float64)


def table_lines(rows: dict[str, Row]) -> list[str]:
    """Return the table as Markdown."""
    lines = [
        "| check | correlation with length | score | score, equal lengths | length | found | false | false, equal lengths |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for check, row in sorted(rows.items()):
        of_faults = [[getattr(one, name) for one in row.faults] for name in ("score", "matched", "length")]
        columns = [[*row.correlations.values()], *([one for one in column if one is not None] for column in of_faults)]
        planted, found, others, false, alike, of_alike = np.sum([one.counts for one in row.faults], axis=0).tolist()
        means = [f"{np.mean(one):.2f}" if one else "" for one in columns]
        counts = [f"{found} of {planted}", f"{false} of {others:,}", f"{of_alike} of {alike:,}"]
        lines.append(f"| `{check}` | {' | '.join([*means, *counts])} |")
    return lines


def main() -> None:
    options = arguments().parse_args()
    lines = table_lines(measured_rows(options.checks, options.seed, Results(options.kept)))
    print("\n".join(lines))
    if options.write:
        write(lines, START, END)


if __name__ == "__main__":
    main()
