"""Training runs: interrupts, locks, full disks, data without an environment, and results that do not depend on any of them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from run_states import assert_same_state
from stored_data import store_dataset, trajectory

from datasets_rl import EpisodeWriter, ReplayBuffer, load, make_env
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.recipes.train import program_files
from datasets_rl.training import RewardScaling, cosine_decay, read_checkpoint, reward_scaling, run_program, warm_up

TINY = ["--dataset", "demo/pendulum", "--hidden", "8", "--batch-size", "8", "--eval-episodes", "1"]
LONG = [*TINY, "--steps", "1000000", "--eval-every", "1000000"]


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "train-home"
    monkeypatch.setenv("RLDS_HOME", str(folder))
    return folder


def train(name, *words):
    return importlib.import_module(f"datasets_rl.recipes.train.{name}").main([*map(str, words)])


def start(name, out, *words):
    load("demo/pendulum")
    program = [sys.executable, "-m", "datasets_rl.cli", "train", name, *LONG, *words, "--out", str(out)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_start(child):
    """Wait for the line that is printed when training begins."""
    for line in child.stderr:
        if "from step" in line:
            return
    raise AssertionError(child.wait())


@pytest.mark.parametrize(("steps", "seconds"), [(1, 0.0), (3, 0.6)])
def test_only_the_waits_after_the_first_batch_are_waits_for_data(steps, seconds, tmp_path, monkeypatch):
    batches = ReplayBuffer.batches

    def late(*arguments):
        for batch in batches(*arguments):
            time.sleep(0.3)
            yield batch

    monkeypatch.setattr(ReplayBuffer, "batches", late)

    result = train("bc", *TINY, "--steps", steps, "--eval-every", steps, "--out", tmp_path / "out")

    assert seconds <= result["data_seconds"] <= result["train_seconds"] - 0.3 + 0.1


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_is_saved_at_its_step_and_continues_there_exactly(number, code, tmp_path):
    child = start("td3_bc", tmp_path / "parts")
    wait_for_start(child)
    time.sleep(0.3)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)

    step = read_checkpoint(tmp_path / "parts" / "checkpoint.pt")["step"]
    assert child.returncode == code
    assert (
        f"the checkpoint of step {step:,} is saved in {tmp_path / 'parts'}: the same command continues there" in errors
    )
    assert 0 < step < 1_000_000
    every = ["--eval-every", "1000000"]
    for out in ("parts", "whole"):
        train("td3_bc", *TINY, *every, "--steps", step + 3, "--out", tmp_path / out)
    assert_same_state(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("name", ["td3_bc", "bc", "rebrac", "cql"])
def test_runs_that_are_interrupted_and_killed_many_times_end_like_one_run(name, tmp_path):
    draw = random.Random(name)
    words = ["--eval-every", "50", "--steps", "400"]
    killed = 0
    for _ in range(8):
        child = start(name, tmp_path / "parts", *words)
        wait_for_start(child)
        time.sleep(draw.uniform(0, 0.3))
        child.send_signal(draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
        child.communicate(timeout=120)
        killed += child.returncode != 0
    for out in ("parts", "whole"):
        train(name, *TINY, *words, "--out", tmp_path / out)

    assert killed
    assert_same_state(tmp_path / "parts", tmp_path / "whole")
    rows = [read_checkpoint(tmp_path / out / "checkpoint.pt")["history"] for out in ("parts", "whole")]
    for row in (*rows[0], *rows[1]):
        del row["train_seconds"], row["data_seconds"]
    assert rows[0] == rows[1]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_an_evaluation_is_interrupted_too_and_repeated_by_the_next_run(tmp_path):
    words = ["--steps", "5", "--eval-every", "5", "--eval-episodes", "5000"]
    child = start("bc", tmp_path / "parts", *words)
    wait_for_start(child)
    time.sleep(1)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    state = read_checkpoint(tmp_path / "parts" / "checkpoint.pt")

    assert child.returncode == 143
    assert (state["step"], state["history"]) == (5, [])
    words[-1] = "2"
    with pytest.raises(InvalidArgumentError, match="eval_episodes 5000, not 2"):
        train("bc", *TINY, *words, "--out", tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_a_second_signal_ends_the_run_at_once_and_says_what_is_lost(tmp_path):
    child = start("td3_bc", tmp_path, "--batch-size", "200000", "--hidden", "256", "256")  # seconds for each update
    wait_for_start(child)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert any("a second signal ends the run at once" in line for line in child.stderr)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)

    assert child.returncode == 130
    assert "the run was ended at once: the steps since the last checkpoint are lost" in errors
    assert not (tmp_path / "checkpoint.pt").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_a_terminal_shows_a_bar_with_losses_between_evaluations(tmp_path):
    load("demo/pendulum")
    master, slave = os.openpty()
    words = [*TINY, "--steps", "30", "--eval-every", "10", "--out", str(tmp_path)]
    program = [sys.executable, "-m", "datasets_rl.cli", "train", "bc", *words]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # of a terminal whose other side is closed
        while part := os.read(master, 4096):
            shown += part
    os.close(master)
    printed, _ = child.communicate(timeout=60)

    assert re.search(r"\rbc: 100%.*30.0/30.0 .* steps/s, actor 0\.\d+\]", shown.decode())
    assert [line[:8] for line in re.split(r"[\r\n]+", shown.decode()) if line.startswith("step ")] == [
        "step 10 ",
        "step 20 ",
        "step 30 ",
    ]
    assert json.loads(printed)["step"] == 30


@pytest.mark.usefixtures("warm_python")
def test_a_second_run_in_one_folder_is_refused_and_the_first_goes_on(tmp_path):
    child = start("bc", tmp_path)
    wait_for_start(child)
    other = start("bc", tmp_path)
    _, errors = other.communicate(timeout=60)

    assert other.returncode == 9
    assert f"the run in {tmp_path} is locked by process" in errors
    assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert train("bc", *TINY, "--steps", "2", "--out", tmp_path)["step"] == 2  # the dead process holds no lock


LIMITED = """
import resource, signal, sys
from datasets_rl.cli.app import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("warm_python")
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE")
def test_a_limit_of_file_sizes_is_named_and_the_run_resumes_once_it_is_raised(tmp_path):
    load("demo/pendulum")
    words = [*TINY, "--hidden", "64", "64", "--steps", "4", "--eval-every", "2", "--out", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, "train", "bc", *words], capture_output=True, text=True, check=False, timeout=120
    )

    assert ran.returncode == 6, ran.stderr
    assert f"a file at {tmp_path} is too large" in ran.stderr
    assert "run it again to continue" in ran.stderr
    assert train("bc", *words)["step"] == 4


