"""A source of flat rows in another package: the example of docs/contributing/adding-a-flat-source.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import datasets_rl
from datasets_rl.format.reader import StoredDataset

ROOT = Path(datasets_rl.__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing" / "adding-a-flat-source.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL))
SOURCE = ("rig_source/__init__.py", "rig_source/catalog.json")
pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture(scope="module")
def case():
    """The case of the page."""
    names = {}
    exec(FILES["tests/raw/rig.py"], names)
    return names["CASES"][0]


@pytest.fixture(scope="module")
def episodes(case, tmp_path_factory):
    """The folder of the raw files that the case writes, and the episodes that must be stored."""
    folder = tmp_path_factory.mktemp("raw")
    return folder, case.write(folder)


@pytest.fixture(scope="module")
def rlds(tmp_path_factory):
    """A function that runs ``rlds`` in a process with the package of the page; returns the exit code, stdout and stderr."""
    folder = tmp_path_factory.mktemp("package")
    for path in SOURCE:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(FILES[path], encoding="utf-8")
    (folder / "rig-1.0.dist-info").mkdir()
    (folder / "rig-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: rig\nVersion: 1.0\n")
    (folder / "rig-1.0.dist-info" / "entry_points.txt").write_text("[datasets_rl.sources]\nrig = rig_source\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "RLDS_HOME": str(tmp_path_factory.mktemp("home")), "RLDS_NO_PROGRESS": "1"}

    def run(*words, **variables):
        command = [sys.executable, "-m", "datasets_rl.cli", *map(str, words)]
        done = subprocess.run(command, env=env | variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_source_and_its_test_have_at_most_sixty_lines():
    assert sum(len([line for line in text.splitlines() if line.strip()]) for text in FILES.values()) <= 60


def test_its_files_are_converted_and_verified(rlds, episodes):
    folder, golden = episodes

    code, out, _ = rlds("download", "rig/reach-high", "--from-local", folder, "--keep-raw", "--json")
    stored = StoredDataset(Path(json.loads(out)["datasets"][0]["folder"]))

    assert code == 0
    assert stored.episodes.lengths.tolist() == [len(one) for one in golden]
    for key in (("action",), ("next", "reward"), ("next", "terminated"), ("next", "truncated")):
        assert np.array_equal(stored.column(key), np.concatenate([one.steps[key] for one in golden]))
    wanted = np.concatenate([one.states["observation",][1:] for one in golden])
    assert np.array_equal(stored.column(("next", "observation")), wanted)
    assert {one.rule: one.count for one in stored.manifest.decisions} == {
        "one-more": 11,
        "end-without-flag": 2,
        "final-observation-kept": 3,
    }
    assert stored.manifest.time_limit == 50
    assert (stored.manifest.specs["action"]["low"], stored.manifest.specs["action"]["high"]) == (-1, 1)
    assert rlds("verify", "rig/reach-high", "--deep")[0] == 0


def test_its_files_are_downloaded_from_the_server_of_its_case(rlds, case, episodes, tmp_path):
    with case.served(episodes[0]) as variables:
        code, out, _ = rlds("download", "rig/reach-high", "--json", RLDS_HOME=str(tmp_path), **variables)

    assert code == 0
    assert StoredDataset(Path(json.loads(out)["datasets"][0]["folder"])).manifest.steps == 11


def test_its_titles_are_format_strings_and_its_files_are_recognized_at_an_address(rlds, episodes):
    assert "A rig reaches the lower shelf" in rlds("info", "rig/reach-low")[1]
    assert "rig: reach-high.npz has torque, reward and reached, of 11 rows each" in rlds(
        "info", f"{episodes[0].as_uri()}/reach-high.npz"
    )[1].replace("\n", " ")


def test_a_file_that_contradicts_the_layout_is_refused_with_all_problems(rlds, episodes, tmp_path):
    with np.load(episodes[0] / "reach-high.npz") as file:
        arrays = {**file, "reward": np.zeros((11, 2)), "torque": file["torque"].astype("S4")}
    np.savez(tmp_path / "reach-low.npz", **arrays)

    code, _, err = rlds("download", "rig/reach-low", "--from-local", tmp_path)

    assert code == 8
    assert "reward has shape [11, 2], expected one number per row" in err
    assert "torque has dtype |S4" in err
