"""Every decision of a download, as tables of inputs and outputs."""

from __future__ import annotations

import itertools

import pytest

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.fetch import plan
from datasets_rl.fetch.plan import Answer, Do, Finished, Left, Wanted

ONE, TWO = "1" * 64, "2" * 64
HERE, THERE = "https://here/a", "https://there/a"


@pytest.mark.parametrize(
    ("wanted", "file", "do"),
    [
        (Wanted(), None, Do.RESTART),
        (Wanted(), Finished(9, 9, ONE, untouched=True), Do.PRESENT),
        (Wanted(9, ONE), Finished(9, 9, ONE, untouched=True), Do.PRESENT),
        (Wanted(9, TWO), Finished(9, 9, ONE, untouched=True), Do.RESTART),
        (Wanted(8), Finished(9, 9, ONE, untouched=True), Do.RESTART),
        (Wanted(), Finished(9, 9, ONE, untouched=False), Do.HASH),
        (Wanted(), Finished(8, 9, ONE, untouched=True), Do.HASH),
        (Wanted(9, ONE), Finished(9), Do.HASH),
        (Wanted(9), Finished(9), Do.RESTART),
    ],
)
def test_a_file_is_present_only_with_a_matching_record_or_digest(wanted, file, do):
    assert plan.finished(wanted, file).do is do


@pytest.mark.parametrize(
    ("wanted", "left", "do", "if_range"),
    [
        (Wanted(), None, Do.RESUME, None),
        (Wanted(), Left(HERE, 0), Do.RESUME, None),
        (Wanted(), Left(HERE, 5, 9, '"v"'), Do.RESUME, '"v"'),
        (Wanted(9, ONE), Left(HERE, 5, 9, '"v"'), Do.RESUME, '"v"'),
        (Wanted(), Left(HERE, 5, 9), Do.RESTART, None),
        (Wanted(9), Left(HERE, 5, 9), Do.RESTART, None),
        (Wanted(9, ONE), Left(HERE, 5, 9), Do.RESUME, None),
        (Wanted(), Left(THERE, 5, 9, '"v"'), Do.RESTART, None),
        (Wanted(9, ONE), Left(THERE, 5, 9, '"v"'), Do.RESUME, None),
        (Wanted(8, ONE), Left(HERE, 5, 9, '"v"'), Do.RESTART, None),
        (Wanted(4, ONE), Left(HERE, 5, None, '"v"'), Do.RESTART, None),
    ],
)
def test_a_partial_download_is_resumed_only_with_a_version_or_a_digest(wanted, left, do, if_range):
    step = plan.part(wanted, left, HERE)

    assert (step.do, step.if_range) == (do, if_range)


@pytest.mark.parametrize(
    ("asked", "left", "said", "do"),
    [
        (0, Left(HERE, 0), Answer(200, 9), Do.RESUME),
        (0, Left(HERE, 0), Answer(200), Do.RESUME),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, 9, 5, '"v"'), Do.RESUME),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, None, 5, '"v"'), Do.RESUME),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, 9, 5), Do.RESTART),
        (5, Left(HERE, 5, 9), Answer(206, 9, 5, '"v"'), Do.RESTART),
        (5, Left(HERE, 5, 9), Answer(206, 9, 5), Do.RESTART),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, 9, 5, '"w"'), Do.RESTART),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, 10, 5, '"v"'), Do.RESTART),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, 9, 4, '"v"'), Do.RESTART),
        (5, Left(HERE, 5, 9, '"v"'), Answer(206, None, -1), Do.RESTART),
        (5, Left(HERE, 5, 9, '"v"'), Answer(200, 9, validator='"v"'), Do.RESTART),
        (9, Left(HERE, 9, None, '"v"'), Answer(416, 9, validator='"v"'), Do.WHOLE),
        (9, Left(HERE, 9, None, '"v"'), Answer(416, 9), Do.RESTART),
        (9, Left(HERE, 9, 12, '"v"'), Answer(416, 9), Do.RESTART),
        (9, Left(HERE, 9, None, '"v"'), Answer(416, 4), Do.RESTART),
        (9, Left(HERE, 9, None, '"v"'), Answer(416), Do.RESTART),
        (0, Left(HERE, 0), Answer(416), Do.REFUSE),
        (0, Left(HERE, 0), Answer(200, 9, encoding="gzip"), Do.REFUSE),
        (0, Left(HERE, 0), Answer(200, 9, encoding="identity"), Do.RESUME),
        *[(0, Left(HERE, 0), Answer(status), Do.RETRY) for status in (408, 425, 429, 500, 502, 503, 504, 599)],
        *[(5, Left(HERE, 5), Answer(status), Do.RETRY) for status in (429, 500, 503)],
        *[(0, Left(HERE, 0), Answer(status), Do.REFUSE) for status in (204, 304, 400, 401, 403, 404, 410, 451)],
    ],
)
def test_a_response_is_accepted_retried_or_refused(asked, left, said, do):
    assert plan.answer(Wanted(), left, asked, said).do is do


