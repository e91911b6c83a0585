"""A dump that is killed anywhere leaves the state before it or the new one, and the next dump cleans up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")


def reports(tmp_path, *, old, steps):
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("checkpoint_crashes.py"),
            json.dumps({"folder": str(tmp_path / "checkpoint"), "old": old, "steps": steps}),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("old", "before"), [(True, "old"), (False, "absent")], ids=["over another", "the first"])
@pytest.mark.parametrize("steps", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_dump_killed_at_its_steps_leaves_a_whole_state_and_no_more_than_the_next_removes(
    tmp_path, old, before, steps
):
    found = reports(tmp_path, old=old, steps=steps)
    after = [report["after"] for report in found]
    turn = after.index("new")

    assert len(found) >= 20 // steps
    assert all(report["died"] for report in found)
    assert after == [before] * turn + ["new"] * (len(found) - turn)
    assert all(report["again"] == "new" and report["clean"] for report in found)
