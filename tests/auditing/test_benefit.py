"""The remedies that are measured to help are those that the checks state, and the measurements are those of the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benefit import ARMS, CASES, END, PAGE, START, Case, helped, planted, read, table_lines, verdict
from planting import audited
from tasks import TASKS

from datasets_rl.auditing import CHECKS
from datasets_rl.auditing.benefits import BETTER, training_with

RESULTS = read()


def arms(*returns: list[float | None]) -> dict[str, Any]:
    """Return the results of three arms, faulty, remedied and random."""
    return {
        arm: {str(seed): {"return": one} for seed, one in enumerate(values)}
        for arm, values in zip(ARMS, returns, strict=True)
    }


@pytest.mark.parametrize(
    ("faulty", "remedied", "random", "word"),
    [
        ([1, 2, 3], [4, 5, 6], [1, 2, 3], "better"),
        ([1, 2, 3], [3, 5, 6], [1, 2, 3], "the same"),
        ([1, 2, 3], [4, 5, 6], [1, 2, 9], "the same"),
        ([4, 5, 6], [1, 2, 3], [1, 2, 3], "worse"),
        ([1, 2, 3], [4, 5, 6], [7, 8, 9], "worse"),
        ([None, None, None], [-5, -4, -3], [None, None, None], "better"),
        ([1, 2], [4, 5], [1, 2], ""),
    ],
)
def test_ranges_of_seeds_that_overlap_are_the_same(faulty, remedied, random, word):
    assert verdict(arms(faulty, remedied, random)) == word


def test_a_remedy_for_all_episodes_is_compared_with_the_faulty_data_alone():
    found = arms([1, 2, 3], [4, 5, 6], [None, None, None])
    for one in found["random"].values():
        one["reason"] = "the remedy is for most episodes"

    assert verdict(found) == "better"


def test_a_check_that_finds_nothing_strong_does_not_help():
    found = arms([1, 2, 3], [None, 5, 6], [None, 1, 1])
    found["remedied"]["0"]["reason"] = "nothing found"

    assert verdict(found) == "nothing found"
    assert helped({"case": {"check": "outliers", **found}}) == set()


def test_a_check_with_a_remedy_that_made_training_worse_does_not_help():
    better, worse = arms([1, 2, 3], [4, 5, 6], [1, 2, 3]), arms([4, 5, 6], [1, 2, 3], [4, 5, 6])

    assert helped({"one": {"check": "outliers", **better}}) == {"outliers"}
    assert helped({"one": {"check": "outliers", **better}, "two": {"check": "outliers", **worse}}) == set()


def test_the_package_states_what_was_measured():
    assert helped(RESULTS) == BETTER
    assert training_with("outliers") == "better"
    assert training_with("constant_fields") == "not shown to help"


def test_the_page_has_the_measurements():
    text = PAGE.read_text("utf-8").split(START, 1)[1].split(END, 1)[0]

    assert text.strip().splitlines() == table_lines(RESULTS)
    assert "| better |" in text


def test_the_remedy_of_a_heading_that_wraps_is_the_recording_without_the_fault():
    case = Case("heading_wraps", "strong", "rover")
    recording = TASKS["rover"].recording(0)
    (finding,) = audited(planted(case, 0), ["angle_wraps"]).findings
    turns = [one.array(("observation",))[0, 2] - finding.remedy.arguments["around"][0] for one in recording.episodes]

    # The way to the goal has the range of an angle, too, and never jumps.
    assert finding.remedy.places == (2,)
    assert np.abs(turns).max() < np.pi


def test_each_fault_is_of_a_check():
    assert {case.check for case in CASES} <= set(CHECKS)
