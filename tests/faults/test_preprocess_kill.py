"""A preprocessing run that is killed at any time leaves the old or the new dataset, and the next run completes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stored_data import columns, store_dataset, trajectory

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"), pytest.mark.usefixtures("warm_python")]


def killed(tmp_path, **task):
    folder = tmp_path / "toy" / "small" / "data"
    given = [trajectory(2 + number % 5, seed=number, known=bool(number % 3)) for number in range(24)]
    store_dataset(folder, given, columns(), id="toy/small/data")
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("preprocess_crashes.py"),
            json.dumps({"folder": str(folder), **task}),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(reports):
    """Check that readers found the old or the new dataset, and that runs without a kill completed and were undone."""
    assert {one["found"] for one in reports} <= {"old", "new"}
    assert {one["found"] for one in reports if one["event"] in {"first", "again"}} == {"new"}
    undone = [one for one in reports if str(one["event"]).startswith("undo")]
    assert {one["found"] for one in undone} == {"old"}
    assert [one["left"] for one in undone if one["left"]] == []
    return sum(one["died"] for one in reports)


@pytest.mark.parametrize(("how", "steps"), [pytest.param("direct", 16, marks=pytest.mark.slow), ("parts", 32)])
def test_a_run_killed_at_its_steps_leaves_the_old_dataset_or_the_new_one(tmp_path, how, steps):
    assert judge(killed(tmp_path, how=how, steps=steps, random=0)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["direct", "parts"])
def test_a_run_killed_at_every_step_leaves_the_old_dataset_or_the_new_one(tmp_path, how):
    assert judge(killed(tmp_path, how=how, steps=1, random=100)) >= 100


@pytest.mark.slow
def test_a_run_of_several_processes_killed_at_any_moment_leaves_the_old_dataset_or_the_new_one(tmp_path):
    assert judge(killed(tmp_path, how="several", steps=100_000, random=100)) >= 100
