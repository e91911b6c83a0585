"""The table of docs/audit.md about length: whether the score of a check finds faults, or the length of episodes.

python tests/auditing/length_table.py [--seed N] [--write] [CHECK ...]

Half of the episodes of each recording are cut, so that episodes have several lengths. Planted episodes are compared with all other episodes, and with
those whose length is within a tenth.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import clean
import numpy as np
from numpy.typing import NDArray
from planting import CHECKS_OF_IMAGES, Fault, audited, load_faults
from table import PAGE, SEED

from datasets_rl.auditing.checks import check_class
from datasets_rl.auditing.lengths import rank_correlation
from datasets_rl.auditing.run import score_steps
from datasets_rl.look.steps import StepReader
from datasets_rl.settings import Settings

START, END = "<!-- measured by tests/auditing/length_table.py -->", "<!-- end of the measured lengths -->"
EPISODES = 40
_NEAR = 0.1
_FEWEST = 10
_OF_LENGTH = frozenset({"ends_at_limit"})
"""Checks that name episodes by their length."""


@dataclass
class Row:
    """What was measured of a check: a number for each recording, and counts of episodes."""

    kinds: set[str] = field(default_factory=set)
    correlations: list[float] = field(default_factory=list)
    """Rank correlations of the score with the length, in clean recordings."""
    scores: list[float] = field(default_factory=list)
    """Shares of the pairs of a planted and another episode in which the planted one has the higher score."""
    matched: list[float] = field(default_factory=list)
    """The same of pairs of about one length."""
    lengths: list[float] = field(default_factory=list)
    """The same with the length as the score, or its negative, whichever is better."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, np.int64))
    """Planted, found, others, falsely named, others of the length of a planted episode, falsely named of these."""


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


def measure(fault: Fault, kind: str, seed: int, row: Row) -> None:
    """Add the medium fault in a recording of a kind to a row. A fault of a whole dataset adds nothing."""
    rng = np.random.default_rng([zlib.crc32(fault.name.encode()), seed])
    recording = _recording(fault.check, kind, seed)
    planted = fault.plant(recording, "medium", rng)
    truth = np.isin(np.arange(len(planted.recording.episodes)), list(planted.episodes))
    if planted.others or not truth.any() or truth.all():
        return
    if kind not in row.kinds:
        row.kinds.add(kind)
        score = scored(recording, fault.check)
        if score is not None and (correlation := rank_correlation(score, _lengths(recording))) is not None:
            row.correlations.append(correlation)
    lengths = _lengths(planted.recording)
    named = {one for finding in audited(planted.recording, [fault.check]).findings for one in finding.episodes}
    found = np.isin(np.arange(len(lengths)), list(named))
    near = np.abs(lengths[truth][:, None] - lengths[~truth]) <= _NEAR * lengths[truth][:, None]
    alike = near.any(axis=0)
    row.counts += [truth.sum(), (found & truth).sum(), (~truth).sum(), found[~truth].sum(), alike.sum(), found[~truth][alike].sum()]  # fmt: skip
    of_length = auc(lengths, truth)
    row.lengths.append(max(of_length, 1 - of_length))
    if (score := scored(planted.recording, fault.check)) is not None:
        row.scores.append(auc(score, truth))
        if near.any():
            row.matched.append(auc(score, truth, near))


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
        if not row.counts[0]:
            continue
        means = [
            f"{np.mean(one):.2f}" if one else "" for one in (row.correlations, row.scores, row.matched, row.lengths)
        ]
        planted, found, others, false, alike, of_alike = row.counts.tolist()
        counts = [f"{found} of {planted}", f"{false} of {others:,}", f"{of_alike} of {alike:,}"]
        lines.append(f"| `{check}` | {' | '.join([*means, *counts])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the recordings")
    parser.add_argument("--write", action="store_true", help="write the table into docs/audit.md")
    parser.add_argument("checks", nargs="*")
    options = parser.parse_args()
    rows: dict[str, Row] = defaultdict(Row)
    faults = [fault for fault in load_faults().values() if fault.check not in _OF_LENGTH]
    # Faults of images take most of the time.
    for fault in sorted(faults, key=lambda one: one.check in CHECKS_OF_IMAGES):
        for kind in fault.kinds if not options.checks or fault.check in options.checks else ():
            print(fault.name, kind, file=sys.stderr)
            measure(fault, kind, options.seed, rows[fault.check])
    lines = table_lines(rows)
    print("\n".join(lines))
    if options.write:
        text = PAGE.read_text("utf-8")
        before, rest = text.split(f"{START}\n", 1)
        PAGE.write_text(f"{before}{START}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END, 1)[1]}", "utf-8")


if __name__ == "__main__":
    main()
