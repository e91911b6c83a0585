"""``rlds train`` and ``rlds recipe``: programs that are run, listed, printed and copied."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys

import gymnasium
import numpy as np
import pytest

from datasets_rl import EpisodeWriter, RecordEpisodes
from datasets_rl.recipes.train import program_files

TINY = ["--hidden", "8", "--batch-size", "8", "--eval-episodes", "1", "--steps", "2", "--dataset", "demo/pendulum"]


def test_train_runs_a_program_and_prints_its_result(rlds, tmp_path):
    ran = rlds("train", "bc", *TINY, "--out", tmp_path / "run")

    assert ran.code == 0
    (line,) = ran.out.splitlines()
    assert json.loads(line)["algorithm"] == "bc"
    assert ran.err.startswith(f"bc on demo/pendulum, from step 0 to 2; checkpoints in {tmp_path / 'run'}\nstep 2  ")
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert rlds("--json", "train", "bc", *TINY, "--out", tmp_path / "run").json["result"]["step"] == 2


@pytest.mark.parametrize(
    ("library", "line"),
    [("wandb", "pip install 'datasets-rl[wandb]'"), ("library_of_nobody", "pip install library_of_nobody")],
)
def test_a_library_that_is_missing_in_a_program_ends_with_7_and_its_pip_line(
    rlds, tmp_path, monkeypatch, library, line
):
    monkeypatch.setitem(sys.modules, library, None)
    gymnasium.register("Nobody-v0", "library_of_nobody:Env")
    with EpisodeWriter("local/of-nobody", metadata={"environment": "Nobody-v0"}) as writer:
        writer.start(np.zeros(3, np.float32))
        writer.step(np.zeros(1, np.float32), np.zeros(3, np.float32), 0.0, terminated=True, truncated=False)
    dataset = "demo/pendulum" if library == "wandb" else "local/of-nobody"
    ran = rlds("train", "bc", *TINY, "--dataset", dataset, "--wandb", "mine", "--out", tmp_path / "run")
    gymnasium.registry.pop("Nobody-v0")

    assert (ran.code, line in ran.err) == (7, True)
    assert "fault of rlds" not in ran.err


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
    assert "is of a run with lr 0.0003\n  why: give another --out, or delete it\n" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eval-every", "0"], "--eval-every is 0"),
        (["--steps", "-5"], "--steps is -5"),
        (["--eval-episodes", "0"], "--eval-episodes is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--device", "abacus"], "--device is abacus, which this machine does not have"),
    ],
)
def test_numbers_and_devices_that_no_program_can_use_are_refused_before_the_run(rlds, tmp_path, words, message):
    ran = rlds("train", "bc", *TINY, *words, "--out", tmp_path / "run")

    assert (ran.code, message in ran.err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_program_or_of_other_data_is_refused(rlds, tmp_path):
    rlds("download", "demo/pendulum")
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:50", "--as", "top")
    words = [*TINY, "--dataset", "demo/pendulum@top", "--out", tmp_path / "run"]
    assert rlds("train", "bc", *words).code == 0
    assert "is of a run with program bc" in rlds("train", "td3_bc", *words).err

    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:10", "--as", "top", "--force")
    assert "is of a run with data " in rlds("train", "bc", *words).err


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the environment: actions are NaN
def test_a_damaged_checkpoint_and_a_divergence_are_named(rlds, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"no zip file")
    assert "is not a checkpoint of a training program, or damaged" in rlds("train", "bc", *TINY, "--out", tmp_path).err

    ran = rlds("train", "td3_bc", *TINY, "--steps", "9", "--lr", "1e30", "--out", tmp_path / "run")
    assert (ran.code, ran.out) == (2, "")
    assert "the training diverged\n  why: critics" in ran.err


def test_a_run_on_a_folder_does_not_write_into_it(rlds, tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    rlds("download", "demo/pendulum")
    words = [*TINY[:-1], str(home / "demo" / "pendulum")]

    assert rlds("train", "bc", *words).code == 0
    assert len(list((tmp_path / "runs" / "bc").rglob("checkpoint.pt"))) == 1
    assert rlds("verify", "demo/pendulum").code == 0


def test_an_environment_of_a_module_can_be_imported_first(rlds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_pendulum.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control.pendulum:PendulumEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_pendulum")
    env = RecordEpisodes(gymnasium.make("Mine-v0", max_episode_steps=9), "local/mine", score=(-99, 0))
    env.reset(seed=0)
    for _ in range(9):
        env.step(env.action_space.sample())
    env.close()
    gymnasium.registry.pop("Mine-v0")
    sys.modules.pop("my_pendulum")
    words = [*TINY[:-1], "local/mine", "--out", tmp_path / "run"]

    assert "rlds train --import MODULE" in rlds("train", "bc", *words).err
    assert rlds("train", "--import", "my_pendulum", "bc", *words).code == 0
    assert "--import nowhere" in rlds("train", "--import", "nowhere", "bc", *words).err
    gymnasium.registry.pop("Mine-v0")


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
