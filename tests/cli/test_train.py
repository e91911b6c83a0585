"""``rlds train``: programs that are run, listed, printed and copied."""

from __future__ import annotations

import importlib
import json
import os
import re
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
    assert f"bc on demo/pendulum, from step 0 to 2, with checkpoints in {tmp_path / 'run'}\nstep 2  " in ran.err
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
    rlds("train", "bc", *TINY, "--out", tmp_path)
    ran = rlds("train", "bc", *TINY, "--out", tmp_path, "--lr", "1")
    assert ran.code == 2
    assert "is of another run\n  why: lr 0.0003, not 1.0\n" in ran.err
    assert "next: give another --out PATH, or delete the checkpoint\n" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eval-every", "0"], "--eval-every: the value is 0, expected an integer from 1"),
        (["--steps", "-5"], "--steps: the value is -5, expected an integer from 1"),
        (["--steps", "x"], "--steps: the value is x, expected an integer from 1"),
        (["--eval-episodes", "0"], "--eval-episodes: the value is 0"),
        (["--seed", "-1"], "--seed: the value is -1, expected an integer from 0"),
        (
            ["--batch-size", "1000000000000"],
            "--batch-size: the value is 1000000000000, expected an integer from 1 to 1,048,576",
        ),
        (["--hidden", "1000000000"], "--hidden: the value is 1000000000, expected an integer from 1 to 65,536"),
        (["--lr", "nan"], "--lr: the value is nan, expected a finite number above 0"),
        (["--lr", "0"], "--lr: the value is 0, expected a finite number above 0"),
        (["--validation", "1"], "--validation: the value is 1, expected a finite number of at least 0, at most 0.9"),
        (["--device", "abacus"], "--device: the value is abacus, expected cpu, cuda or cuda:N"),
        (
            ["--device", "cuda:99"],
            "--device: the value is cuda:99, which this machine or this build of torch does not have",
        ),
    ],
)
def test_numbers_and_devices_that_no_program_can_use_are_refused_before_the_run(rlds, tmp_path, words, message):
    ran = rlds("train", "bc", *TINY, *words, "--out", tmp_path / "run")

    assert (ran.code, message in ran.err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_networks_that_cannot_fit_into_memory_are_refused_before_the_run(rlds, tmp_path):
    ran = rlds("train", "bc", *TINY, "--hidden", *["65536"] * 60, "--out", tmp_path / "run")

    assert ran.code == 11
    assert "take smaller layers with --hidden WIDTH" in ran.err
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_program_or_of_other_data_is_refused(rlds, tmp_path):
    rlds("download", "demo/pendulum")
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:50", "--as", "top")
    words = [*TINY, "--dataset", "demo/pendulum@top", "--out", tmp_path / "run"]
    assert rlds("train", "bc", *words).code == 0
    assert "is of another run\n  why: program bc, not td3_bc\n" in rlds("train", "td3_bc", *words).err

    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:10", "--as", "top", "--force")
    assert "is of another run\n  why: data " in rlds("train", "bc", *words).err


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the environment: actions are NaN
def test_a_damaged_checkpoint_and_a_divergence_are_named(rlds, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"no zip file")
    ran = rlds("train", "bc", *TINY, "--out", tmp_path)
    assert (ran.code, "the content does not match the SHA-256" in ran.err) == (5, True)

    ran = rlds("train", "td3_bc", *TINY, "--steps", "9", "--lr", "1e30", "--out", tmp_path / "run")
    assert (ran.code, ran.out) == (2, "")
    assert "the training diverged at step 2\n  why: the loss critics is" in ran.err
    assert "take a smaller --lr X" in ran.err


def test_quiet_prints_the_result_only(rlds, tmp_path):
    rlds("download", "demo/pendulum")
    for words in (["-q", "train", "bc", *TINY], ["train", "bc", *TINY, "--quiet"]):
        ran = rlds(*words, "--out", tmp_path / words[0])

        assert (ran.err, json.loads(ran.out)["step"]) == ("", 2)


def test_a_dataset_that_was_never_made_is_unknown_and_no_problem_of_the_network(rlds, tmp_path):
    for words in (
        ["train", "bc", *TINY, "--dataset", "local/nothing", "--out", tmp_path],
        ["download", "local/nothing"],
    ):
        ran = rlds(*words)

        assert ran.code == 3
        assert "no dataset 'local/nothing'" in ran.err
        assert "--from-local PATH" in ran.err


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
    assert "no program 'td3bc', expected act, bc," in ran.err.replace("\n  why: ", ", ")
    assert "did you mean td3_bc?" in ran.err


def test_train_without_a_program_names_the_list(rlds):
    ran = rlds("train")

    assert (ran.code, "no program is named" in ran.err, "rlds train --list" in ran.err) == (2, True, True)


def test_a_dataset_that_cannot_be_fetched_is_named_with_the_command_that_fetches_it(rlds, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    ran = rlds("train", "bc", *TINY, "--dataset", "d4rl/hopper-medium-v2", "--out", tmp_path)

    assert ran.code == 4
    assert "next: with `rlds download d4rl/hopper-medium-v2`: unset RLDS_OFFLINE" in ran.err
    assert "--from-local PATH" in ran.err


def test_the_successor_of_an_environment_is_a_line_and_not_a_python_warning(rlds, tmp_path):
    folder = tmp_path / "hop"
    folder.mkdir()
    (folder / "dataset.toml").write_text('name = "Hop"\nenvironment = "Hopper-v2"\n')
    random = np.random.default_rng(0)
    arrays = {"obs": random.normal(size=(31, 11)), "action": random.uniform(-1, 1, (30, 3)), "reward": np.ones(30)}
    np.savez(folder / "0.npz", **{name: array.astype(np.float32) for name, array in arrays.items()})
    assert rlds("download", "local/hop", "--from-local", folder).code == 0

    ran = rlds("train", "bc", *TINY, "--dataset", "local/hop", "--out", tmp_path / "run")

    assert ran.code == 0, ran.err
    lines = [line for line in ran.err.splitlines() if "is used instead" in line]
    assert lines == [
        "local/hop names Hopper-v2, which needs mujoco-py: Hopper-v4 with a newer simulator is used instead"
    ]
    assert "Warning" not in ran.err
    assert "out of date" not in ran.err


def test_an_unknown_dataset_ends_as_in_other_commands(rlds, tmp_path):
    ran = rlds("train", "bc", *TINY, "--dataset", "demo/pendulums", "--out", tmp_path)

    assert (ran.code, "did you mean demo/pendulum?" in ran.err) == (3, True)


def test_an_unknown_member_of_a_mixture_is_named_with_the_mixture_before_torch_is_imported(rlds, tmp_path):
    file = tmp_path / "mix.toml"
    file.write_text('[[member]]\ndataset = "demo/pendulum"\n[[member]]\ndataset = "demo/pendulumm"\n')
    for words in (["--dataset", file], ["--validation", file]):
        ran = rlds("train", "bc", *TINY, *words, "--out", tmp_path / "run")

        assert ran.code == 3
        assert f"demo/pendulumm is member 1 of {file}" in ran.err
        assert "did you mean demo/pendulum?" in ran.err


def test_train_takes_the_data_folder_of_the_option(rlds, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", os.environ["RLDS_HOME"])  # restored after the test

    assert rlds("--root", tmp_path / "other", "train", "bc", *TINY, "--out", tmp_path / "run").code == 0
    assert (tmp_path / "other" / "demo").is_dir()


def test_the_list_has_every_program_with_its_summary(rlds):
    listed = rlds("train", "--json", "--list").json["programs"]

    assert [one["name"] for one in listed] == list(program_files())
    assert {"bc", "td3_bc", "iql", "cql", "rebrac"} <= {one["name"] for one in listed}
    assert all(one["summary"] for one in listed)
    assert rlds("train", "-q", "--list").out.split() == list(program_files())


def test_show_prints_the_file(rlds):
    assert rlds("train", "--show", "iql").out == program_files()["iql"].read_text(encoding="utf-8")


def test_a_copy_runs_and_is_not_replaced(rlds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert rlds("train", "--copy", "bc").code == 0
    assert rlds("train", "--copy", "bc", "--out", "mine.py", "-q").out == "mine.py\n"

    result = runpy.run_path("mine.py")["main"]([*TINY, "--out", "run"])
    assert result["step"] == 2
    ran = rlds("train", "--copy", "iql", "--out", "bc.py")
    assert (ran.code, "bc.py is not replaced\n  why: it exists" in ran.err) == (2, True)
    assert (tmp_path / "bc.py").read_bytes() == program_files()["bc"].read_bytes()


@pytest.mark.parametrize("target", ["missing/bc.py", "."])
def test_a_copy_goes_to_a_folder_that_exists_only(rlds, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = rlds("train", "--copy", "bc", "--out", target)

    assert (ran.code == 0) is (tmp_path / "bc.py").exists() is (target == ".")


@pytest.mark.parametrize(("name", "instead"), [("sac", "cql"), ("td3", "td3_bc"), ("dqn", "dqn_atari"), ("PPO", "iql")])
def test_an_algorithm_without_a_program_is_answered_with_those_that_learn_from_datasets(rlds, name, instead):
    ran = rlds("train", name, "--dataset", "demo/pendulum")

    assert ran.code == 2
    assert re.search(rf"next: .*\b{instead}\b", ran.err)
    assert "did you mean act" not in ran.err
