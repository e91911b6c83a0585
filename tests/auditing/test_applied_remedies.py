"""The remedies of every check: a fault is planted, the recipe of the audit is applied, and the result is audited again.

The finding is gone, and no other strong finding came in its place. A fault that is not strong may hide a part of itself: it widens the
limits of the dataset, so that the second audit finds the part, in the same episode.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import clean
from planting import CHECKS_OF_IMAGES, STRENGTHS, Fault, Strength, load_faults

from datasets_rl import Audit, Finding, Recipe, audit
from datasets_rl.auditing.remedy import Correction, recipe_of
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import preprocess

QUICK = ("maze", "teleop", "texts", "arm", "agents", "leader")
"""Kinds of recordings that are made at once, the quickest first."""
WITHOUT_STEP = {"constant_fields", "constant_rewards", "final_is_reset", "missing_ends"}
"""Checks with sentences as remedies."""
TOGETHER = {"conventions", "shared_episodes"}
"""Checks of several datasets."""
LATE = {
    "rewards_shifted-agents-strong": "a smooth reward that is two steps late fits best a step later, and again after the remedy",
    "all_clocks_jitter-teleop-weak": "among clocks that jitter, the second audit finds another gap. The remedy of the jitter is a sentence",
}
LOST = "The remedy drops the last"
"""What a finding says if its remedy drops the last steps of all episodes, with their rewards."""


def cases() -> list[tuple[str, str, Strength]]:
    """Return each fault with its quickest kind of recording and each strength, the strongest first."""
    faults = [one for one in load_faults().values() if one.check not in WITHOUT_STEP | TOGETHER]
    kinds = {one.name: min(one.kinds, key=lambda kind: (*QUICK, kind).index(kind)) for one in faults}
    faults.sort(key=lambda one: (one.check in CHECKS_OF_IMAGES, (*QUICK, kinds[one.name]).index(kinds[one.name])))
    return [(one.name, kinds[one.name], strength) for strength in reversed(STRENGTHS) for one in faults]


def audited(fault: Fault, kind: str, strength: Strength, folder: Path, seed: int = 0) -> tuple[Audit, frozenset[int]]:
    """Store a recording with a fault, and return its audit and the episodes with the fault."""
    rng = np.random.default_rng([zlib.crc32(fault.name.encode()), STRENGTHS.index(strength), seed])
    images = fault.check in CHECKS_OF_IMAGES or kind not in clean.WITH_IMAGES
    planted = fault.plant(clean.record(kind, 40, seed, images=images), strength, rng)
    planted.recording.store(folder)
    return audit(folder), planted.episodes


def acted_on(found: Audit, check: str) -> list[Finding]:
    """Return the strong findings, and the hints of a check."""
    return [one for one in found.findings if one.level != "hint" or one.check == check]


def is_told(finding: Finding, before: list[Finding]) -> bool:
    """Return whether the first audit said that this is left, or comes: a remedy in words, or rewards that a shift drops."""
    of_rewards = finding.check in {"constant_rewards", "success_columns"} and any(LOST in one.message for one in before)
    # Both parts of a divided episode have its metadata, and only the second has its end: docs/audit.md says so.
    divided = any(str(one.remedy).startswith("-t split_episodes") for one in before)
    of_rewards |= divided and finding.check in {"success_columns", "missing_ends"}
    same = [one for one in before if (one.check, one.key) == (finding.check, finding.key)]
    return of_rewards or any(not isinstance(one.remedy, Correction) for one in same)


@pytest.mark.first(6)
@pytest.mark.parametrize(("name", "kind", "strength"), cases())
def test_after_the_remedy_the_finding_is_gone_and_none_has_come(name, kind, strength, tmp_path):
    if reason := LATE.get(f"{name}-{kind}-{strength}"):
        pytest.xfail(reason)
    fault = load_faults()[name]
    report, planted = audited(fault, kind, strength, tmp_path / "broken")
    before = acted_on(report, fault.check)
    recipe = recipe_of("broken", before, report.episodes)
    if not any(one.check == fault.check for one in before) or "[[step]]" not in recipe:
        pytest.skip("no finding with a step: tests/auditing/table.py counts what is missed")
    (tmp_path / "recipe.toml").write_text(recipe, "utf-8")

    folder = preprocess(tmp_path / "broken", Recipe.of(str(tmp_path / "recipe.toml")), out=tmp_path / "corrected")
    after = [one for one in audit(folder).of_level("strong") if not is_told(one, before)]
    sources = StoredDataset(folder).episodes["source"]
    hidden = planted if strength != "strong" else frozenset()

    assert [
        one for one in after if not one.episodes or not hidden.issuperset(sources[list(one.episodes)].tolist())
    ] == []


def test_every_check_is_corrected_or_has_a_remedy_in_words():
    planted = {one.check for one in load_faults().values()}

    assert WITHOUT_STEP | TOGETHER | {load_faults()[name].check for name, _, _ in cases()} == planted