def test_a_checkpoint_of_other_networks_is_named(tmp_path):
    train("bc", *TINY, "--steps", "2", "--out", tmp_path)
    state = read_checkpoint(tmp_path / "checkpoint.pt")
    del state["networks"]["actor.0.weight"]
    importlib.import_module("datasets_rl.training").write_checkpoint(tmp_path / "checkpoint.pt", state)

    with pytest.raises(InvalidArgumentError, match=r'does not fit this version of bc: .*Missing key.*"actor.0.weight"'):
        train("bc", *TINY, "--steps", "4", "--out", tmp_path)


def write_robot(root, episodes=20, seed=0):
    draw = np.random.default_rng(seed)
    with EpisodeWriter("local/robot", root=root) as writer:
        for _ in range(episodes):
            state = draw.normal(size=4).astype(np.float32)
            writer.start(torch.from_numpy(state))
            for step in range(10):
                action = np.tanh(state[:2] - state[2:])
                state = draw.normal(size=4).astype(np.float32)
                writer.step(torch.from_numpy(action), torch.from_numpy(state), 0.0, False, step == 9)


@pytest.mark.parametrize(
    "name",
    [
        "bc",
        "iql",
        "dt",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("act", "cql", "diffusion_policy", "rebrac")),
    ],
)
def test_data_without_an_environment_trains_with_a_validation_loss(name, tmp_path, home, capsys):
    if not (home / "local" / "robot").exists():
        write_robot(home / "local")
    words = ["--dataset", "local/robot", "--hidden", "8", "--batch-size", "8", "--steps", "4", "--eval-every", "2"]
    result = train(name, *words, "--out", tmp_path)

    printed = capsys.readouterr()
    assert "local/robot does not name an environment: the policy is not evaluated" in printed.err
    assert "1 of 20 episodes are held out for the validation loss" in printed.err
    assert json.loads(printed.out) == result
    losses = [name for name in result if name.startswith("validation_")]
    assert losses
    assert "return" not in result
    assert (tmp_path / "best.pt").exists() is (name in {"act", "bc", "dt", "diffusion_policy"})


