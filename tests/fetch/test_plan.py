"""Every decision of a download, as tables of inputs and outputs."""

from __future__ import annotations

import itertools

import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.fetch import plan
from datasets_rl.fetch.plan import Action, ExistingFile, ExpectedFile, PartialState, ServerResponse

ONE, TWO = "1" * 64, "2" * 64
HERE, THERE = "https://here/a", "https://there/a"


@pytest.mark.parametrize(
    ("wanted", "file", "do"),
    [
        (ExpectedFile(), None, Action.RESTART),
        (ExpectedFile(), ExistingFile(9, 9, ONE, untouched=True), Action.PRESENT),
        (ExpectedFile(9, ONE), ExistingFile(9, 9, ONE, untouched=True), Action.PRESENT),
        (ExpectedFile(9, TWO), ExistingFile(9, 9, ONE, untouched=True), Action.RESTART),
        (ExpectedFile(8), ExistingFile(9, 9, ONE, untouched=True), Action.RESTART),
        (ExpectedFile(), ExistingFile(9, 9, ONE, untouched=False), Action.HASH),
        (ExpectedFile(), ExistingFile(8, 9, ONE, untouched=True), Action.HASH),
        (ExpectedFile(9, ONE), ExistingFile(9), Action.HASH),
        (ExpectedFile(9), ExistingFile(9), Action.RESTART),
    ],
)
def test_a_file_is_present_only_with_a_matching_record_or_digest(wanted, file, do):
    assert plan.decide_existing(wanted, file).action is do


@pytest.mark.parametrize(
    ("wanted", "left", "do", "if_range"),
    [
        (ExpectedFile(), None, Action.RESUME, None),
        (ExpectedFile(), PartialState(HERE, 0), Action.RESUME, None),
        (ExpectedFile(), PartialState(HERE, 5, 9, '"v"'), Action.RESUME, '"v"'),
        (ExpectedFile(9, ONE), PartialState(HERE, 5, 9, '"v"'), Action.RESUME, '"v"'),
        (ExpectedFile(), PartialState(HERE, 5, 9), Action.RESTART, None),
        (ExpectedFile(9), PartialState(HERE, 5, 9), Action.RESTART, None),
        (ExpectedFile(9, ONE), PartialState(HERE, 5, 9), Action.RESUME, None),
        (ExpectedFile(), PartialState(THERE, 5, 9, '"v"'), Action.RESTART, None),
        (ExpectedFile(9, ONE), PartialState(THERE, 5, 9, '"v"'), Action.RESUME, None),
        (ExpectedFile(8, ONE), PartialState(HERE, 5, 9, '"v"'), Action.RESTART, None),
        (ExpectedFile(4, ONE), PartialState(HERE, 5, None, '"v"'), Action.RESTART, None),
    ],
)
def test_a_partial_download_is_resumed_only_with_a_version_or_a_digest(wanted, left, do, if_range):
    step = plan.decide_resume(wanted, left, HERE)

    assert (step.action, step.if_range) == (do, if_range)


@pytest.mark.parametrize(
    ("asked", "left", "said", "do"),
    [
        (0, PartialState(HERE, 0), ServerResponse(200, 9), Action.RESUME),
        (0, PartialState(HERE, 0), ServerResponse(200), Action.RESUME),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, 9, 5, '"v"'), Action.RESUME),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, None, 5, '"v"'), Action.RESUME),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, 9, 5), Action.RESTART),
        (5, PartialState(HERE, 5, 9), ServerResponse(206, 9, 5, '"v"'), Action.RESTART),
        (5, PartialState(HERE, 5, 9), ServerResponse(206, 9, 5), Action.RESTART),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, 9, 5, '"w"'), Action.RESTART),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, 10, 5, '"v"'), Action.RESTART),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, 9, 4, '"v"'), Action.RESTART),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(206, None, -1), Action.RESTART),
        (5, PartialState(HERE, 5, 9, '"v"'), ServerResponse(200, 9, validator='"v"'), Action.RESTART),
        (9, PartialState(HERE, 9, None, '"v"'), ServerResponse(416, 9, validator='"v"'), Action.WHOLE),
        (9, PartialState(HERE, 9, None, '"v"'), ServerResponse(416, 9), Action.RESTART),
        (9, PartialState(HERE, 9, 12, '"v"'), ServerResponse(416, 9), Action.RESTART),
        (9, PartialState(HERE, 9, None, '"v"'), ServerResponse(416, 4), Action.RESTART),
        (9, PartialState(HERE, 9, None, '"v"'), ServerResponse(416), Action.RESTART),
        (0, PartialState(HERE, 0), ServerResponse(416), Action.REFUSE),
        (0, PartialState(HERE, 0), ServerResponse(200, 9, encoding="gzip"), Action.REFUSE),
        (0, PartialState(HERE, 0), ServerResponse(200, 9, encoding="identity"), Action.RESUME),
        *[
            (0, PartialState(HERE, 0), ServerResponse(status), Action.RETRY)
            for status in (408, 425, 429, 500, 502, 503, 504, 599)
        ],
        *[(5, PartialState(HERE, 5), ServerResponse(status), Action.RETRY) for status in (429, 500, 503)],
        *[
            (0, PartialState(HERE, 0), ServerResponse(status), Action.REFUSE)
            for status in (204, 304, 400, 401, 403, 404, 410, 451)
        ],
    ],
)
def test_a_response_is_accepted_retried_or_refused(asked, left, said, do):
    assert plan.decide_response(ExpectedFile(), left, asked, said).action is do


