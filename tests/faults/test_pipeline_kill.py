"""A download that is killed at any time leaves a complete dataset or none, and the next run completes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from d4rl_files import mujoco
from raw.minari import SPACES, episodes, write
from servers import File, Slow, serve
from upstreams import hub

from datasets_rl import store

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL"), pytest.mark.usefixtures("warm_python")]

NAME = "halfcheetah-medium-v2"
SMALL = {"datasets_rl.sources.minari._SHARD_BYTES": 12_000}
UPSTREAM = "/gym_mujoco_v2/halfcheetah_medium-v2.hdf5"


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "file.hdf5"
    mujoco(path)
    return path


def killed(
    tmp_path, *, options, keep=False, steps=1, random=0, name=f"d4rl/{NAME}", small=None, jobs=1, part=None, about=""
):
    root = tmp_path / "home" / name.split("/")[0]
    task = {"id": name, "root": str(root), "options": options, "keep": keep, "steps": steps, "random": random}
    task |= {"small": small or {}, "jobs": jobs, "part": part, "about": about}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("download_crashes.py"), json.dumps(task)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return reports, root


def judge(reports):
    """Check that readers found the right dataset or none and that other runs completed; return the number of kills."""
    whole = {report["digest"] for report in reports if report["folder"] == "whole"}
    assert len(whole) == 1
    assert [
        report["left"] for report in reports if report["event"] in {"first", "again", "last"} and report["left"]
    ] == []
    assert {report["folder"] for report in reports} <= {"whole", "absent"}
    assert all(report["folder"] == "whole" for report in reports if not report["died"] and report["event"] != "random")
    return sum(report["died"] for report in reports)


def judge_growth(reports):
    """Check that readers found the part or the whole, and that runs without a kill ended with the whole."""
    part, whole = (
        next(report["digest"] for report in reports if report["event"] == event) for event in ("part", "first")
    )
    assert part != whole
    assert {report["folder"] for report in reports} <= {"whole", "absent"}
    assert {report["digest"] for report in reports} <= {part, whole, ""}
    assert all(report["digest"] == whole for report in reports if report["event"] in {"first", "again", "last"})
    stages = ["the part", "between two renames", "the whole"]
    seen = [
        stages[[part, "", whole].index(report["digest"])]
        for report in reports
        if report["died"] and report["event"] != "random"
    ]
    assert seen == sorted(seen, key=stages.index)  # the later the kill, the later the stage: a replacement, at the end
    assert seen.count("between two renames") <= 3
    return seen.count("the part")


def leftovers(root):
    """Return what is in the folders of the datasets beside CURRENT and the version that it names."""
    left = []
    for paths in store.dataset_places(root):
        left += [path.name for path in paths.entries() if path not in {paths.current, paths.version}]
    return left


SOME_STEPS = pytest.mark.parametrize("steps", [10, pytest.param(1, marks=pytest.mark.slow)])
"""How many changes of the disk lie between two kills."""


def local(raw):
    return {"from_local": str(raw), "hash_check": False}


@SOME_STEPS
def test_a_download_killed_at_its_events_is_resumed(raw, tmp_path, steps):
    with serve({UPSTREAM: File(raw)}) as server:
        reports, root = killed(tmp_path, options={"mirrors": [server.url], "hash_check": False}, steps=2 * steps)

    assert judge(reports) >= 20 // steps
    assert leftovers(root) == []


@pytest.mark.parametrize("steps", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_raw_files_of_a_download_that_died_before_the_pointer_moved_or_after_are_deleted(raw, tmp_path, steps):
    with serve({UPSTREAM: File(raw)}) as server:
        options = {"mirrors": [server.url], "hash_check": False}
        reports, _ = killed(tmp_path, options=options, about="CURRENT", steps=steps)

    assert judge(reports) >= 20 // steps
    assert [report["folder"] for report in reports if report["died"]].count("whole") >= 6 // steps


@pytest.mark.slow
def test_a_growing_part_killed_at_any_event_is_kept_until_the_whole_replaces_it(raw, tmp_path):
    part = {"keys": ["observation"]}
    reports, root = killed(tmp_path, options=local(raw), steps=2, part=part)

    assert judge_growth(reports) >= 10
    assert leftovers(root) == []


@pytest.mark.slow
def test_a_hundred_random_kills_of_download_and_conversion_never_leave_a_wrong_dataset(raw, tmp_path):
    with serve({UPSTREAM: Slow(raw, rate=raw.stat().st_size)}) as server:
        options = {"mirrors": [server.url], "hash_check": False}
        reports, root = killed(tmp_path, options=options, steps=3, random=100)

    assert judge(reports) >= 100
    assert any(int(asked.removeprefix("bytes=").split("-")[0]) > 0 for asked in server.ranges)
    assert leftovers(root) == []


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """A dataset of Minari's of three shards."""
    root = tmp_path_factory.mktemp("shards")
    given = episodes(SPACES["text"], [2, 3] * 3, seeds=range(6))
    write(root, "aa/b-v0", given, space=SPACES["text"])
    return root


def test_a_conversion_of_shards_killed_at_its_events_resumes_at_the_shard(shards, tmp_path):
    options = {"from_local": str(shards)}
    reports, root = killed(tmp_path, options=options, steps=20, name="minari/aa/b-v0", small=SMALL)

    assert judge(reports) >= 3
    assert leftovers(root) == []


@pytest.mark.slow
def test_a_growing_part_of_shards_that_is_killed_is_kept_until_the_whole_replaces_it(shards, tmp_path):
    options, part = {"from_local": str(shards)}, {"episodes": "0:2"}
    reports, root = killed(tmp_path, options=options, steps=20, random=2, name="minari/aa/b-v0", small=SMALL, part=part)

    assert judge_growth(reports) >= 3
    assert leftovers(root) == []


@pytest.mark.slow
def test_a_download_of_shards_killed_at_its_events_and_at_random_times_is_resumed(shards, tmp_path, monkeypatch):
    with hub({"farama-minari/aa": shards / "aa"}, page=50) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("MINARI_REMOTE", "hf://farama-minari")
        reports, root = killed(tmp_path, options={}, steps=3, random=40, name="minari/aa/b-v0", small=SMALL)

    assert judge(reports) >= 60
    assert leftovers(root) == []


@pytest.mark.slow
def test_a_conversion_with_several_processes_killed_at_any_time_is_resumed(shards, tmp_path):
    small = {**SMALL, "datasets_rl.build.engines.MIN_PARALLEL_BYTES": 0}
    options = {"from_local": str(shards)}
    reports, root = killed(
        tmp_path, options=options, steps=100_000, random=20, name="minari/aa/b-v0", small=small, jobs=2
    )

    assert judge(reports) >= 10
    assert leftovers(root) == []