def test_the_validation_loss_is_that_of_the_held_out_episodes(tmp_path, home):
    """The network of a program without an update, applied to the held-out steps by hand."""
    write_robot(home / "local" / "second", seed=1)
    dataset = load(home / "local" / "second" / "robot")
    words = ["--dataset", dataset.data_path, "--hidden", "8", "--batch-size", "100000", "--steps", "1", "--seed", "3"]
    result = train("bc", *words, "--validation", "0.25", "--out", tmp_path)
    state = read_checkpoint(tmp_path / "checkpoint.pt")
    held = sorted(np.random.default_rng([3, 0]).permutation(20)[:5])
    steps = torch.cat([torch.arange(10 * number, 10 * number + 10) for number in held])
    batch, weights = dataset[steps], state["networks"]
    hidden = torch.relu(
        (batch["observation"] - weights["inputs.shift"]) / weights["inputs.scale"] @ weights["actor.0.weight"].T
        + weights["actor.0.bias"]
    )
    output = torch.tanh(hidden @ weights["actor.2.weight"].T + weights["actor.2.bias"])
    actions = (batch["action"] - weights["outputs.shift"]) / weights["outputs.scale"]

    # The loss of 100,000 steps that were drawn of the 50 with replacement.
    assert result["validation_actor"] == pytest.approx(float((output - actions).square().mean()), rel=0.02)