def test_a_length_other_than_in_the_catalog_is_refused_as_another_file():
    step = plan.decide_response(ExpectedFile(8), PartialState(HERE, 0), 0, ServerResponse(200, 9))

    assert (step.action, step.wrong_bytes) == (Action.REFUSE, True)
    assert "9 bytes, expected 8" in step.reason


def test_no_response_mixes_bytes_of_two_versions():
    """For any response, bytes are appended only if the server confirms that they are of the same version."""
    statuses, totals, starts, marks = (200, 206, 416, 500), (None, 9, 10), (0, 4, 5), (None, '"v"', '"w"')
    left = PartialState(HERE, 5, 9, '"v"')
    taken = [
        said
        for said in itertools.starmap(ServerResponse, itertools.product(statuses, totals, starts, marks))
        if plan.decide_response(ExpectedFile(), left, 5, said).action in (Action.RESUME, Action.WHOLE)
    ]

    assert taken
    assert all(said.status == 206 and said.start == 5 for said in taken)
    assert all(said.total in (None, 9) and said.validator == '"v"' for said in taken)


@pytest.mark.parametrize("mark", [None, '"v"'])
@pytest.mark.parametrize(
    "wanted", [ExpectedFile(), ExpectedFile(9), ExpectedFile(9, ONE)], ids=["nothing", "size", "sha256"]
)
def test_a_retry_and_a_resume_follow_one_rule(wanted, mark):
    """The process that began a download continues it exactly where another process would."""
    left = PartialState(HERE, 5, 9, mark)
    resumed = plan.decide_resume(wanted, left, HERE).action is Action.RESUME

    assert resumed == (plan.decide_response(wanted, left, 5, ServerResponse(206, 9, 5, mark)).action is Action.RESUME)
    assert resumed == (mark is not None or wanted.sha256 is not None)


def test_every_decision_has_a_reason():
    steps = [
        plan.decide_existing(ExpectedFile(), None),
        plan.decide_resume(ExpectedFile(), None, HERE),
        plan.decide_response(ExpectedFile(), PartialState(HERE, 0), 0, ServerResponse(404)),
    ]

    assert all(step.reason for step in steps)


def test_pauses_double_and_follow_retry_after_up_to_a_limit():
    assert plan.retry_delay(4, None, 0.5) == 2 * plan.retry_delay(3, None, 0.5)
    assert plan.retry_delay(1, 7.0, 0.0) == 7.0
    assert plan.retry_delay(1, 86_400.0, 0.0) == plan.LONGEST_PAUSE
    assert plan.retry_delay(5_000, None, 0.999) <= plan.LONGEST_PAUSE


@pytest.mark.parametrize(("start", "stop", "pieces"), [(0, 10, 3), (7, 8, 4), (5, 105, 1), (0, 4, 4)])
def test_ranges_cover_every_byte_once(start, stop, pieces):
    ranges = plan.split_range(start, stop, pieces)

    assert [byte for first, end in ranges for byte in range(first, end)] == list(range(start, stop))
    assert len(ranges) <= pieces


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "../a", "a/../../b", "a\\b", "C:a", "C:/a", "//host/a", "a//b", "./a", "a/", "a\0"],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(path):
    with pytest.raises(InvalidArgumentError, match="not a plain relative path"):
        plan.safe_path(path)


def test_a_path_below_the_folder_is_accepted():
    assert plan.safe_path("a/$store$_b..c/d e.gz").parts == ("a", "$store$_b..c", "d e.gz")
