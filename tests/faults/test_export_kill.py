"""An export that is killed at any time leaves nothing or the former file under its name, and the next run completes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stored_data import trajectory, write_dataset

from datasets_rl.exporting import FORMATS
from datasets_rl.exporting.formats import get_format

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"), pytest.mark.usefixtures("warm_python")]


def killed(tmp_path, to, **task):
    folder = tmp_path / "stored"
    write_dataset(folder, [trajectory(2 + seed, seed=seed, known=seed != 1) for seed in range(3)])
    out = tmp_path / "work" / f"toy{get_format(to).suffix}"
    out.parent.mkdir()
    document = json.dumps({"folder": str(folder), "out": str(out), "to": to, **task})
    command = [sys.executable, Path(__file__).with_name("export_crashes.py"), document]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(reports, before):
    assert {one["found"] for one in reports} <= {before, "new"}
    assert {one["again"] for one in reports} == {"new"}
    assert [one["left"] for one in reports if one["left"]] == []
    return sum(one["died"] for one in reports)


@pytest.mark.first(1)
@pytest.mark.parametrize(("to", "force"), [("hdf5", False), ("d4rl", True)])
def test_an_export_killed_at_its_steps_leaves_no_part_of_it(tmp_path, to, force):
    assert judge(killed(tmp_path, to, force=force, steps=6, random=0), "old" if force else "absent") >= 2


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("to", FORMATS)
def test_an_export_killed_at_every_step_and_at_any_time_leaves_no_part_of_it(tmp_path, to, force):
    assert judge(killed(tmp_path, to, force=force, steps=1, random=20), "old" if force else "absent") >= 10
