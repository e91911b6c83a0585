"""The training programs: each one trains, evaluates and reports, and goes on exactly where it was killed."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest
import torch

import datasets_rl
from datasets_rl import RecordEpisodes, load, training
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.recipes.results import gather as gather_program
from datasets_rl.recipes.results import table as table_program
from datasets_rl.recipes.train import program_files, summary

PROGRAMS = ("bc", "td3_bc", "iql", "cql", "rebrac")
TINY = ["--hidden", "8", "--batch-size", "8", "--eval-episodes", "1", "--eval-every", "2"]


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "train-home"
    monkeypatch.setenv("RLDS_HOME", str(folder))
    torch.manual_seed(0)
    return folder


def program(name):
    return importlib.import_module(f"datasets_rl.recipes.train.{name}")


def train(name, out, *words, dataset="demo/pendulum"):
    return program(name).main(["--dataset", dataset, "--out", str(out), *TINY, *words])


def networks(out):
    return torch.load(out / "checkpoint.pt", weights_only=True)["networks"]


def assert_equal(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_reports_and_goes_on_exactly(name, tmp_path, capsys):
    decay = ["--decay-steps", "4"] if name == "iql" else []
    result = train(name, tmp_path / "parts", "--steps", "2", *decay)
    trained, printed = networks(tmp_path / "parts"), capsys.readouterr()

    assert json.loads(printed.out) == result
    assert (result["algorithm"], result["dataset"], result["step"]) == (name, "demo/pendulum", 2)
    assert -2000 < result["return"] < 0  # what 200 steps of Pendulum can give
    assert result["score"] == pytest.approx((result["return"] + 1205.62) / (1205.62 - 167.13) * 100)
    train(name, tmp_path / "parts", "--steps", "4", *decay)
    train(name, tmp_path / "whole", "--steps", "4", *decay)
    assert_equal(networks(tmp_path / "parts"), networks(tmp_path / "whole"))
    assert any(not torch.equal(trained[one], value) for one, value in networks(tmp_path / "whole").items())


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize(
    "name", ["td3_bc", *(pytest.param(one, marks=pytest.mark.slow) for one in PROGRAMS if one != "td3_bc")]
)
def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(name, tmp_path):
    words = ["-m", f"datasets_rl.recipes.train.{name}", "--dataset", "demo/pendulum", "--steps", "1000000", *TINY]
    child = subprocess.Popen(
        [sys.executable, *words, "--out", str(tmp_path / "killed")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + 120
    while not (tmp_path / "killed" / "checkpoint.pt").exists():
        assert child.poll() is None, child.stderr.read().decode()
        assert time.monotonic() < limit
        time.sleep(0.01)
    child.kill()
    child.communicate()

    files = [tmp_path / "killed" / file for file in ("checkpoint.pt", "checkpoint.previous.pt")]
    # Between two renames, there is only the previous one, with which the run goes on.
    step = torch.load(next(file for file in files if file.exists()), weights_only=True)["step"]
    decay = ["--decay-steps", "1000000"] if name == "iql" else []
    for run in ("killed", "whole"):
        train(name, tmp_path / run, "--steps", str(step + 2), *decay)
    assert_equal(networks(tmp_path / "killed"), networks(tmp_path / "whole"))


def test_a_checkpoint_of_other_arguments_is_refused(tmp_path):
    train("bc", tmp_path, "--steps", "2")

    with pytest.raises(
        InvalidArgumentError, match=r"is of another run: lr 0\.0003, not 0\.1\ngive another out=\.\.\., or"
    ):
        train("bc", tmp_path, "--steps", "4", "--lr", "0.1")


def test_behavior_cloning_learns_discrete_actions_and_the_others_refuse_them(tmp_path, home):
    env = RecordEpisodes(gymnasium.make("CartPole-v1"), "local/cartpole", root=home / "local", score=(10, 500))
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:  # the pole falls to the side of its angle and speed
            observation, _, terminated, truncated, _ = env.step(int(observation[2] + observation[3] > 0))
            ended = terminated or truncated
    env.close()

    words = ["--steps", "200", "--eval-every", "200", "--lr", "0.01", "--batch-size", "64", "--eval-episodes", "3"]
    result = train("bc", tmp_path / "bc", *words, dataset="local/cartpole")
    behavior = load("local/cartpole").statistics["return"]["mean"]
    assert result["return"] > behavior / 2 > 40  # of random actions: 20
    assert result["score"] == pytest.approx((result["return"] - 10) / 4.9, abs=40)
    with pytest.raises(
        InvalidArgumentError, match=r"td3_bc needs continuous actions, and the actions of local/cartpole are Discrete"
    ):
        train("td3_bc", tmp_path / "td3_bc", dataset="local/cartpole")


def test_the_policy_of_a_program_has_the_units_of_the_environment(tmp_path):
    train("td3_bc", tmp_path, "--steps", "2")
    dataset = load("demo/pendulum")
    module = program("td3_bc")
    agent = module.Agent(
        dataset, dataset.make_env().action_space, module.parse_arguments(["--dataset", "demo/pendulum", *TINY])
    )
    agent.load_state_dict(networks(tmp_path))
    with torch.no_grad():
        agent.actor[0][-1].bias.fill_(100)

    assert agent.act(torch.zeros(5, 3)).tolist() == [[2.0]] * 5


def test_the_programs_are_short_and_use_public_names_only():
    tools = {path.stem: path for path in Path(gather_program.__file__).parent.glob("[a-z]*.py")}
    for name, path in {**program_files(), **tools}.items():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= (250 if name in tools else 200), name
        assert set(re.findall(r"\brl\.([A-Za-z]\w*)", text)) <= set(datasets_rl.__all__), name
        assert set(re.findall(r"\btraining\.([A-Za-z]\w*)", text)) <= set(training.__all__), name
        assert not re.findall(r"^from datasets_rl\.(?!recipes\.|errors|transforms)", text, re.MULTILINE), name
        assert summary(path).endswith((".", ")", ";")) or len(summary(path)) > 20, name


def test_the_table_reads_finished_runs_and_replaces_only_what_is_between_its_marks(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n\n<!-- results -->\nold\n<!-- end of results -->\n\nafter\n")
    words = ["--programs", "bc", "--seeds", "2", "--out", str(tmp_path / "runs"), "--write", str(page)]
    arguments = " ".join([*TINY, "--steps", "2"])
    table_program.main(["--datasets", "demo/pendulum", *words, f"--arguments={arguments}"])

    text = page.read_text()
    assert text.startswith("before\n\n<!-- results -->\n\n| dataset |")
    assert text.endswith("|\n\n<!-- end of results -->\n\nafter\n")
    assert "old" not in text
    assert "| demo/pendulum | in the data | -734 | 45.5 |" in text
    for done in (tmp_path / "runs").rglob("result.json"):
        result = json.loads(done.read_text())
        done.write_text(json.dumps({**result, "return": -167.13}))
    table_program.main(["--datasets", "demo/pendulum", *words, "--arguments=--wrong"])
    assert "| | bc | -167 ± 0 | 100.0 [100.0, 100.0] | 2 | 2 |" in page.read_text()


@pytest.mark.filterwarnings("ignore")
def test_the_table_beside_d3rlpy_has_scores_and_times_of_both(tmp_path, capsys, monkeypatch):
    pytest.importorskip(
        "d3rlpy", reason="pip install --no-deps d3rlpy gym gym_notices structlog colorama dataclasses-json"
    )
    beside = importlib.import_module("datasets_rl.recipes.results.beside_d3rlpy")
    monkeypatch.setattr(beside, "UPDATES", 2)
    words = ["--programs", "bc", "td3_bc", "iql", "cql", "--seeds", "2", "--out", str(tmp_path)]
    beside.main([*words, f"--arguments={' '.join([*TINY, '--steps', '2'])}"])

    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["| bc", "| td3_bc", "| iql", "| cql"]
    for _, ours, theirs, *times in rows[2:]:
        assert all(-120 < float(score) < 110 for score in (ours + " " + theirs).split())
        assert all(float(one.strip(" |%")) >= 0 for one in times)


def test_the_plan_of_the_table_names_programs_datasets_and_valid_arguments():
    for dataset, programs in table_program.PLAN.items():
        base = dataset.partition("@")[0]
        assert base == "demo/pendulum" or base in table_program.GATHERED
        for name, arguments in programs.items():
            program(name).parse_arguments(["--dataset", dataset, *arguments.split()])
    for name, arguments in table_program.GATHERED.items():
        assert f"local/{gather_program.parse_arguments(arguments.split()).name}-medium-replay" == name


def test_the_table_makes_the_datasets_that_are_missing(monkeypatch):
    tiny = (
        "Pendulum-v1 --name planned --steps 60 --start 40 --eval-every 60 --eval-episodes 1 --episodes 1 --batch-size 8"
    )
    monkeypatch.setitem(table_program.GATHERED, "local/planned-medium-replay", tiny)
    monkeypatch.setattr(gather_program, "play", lambda *_: next(returns))
    returns = iter([-1500.0, -100.0, *[-900.0] * 3])

    table_program.make_dataset("local/planned-medium-replay@top_10_percent")

    assert len(load("local/planned-medium-replay", download=False)) == 60
    table_program.make_dataset("local/planned-medium-replay@top_10_percent")  # it exists: nothing is played
    assert load("local/planned-medium-replay@top_10_percent", download=False).manifest.history


def test_gathering_records_a_policy_and_the_training_run_with_scores():
    words = ["--steps", "60", "--start", "40", "--eval-every", "60", "--eval-episodes", "1", "--episodes", "1"]
    args = gather_program.parse_arguments(["Pendulum-v1", "--name", "tiny", "--batch-size", "8", *words])
    steps, kept = gather_program.train(gymnasium.make("Pendulum-v1"), args)
    gather_program.record(args, "medium", kept[-1][2].act, (-1200.0, -150.0))
    gather_program.record_replay(args, steps, (-1200.0, -150.0))

    replay, medium = load("local/tiny-medium-replay"), load("local/tiny-medium")
    assert (len(replay), len(medium)) == (60, 200)
    assert torch.equal(replay[:]["next", "observation"], steps["next", "observation"])
    assert torch.equal(replay[:]["action"], steps["action"])
    assert medium.make_env().spec.id == replay.make_env().spec.id == "Pendulum-v1"
    assert datasets_rl.normalized_score("local/tiny-medium", -150) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "steps"), [("Pendulum-v1", "6000"), ("CartPole-v1", "4000")])
def test_a_gathering_run_learns(environment, steps):
    gather_program.main([environment, "--steps", steps, "--episodes", "10", "--seed", "1"])
    name = environment.partition("-")[0].lower()
    means = {
        level: load(f"local/{name}-{level}").statistics["return"]["mean"] for level in ("random", "medium", "expert")
    }

    assert means["random"] < means["medium"]
    assert means["random"] < means["expert"]
    with pytest.raises(SystemExit, match="exist: remove them with rlds remove"):
        gather_program.main([environment])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["td3_bc", "normalized_observation", "openvla_actions", "diffusion_policy"])
def test_a_policy_of_preprocessed_data_scores_like_one_of_the_plain_data(recipe, tmp_path):
    words = ["--steps", "2500", "--eval-every", "2500", "--eval-episodes", "40", "--hidden", "64", "64", "--lr", "1e-3"]
    load("demo/pendulum").derive(recipe)
    plain, derived = (
        program("iql").main(["--dataset", dataset, "--out", str(tmp_path / dataset), *words])
        for dataset in ("demo/pendulum", f"demo/pendulum@{recipe}")
    )

    margin = 3 * math.hypot(plain["score_stderr"], derived["score_stderr"])
    assert derived["score"] == pytest.approx(plain["score"], abs=margin)
    assert min(plain["score"], derived["score"]) > margin  # the score of random actions is 0
