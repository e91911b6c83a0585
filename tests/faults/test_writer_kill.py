"""A killed writer of a shared buffer leaves no record with fields of two writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"), pytest.mark.usefixtures("warm_python")]


def trials(count, seed):
    plan = json.dumps({"trials": count, "seed": seed})
    program = Path(__file__).with_name("writer_crashes.py")
    done = subprocess.run([sys.executable, program, plan], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_nothing_is_torn(found):
    assert all(one["batches"] for one in found)
    assert sum(one["torn_in_batches"] for one in found) == 0
    assert sum(one["gaps"] for one in found) == 0
    assert [one["exit"] for one in found] == [[0, 0]] * len(found)
    for one in found:
        for state in (one["found"], one["reopened"]):
            assert state["mixed"] == 0, one
            assert state["zeros"] == state["torn"], one
        assert one["healed"], one


def test_no_reader_samples_a_torn_record_of_a_killed_writer():
    found = trials(4, seed=1)

    assert_nothing_is_torn(found)


@pytest.mark.slow
def test_no_reader_samples_a_torn_record_of_sixty_killed_writers(capsys):
    found = trials(75, seed=0)
    with capsys.disabled():
        torn = [one for one in found if one["found"]["torn"]]
        print(
            f"\n{len(found)} writers killed, {sum(one['batches'] for one in found):,} batches by 2 readers each: "
            f"{len(torn)} writers left {sum(one['found']['torn'] for one in torn):,} torn steps, none was sampled"
        )

    assert torn
    assert_nothing_is_torn(found)
