"""``rlds train`` and ``rlds recipe``: programs that are run, listed, printed and copied."""

from __future__ import annotations

import json
import os
import runpy

import pytest

from datasets_rl.recipes.train import program_files

TINY = ["--hidden", "8", "--batch-size", "8", "--eval-episodes", "1", "--steps", "2", "--dataset", "demo/pendulum"]


def test_train_runs_a_program_and_prints_its_result(rlds, tmp_path):
    ran = rlds("train", "bc", *TINY, "--out", tmp_path / "run")

    assert ran.code == 0
    (line,) = ran.out.splitlines()
    assert json.loads(line)["algorithm"] == "bc"
    assert ran.err.startswith("step 2  ")
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert rlds("--json", "train", "bc", *TINY, "--out", tmp_path / "run").json["result"]["step"] == 2


def test_the_help_of_a_program_is_that_of_its_arguments(rlds):
    ran = rlds("train", "td3_bc", "--help")

    assert ran.code == 0
    assert ran.out.startswith("usage: td3_bc [-h] --dataset ID")


def test_arguments_that_a_program_refuses_end_with_2(rlds, tmp_path):
    ran = rlds("train", "bc", "--steps", "x", "--dataset", "demo/pendulum")
    assert (ran.code, "bc: error: argument --steps: invalid int value: 'x'" in ran.err) == (2, True)

    rlds("train", "bc", *TINY, "--out", tmp_path)
    ran = rlds("train", "bc", *TINY, "--out", tmp_path, "--lr", "1")
    assert ran.code == 2
    assert "is of a run with --lr 0.0003\n  why: give another --out, or delete it\n" in ran.err


def test_an_unknown_program_is_refused_with_the_nearest(rlds):
    ran = rlds("train", "td3bc", "--dataset", "demo/pendulum")

    assert ran.code == 2
    assert "no recipe 'td3bc'; expected one of bc," in ran.err.replace("\n  why: ", "; ")
    assert "did you mean td3_bc?" in ran.err


def test_an_unknown_dataset_ends_as_in_other_commands(rlds, tmp_path):
    ran = rlds("train", "bc", *TINY, "--dataset", "demo/pendulums", "--out", tmp_path)

    assert (ran.code, "did you mean demo/pendulum?" in ran.err) == (3, True)


def test_train_takes_the_data_folder_of_the_option(rlds, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", os.environ["RLDS_HOME"])  # restored after the test

    assert rlds("--root", tmp_path / "other", "train", "bc", *TINY, "--out", tmp_path / "run").code == 0
    assert (tmp_path / "other" / "demo").is_dir()


def test_the_list_has_every_program_with_its_summary(rlds):
    listed = rlds("recipe", "list", "--json").json["recipes"]

    assert [one["name"] for one in listed] == list(program_files())
    assert {"bc", "td3_bc", "iql", "cql", "rebrac"} <= {one["name"] for one in listed}
    assert all(one["summary"] for one in listed)
    assert rlds("recipe", "list", "-q").out.split() == list(program_files())


def test_show_prints_the_file(rlds):
    assert rlds("recipe", "show", "iql").out == program_files()["iql"].read_text(encoding="utf-8")


def test_a_copy_runs_and_is_not_replaced(rlds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert rlds("recipe", "copy", "bc").code == 0
    assert rlds("recipe", "copy", "bc", "mine.py", "-q").out == "mine.py\n"

    result = runpy.run_path("mine.py")["main"]([*TINY, "--out", "run"])
    assert result["step"] == 2
    ran = rlds("recipe", "copy", "iql", "bc.py")
    assert (ran.code, "bc.py exists, and is not replaced" in ran.err) == (2, True)
    assert (tmp_path / "bc.py").read_bytes() == program_files()["bc"].read_bytes()


@pytest.mark.parametrize("target", ["missing/bc.py", "."])
def test_a_copy_goes_to_a_folder_that_exists_only(rlds, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = rlds("recipe", "copy", "bc", target)

    assert (ran.code == 0) is (tmp_path / "bc.py").exists() is (target == ".")
