"""The slow tests in parts: each test is in one of them, and the nightly run has them all, of at most 20 minutes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_parts import TABLE, main, parts_of, selected

ROOT = Path(__file__).parents[1]


@given(st.lists(st.floats(0.1, 400), min_size=1, max_size=200), st.integers(1, 20))
def test_tests_stay_in_order_and_no_part_takes_more_than_its_share_and_a_test(seconds, count):
    parts = parts_of(seconds, count)

    assert parts == sorted(parts)
    assert set(parts) <= set(range(count))
    taken = [sum(one for one, part in zip(seconds, parts, strict=True) if part == number) for number in range(count)]
    assert max(taken) <= sum(seconds) / count + max(seconds) + 1e-6


def collected(*options):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "--collect-only",
        "-m",
        "slow",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *options, "tests/disk/test_disk.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [line for line in done.stdout.splitlines() if "::" in line], done


@pytest.mark.slow
def test_each_slow_test_is_in_one_part():
    parts = [collected("--part", f"{number}/2")[0] for number in (1, 2)]

    assert all(parts)
    assert [*parts[0], *parts[1]] == collected()[0]


@pytest.mark.parametrize("part", ["3", "0/2", "3/2", "a/b"])
def test_what_is_not_a_part_is_refused(part):
    with pytest.raises(
        ValueError, match=f"the part is '{part}', expected a number and how many there are, such as 3/9"
    ):
        selected([], part)


def test_pytest_refuses_what_is_not_a_part_without_a_traceback():
    _, done = collected("--part", "3")

    assert done.returncode == 4
    assert "ERROR: the part is '3', expected a number" in done.stderr


def test_the_nightly_run_has_every_part_and_no_test_takes_ten_minutes():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    (numbers,) = re.findall(r"^ +part: \[([\d, ]+)\]$", workflow, re.MULTILINE)
    (count,) = re.findall(r"make slow PART=\$\{\{ matrix.part \}\}/(\d+)", workflow)

    assert [int(number) for number in numbers.split(",")] == [*range(1, int(count) + 1)]
    assert max(json.loads(TABLE.read_text("utf-8")).values()) < 600


def test_the_table_is_made_of_reports(tmp_path, monkeypatch):
    case = '<testcase classname="tests.a.test_b" name="{}" time="{}"/>'
    cases = [("test_c[1]", 2), ("test_c[2]", 5), ("test_short", 0.2)]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(case.format(*one) for one in cases)}</testsuite></testsuites>")
    monkeypatch.setattr("slow_parts.TABLE", tmp_path / "table.json")

    main([report])

    assert json.loads((tmp_path / "table.json").read_text()) == {"tests.a.test_b.test_c": 3.5}


@pytest.mark.slow
def test_a_slow_test_is_ended_after_the_time_of_a_part(request):
    assert request.node.get_closest_marker("timeout").args == (20 * 60,)