def test_a_length_other_than_in_the_catalog_is_refused_as_another_file():
    step = plan.answer(Wanted(8), Left(HERE, 0), 0, Answer(200, 9))

    assert (step.do, step.wrong_bytes) == (Do.REFUSE, True)
    assert "9 bytes, expected 8" in step.reason


def test_no_response_mixes_bytes_of_two_versions():
    """For any response, bytes are appended only if the server confirms that they are of the same version."""
    statuses, totals, starts, marks = (200, 206, 416, 500), (None, 9, 10), (0, 4, 5), (None, '"v"', '"w"')
    left = Left(HERE, 5, 9, '"v"')
    taken = [
        said
        for said in itertools.starmap(Answer, itertools.product(statuses, totals, starts, marks))
        if plan.answer(Wanted(), left, 5, said).do in (Do.RESUME, Do.WHOLE)
    ]

    assert taken
    assert all(said.status == 206 and said.start == 5 for said in taken)
    assert all(said.total in (None, 9) and said.validator == '"v"' for said in taken)


@pytest.mark.parametrize("mark", [None, '"v"'])
@pytest.mark.parametrize("wanted", [Wanted(), Wanted(9), Wanted(9, ONE)], ids=["nothing", "size", "sha256"])
def test_a_retry_and_a_resume_follow_one_rule(wanted, mark):
    """The process that began a download continues it exactly where another process would."""
    left = Left(HERE, 5, 9, mark)
    resumed = plan.part(wanted, left, HERE).do is Do.RESUME

    assert resumed == (plan.answer(wanted, left, 5, Answer(206, 9, 5, mark)).do is Do.RESUME)
    assert resumed == (mark is not None or wanted.sha256 is not None)


def test_every_decision_has_a_reason():
    steps = [
        plan.finished(Wanted(), None),
        plan.part(Wanted(), None, HERE),
        plan.answer(Wanted(), Left(HERE, 0), 0, Answer(404)),
    ]

    assert all(step.reason for step in steps)


def test_pauses_double_and_follow_retry_after_up_to_a_limit():
    assert plan.pause(4, None, 0.5) == 2 * plan.pause(3, None, 0.5)
    assert plan.pause(1, 7.0, 0.0) == 7.0
    assert plan.pause(1, 86_400.0, 0.0) == plan.LONGEST_PAUSE
    assert plan.pause(5_000, None, 0.999) <= plan.LONGEST_PAUSE


@pytest.mark.parametrize(("start", "stop", "pieces"), [(0, 10, 3), (7, 8, 4), (5, 105, 1), (0, 4, 4)])
def test_ranges_cover_every_byte_once(start, stop, pieces):
    ranges = plan.cut(start, stop, pieces)

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
