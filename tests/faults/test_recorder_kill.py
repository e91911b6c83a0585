"""A program that records episodes is killed at its file-system events: every finished episode is in the dataset."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"), pytest.mark.usefixtures("warm_python")]


@pytest.mark.parametrize(("first", "steps"), [(9, 80), pytest.param(1, 1, marks=pytest.mark.slow)])
def test_every_finished_episode_survives_the_death_of_the_program(tmp_path, first, steps):
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("recorder_crashes.py"),
            json.dumps({"folder": str(tmp_path), "first": first, "steps": steps}),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    print(f"\n{len(reports)} kills, {sum(one['finished'] for one in reports)} finished episodes")

    assert len(reports) >= 240 // steps
    for one in reports:
        # The episode that was being written may be complete as well.
        assert one["found"] - one["finished"] in {0, 1}, one
        assert one["values"], one
        assert (one["problems"], one["left"]) == ([], []), one
