"""``rlds lock`` and ``rlds sync``: files, exit codes, messages, and the lock beside the results of a training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from stored_data import write_manifest_with_digest

from datasets_rl import load, remove
from datasets_rl.lockfile import Lock
from datasets_rl.store import version_folder


@pytest.fixture
def project(tmp_path, monkeypatch, stored) -> Path:  # noqa: ARG001 - the dataset is in the home
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.chdir(folder)
    return folder


def test_a_lock_of_a_program_is_written_kept_and_checked(rlds, project):
    program = project / "train.py"
    program.write_text('import sys\nfrom datasets_rl import load\nload("demo/pendulum")\nload(sys.argv[1])\n')
    ran = rlds("lock", "train.py", "--json")

    assert ran.code == 0
    assert [(one["id"], one["parent"], one["recorded"]) for one in ran.json["datasets"]] == [
        ("demo/pendulum", False, False)
    ]
    assert ran.json["not_locked"] == ["./train.py:4: load(sys.argv[1]) has no constant"]
    assert Lock.read(project / "rlds.lock").inputs == ("./train.py",)
    assert rlds("lock", "--quiet").out == f"{project / 'rlds.lock'}\n"
    assert rlds("lock", "--check").code == 0
    digest = load("demo/pendulum").manifest.files_digest
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:20", "--in-place")
    text = (project / "rlds.lock").read_text()
    ran = rlds("lock", "--check")
    assert ran.code == 1
    assert f"not up to date\n  updated demo/pendulum: {digest[:12]} -> " in ran.out
    assert (project / "rlds.lock").read_text() == text


def test_a_folder_below_another_root_has_the_id_by_which_other_homes_find_it(rlds, project, home):
    root = shutil.copytree(home, project.parent / "other")
    ran = rlds("lock", root / "demo" / "pendulum", "--root", root, "--json")

    assert [one["id"] for one in ran.json["datasets"]] == ["demo/pendulum"]
    assert rlds("sync", "--locked", "--check", "--root", root).out == "demo/pendulum: as locked\n"


def test_the_result_of_a_recipe_without_a_stated_input_is_not_locked(rlds, project, stored):
    folder = shutil.copytree(stored, project / "mine")
    document = json.loads((version_folder(folder) / "manifest.json").read_text())
    write_manifest_with_digest(folder, {**document, "history": [{"recipe": {"name": "best", "steps": []}}]})
    ran = rlds("lock", "./mine")

    assert ran.code == 2
    assert (
        "./mine cannot be locked\n  why: its manifest does not say what the recipe of history[0] was applied to"
        in ran.err
    )


def test_sync_compares_makes_and_refuses_with_the_documented_codes(rlds, project, home):
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:20", "--as", "best")
    assert rlds("lock", "demo/pendulum", "demo/pendulum@best").code == 0
    assert rlds("sync", "--check").out == "demo/pendulum: as locked\ndemo/pendulum@best: as locked\n"
    remove("demo/pendulum@best")
    ran = rlds("sync", "--check")
    assert (ran.code, ran.out) == (
        1,
        "demo/pendulum: as locked\ndemo/pendulum@best: not as locked\n  the dataset is not stored\n",
    )
    ran = rlds("sync", "--locked")
    assert (ran.code, ran.out.splitlines()[0]) == (0, str(next((home / "demo" / "pendulum").glob("0001-*"))))
    assert "demo/pendulum@best: made by the recipe 'keep_top_returns:20' of demo/pendulum" in ran.err
    # A recipe with another argument does not give the locked bytes.
    lock = project / "rlds.lock"
    lock.write_text(lock.read_text().replace('"percent": 20', '"percent": 30'))
    remove("demo/pendulum@best")
    ran = rlds("sync")
    assert ran.code == 1  # one of two failed
    assert "  why: there are 4,400 steps, expected 3,000; there are 22 episodes, expected 15" in ran.err
    assert "next: restore a copy, name a place that has the locked dataset with --from PLACE" in ran.err
    assert "rlds lock" in ran.err


def test_a_single_dataset_that_differs_ends_with_5_and_an_outdated_lock_with_1(rlds, project, home):
    rlds("lock", "demo/pendulum")
    lock = project / "rlds.lock"
    lock.write_text(lock.read_text().replace('sha256 = "28713b', 'sha256 = "38713b'))
    shutil.rmtree(home)
    ran = rlds("sync")
    assert ran.code == 5
    assert "the raw file pendulum.hdf5 has the sha256 28713b" in ran.err
    lock.write_text(lock.read_text().replace('"demo/pendulum",\n]', '"./mix.toml",\n]'))
    (project / "mix.toml").write_text('[[member]]\ndataset = "demo/pendulum@best"\n')
    ran = rlds("sync", "--locked")
    assert ran.code == 1
    assert "./mix.toml opens demo/pendulum@best, which the lock does not have" in ran.err
    assert rlds("sync", "nothing.lock").code == 2


@pytest.mark.usefixtures("project")
def test_training_writes_the_lock_beside_its_results(rlds, home):
    ran = rlds(
        "train", "bc", "--dataset", "demo/pendulum", "--steps", "2", "--eval-every", "2", "--no-eval", "--out", "run"
    )
    assert ran.code == 0, ran.err
    lock = Lock.read("run/rlds.lock")

    assert [one.id for one in lock.datasets] == ["demo/pendulum"]
    assert rlds("sync", "run/rlds.lock", "--check").code == 0
    shutil.rmtree(home)
    assert rlds("sync", "run/rlds.lock").code == 0