@pytest.mark.parametrize(
    ("copies", "share", "held_out"), [(1, 0.1, (3, 0)), (3, 0.1, (3, 3)), (3, 0.12, (6, 6)), (15, 0.6, (15, 15))]
)
def test_copies_of_an_episode_are_held_out_together_and_counted(copies, share, held_out, tmp_path, capsys):
    """30 episodes, of which all are stored once, 3 times, or 15 times."""
    stored = store_dataset(tmp_path / "toy", [trajectory(10, seed=number // copies) for number in range(30)])
    words = ["--dataset", stored.folder, "--hidden", "8", "--batch-size", "8", "--steps", "1", "--validation", share]
    result = train("bc", *words, "--out", tmp_path / "run")

    assert (result["held_out"], result["held_out_copies"]) == held_out
    printed = capsys.readouterr().err
    assert f"{held_out[0]} of 30 episodes are held out for the validation loss" in printed
    assert (f"{held_out[1]} of the held-out episodes have copies, which are held out, too" in printed) is (copies > 1)


def test_copies_of_one_episode_cannot_be_held_out(tmp_path):
    stored = store_dataset(tmp_path / "toy", [trajectory(10)] * 4)
    words = ["--dataset", stored.folder, "--hidden", "8", "--steps", "1", "--validation", "0.25"]
    with pytest.raises(InvalidArgumentError, match=r"all 4 episodes of .* are copies of one episode"):
        train("bc", *words, "--out", tmp_path / "run")


def test_validation_changes_no_update(tmp_path):
    """Training on the same episodes with more evaluations ends with the same networks."""
    words = [*TINY, "--validation", "0.2", "--steps", "6", "--no-eval"]
    train("cql", *words, "--eval-every", "1", "--out", tmp_path / "often")
    train("cql", *words, "--eval-every", "6", "--out", tmp_path / "once")

    assert_same_state(tmp_path / "often", tmp_path / "once")


def test_too_few_episodes_to_hold_some_out_are_refused_with_the_remedy(tmp_path, home):
    if not (home / "local" / "one").exists():
        write_robot(home / "local" / "one", episodes=1)
    words = ["--dataset", home / "local" / "one" / "robot", "--hidden", "8", "--batch-size", "8", "--steps", "2"]
    with pytest.raises(InvalidArgumentError, match=r"has 1 episodes, of which 1 would be held out.*\n.*validation=0"):
        train("bc", *words, "--out", tmp_path)

    assert set(train("bc", *words, "--validation", "0", "--out", tmp_path)) >= {"step", "actor"}


def test_an_environment_that_cannot_be_made_is_refused_first_and_names_training_without_it(tmp_path, home):
    write_robot(home / "local" / "lost")
    folder = home / "local" / "lost" / "robot"
    with EpisodeWriter("local/lost", root=folder.parent, metadata={"environment": "Nowhere-v0"}) as writer:
        writer.start(torch.zeros(3))
        writer.step(torch.zeros(1), torch.zeros(3), 0.0, False, True)
    with pytest.raises(InvalidArgumentError, match="no_eval=True"):
        train("bc", "--dataset", folder.with_name("lost"), "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_evaluations_start_from_other_states_each_time_and_from_the_same_ones_when_repeated(tmp_path):
    words = [*TINY, "--steps", "4", "--eval-every", "2", "--lr", "1e-12"]
    for out in ("first", "second"):
        train("bc", *words, "--out", tmp_path / out)
    histories = [read_checkpoint(tmp_path / out / "checkpoint.pt")["history"] for out in ("first", "second")]
    returns = [[row["return"] for row in history] for history in histories]

    assert returns[0] == returns[1]
    assert abs(returns[0][0] - returns[0][1]) > 1  # the policy hardly changed, the first states did


def test_a_checkpoint_describes_the_environment_of_the_policy(tmp_path):
    train("bc", *TINY, "--steps", "2", "--out", tmp_path)
    described = read_checkpoint(tmp_path / "checkpoint.pt")["environment"]

    assert make_env(described).spec.id == "Pendulum-v1"


def test_the_threads_of_the_process_are_restored(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train("bc", *TINY, "--steps", "2", "--out", tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Rewards:
    """The statistics of a dataset with given rewards and returns."""

    def __init__(self, rewards, returns):
        rewards, returns = np.asarray(rewards, float), np.asarray(returns, float)
        names = {"min": np.min, "max": np.max, "mean": np.mean, "std": np.std}
        self.statistics = {
            "next.reward": {name: [float(function(rewards))] for name, function in names.items()},
            "return": {name: float(function(returns)) for name, function in names.items()},
        }


@pytest.mark.parametrize(
    ("rewards", "returns", "expected"),
    [
        ([0] * 99 + [1], [1, 0], (1, -1)),  # AntMaze
        ([0] * 1999 + [1], [1, 0, 0], (1, -1)),
        ([0, 0, 0.5, 1], [1.5, 0], (1000 / 1.5, 0)),
        ([1] * 99 + [0], [50, 49], (1000, 0)),  # CartPole that ends with 0: not sparse
        ([1] * 10, [5, 5], (1, 0)),
        ([-1, 2, 3], [-200, 300], (2, 0)),  # locomotion
    ],
)
def test_the_scaling_of_rewards_is_chosen_by_the_rewards(rewards, returns, expected):
    assert reward_scaling(Rewards(rewards, returns))[:2] == pytest.approx(expected)


def test_a_scaling_that_is_given_is_taken():
    data = Rewards([0, 1], [0, 1])

    assert reward_scaling(data, 10.0, -5.0) == RewardScaling(10.0, -5.0, "given")
    assert reward_scaling(data, 10.0)[:2] == (10.0, 0.0)
    assert reward_scaling(data, None, -1.0)[:2] == (1.0, -1.0)


def test_iql_states_its_scaling_and_its_actor_learns_less_and_less(tmp_path, capsys):
    result = train("iql", *TINY, "--steps", "4", "--eval-every", "2", "--out", tmp_path)

    span = 1853.0042414665222 - 0.0538899575031115
    assert result["reward_scale"] == pytest.approx(1000 / span)
    assert result["reward"] == "1000 / (highest - lowest return)"
    assert "reward_scale 0.53968" in capsys.readouterr().err
    rate = read_checkpoint(tmp_path / "checkpoint.pt")["optimizers"]["actor"]["param_groups"][0]["lr"]
    assert rate == pytest.approx(3e-4 * (1 + np.cos(np.pi * 3 / 4)) / 2)
    with pytest.raises(InvalidArgumentError, match="decay_steps 4, not 8"):
        train("iql", *TINY, "--steps", "8", "--eval-every", "2", "--out", tmp_path)


def test_factors_of_learning_rates():
    assert [cosine_decay(step, 4) for step in (1, 3)] == pytest.approx([1, 0.5])
    assert [warm_up(step, 4) for step in (1, 2, 4, 9)] == [0.25, 0.5, 1, 1]
    assert cosine_decay(5, 0) == warm_up(5, 0) == 1


@pytest.mark.usefixtures("warm_python")
def test_a_file_that_is_run_refuses_in_one_line_and_with_the_code_of_wrong_usage(tmp_path):
    copy = tmp_path / "my_bc.py"
    copy.write_bytes(program_files()["bc"].read_bytes())
    words = [sys.executable, str(copy), *TINY, "--dataset", "demo/pendulumm"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)

    assert ran.returncode == 2
    assert ran.stderr.startswith("my_bc.py: error: no dataset 'demo/pendulumm'")
    assert len(ran.stderr.splitlines()) == 1


def test_a_refused_program_names_its_options(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mine.py"])
    hint = Remedy("take a smaller {}, or {}", Argument("lr"), Argument("no_eval", True))

    def refuse():
        raise InvalidArgumentError("the training diverged", hint=hint)

    with pytest.raises(SystemExit) as ended:
        run_program(refuse)
    monkeypatch.setenv("RLDS_DEBUG", "1")
    with pytest.raises(InvalidArgumentError):
        run_program(refuse)

    assert ended.value.code == 2
    assert capsys.readouterr().err == "mine.py: error: the training diverged; take a smaller --lr ..., or --no-eval\n"
