"""A dump that is killed at any event leaves the previous state or the new one, and the next dump removes its files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"), pytest.mark.usefixtures("warm_python")]


def reports(tmp_path, *, old, steps):
    """Run `checkpoint_crashes.py`; return its report of each child."""
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


@pytest.mark.first(1)
@pytest.mark.parametrize(("old", "before"), [(True, "old"), (False, "absent")], ids=["over another", "the first"])
@pytest.mark.parametrize("steps", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_dump_leaves_a_complete_state_and_files_that_the_next_dump_removes(tmp_path, old, before, steps):
    found = reports(tmp_path, old=old, steps=steps)
    after = [report["after"] for report in found]
    turn = after.index("new")

    assert len(found) >= 20 // steps
    assert all(report["died"] for report in found)
    assert after == [before] * turn + ["new"] * (len(found) - turn)
    assert all(report["again"] == "new" and report["clean"] for report in found)
