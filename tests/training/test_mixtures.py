"""Training on mixtures, and validation on other data: shares, statistics, members that do not fit, copies, and exact resumption."""

from __future__ import annotations

import argparse
import importlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from run_states import assert_same_state

from datasets_rl import EpisodeWriter, load, specs
from datasets_rl.errors import InvalidArgumentError, UnknownIdError
from datasets_rl.lockfile.lock import Lock
from datasets_rl.preprocessing.steps.keep import KeepEpisodes
from datasets_rl.training import TrainingData, load_transitions, read_checkpoint
from datasets_rl.training.data import Named

WORDS = ["--hidden", "8", "--batch-size", "8", "--steps", "2", "--eval-every", "2", "--eval-episodes", "1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with robots whose states have the means 0 and 4, and the same robots in other units."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(folder))
        record("near", seed=0)
        record("far", seed=1, shift=4.0)
        load("local/near").derive("td3_bc")
        load("local/far").derive("td3_bc")
    return folder


@pytest.fixture(autouse=True)
def _home(home, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(home))


def record(name, seed=0, shift=0.0, scale=1.0, episodes=10, size=4, bound=None, choices=None, **options):
    """Record a robot that moves against the first half of its state."""
    draw = np.random.default_rng(seed)
    spaces = {}
    if bound is not None:
        spaces["action"] = specs.Bounded(-bound * torch.ones(2), bound * torch.ones(2))
    if choices is not None:
        spaces["action"] = specs.Categorical(choices)
    with EpisodeWriter(f"local/{name}", specs=spaces, **options) as writer:
        for _ in range(episodes):
            state = (shift + draw.normal(size=size)).astype(np.float32)
            writer.start(torch.from_numpy(state))
            for step in range(10):
                action = torch.from_numpy(np.float32(scale) * np.tanh(shift - state[:2]))
                state = (shift + draw.normal(size=size)).astype(np.float32)
                reward = float(state[0])
                if choices is not None:
                    action = torch.tensor(step % choices)
                writer.step(action, torch.from_numpy(state), reward, False, step == 9)


def mix(folder, *members, weights=None, settings=""):
    """Write a mixture, and return the path of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = weights or [1.0] * len(members)
    tables = [
        f'[[member]]\ndataset = "{one}"\nweight = {weight}\n' for one, weight in zip(members, weights, strict=True)
    ]
    path = folder / "mix.toml"
    path.write_text("\n".join([settings, *tables]))
    return path


def train(name, dataset, out, *words):
    main = importlib.import_module(f"datasets_rl.recipes.train.{name}").main
    return main(["--dataset", str(dataset), "--out", str(out), *WORDS, *map(str, words)])


def inputs_of(out):
    """Return the shift and the scale of the states in the network of a run."""
    networks = read_checkpoint(out / "checkpoint.pt")["networks"]
    return networks["inputs.shift"].numpy(), networks["inputs.scale"].numpy()


def states_of(dataset, episodes=None):
    stored = load(dataset, final_unknown="keep")
    states = stored["observation"].numpy()
    return (
        states if episodes is None else states.reshape(-1, 10, states.shape[-1])[episodes].reshape(-1, states.shape[-1])
    )


def opened(file, **arguments):
    args = argparse.Namespace(**{"seed": 0, "device": "cpu", "no_conventions": False, **arguments})
    keys = ("observation", "action")
    return TrainingData(Named.read(str(file)), lambda own, **part: load_transitions(own, keys, **part), args)


def test_every_batch_has_the_shares_of_the_mixture(tmp_path):
    data = opened(mix(tmp_path, "local/near", "local/far", weights=[3, 1], settings="batch_size = 256"))
    batches = [batch["index", "buffer_ids"].bincount().tolist() for batch in data.batches(5, 8)]

    assert batches == [[6, 2]] * 5


def test_the_shares_change_during_training_as_the_file_says(tmp_path):
    file = mix(tmp_path, "local/near", "local/far", weights=[1, 0])
    file.write_text("anneal = 4\n" + file.read_text().replace("weight", "final_weight = 1\nweight"))
    batches = [batch["index", "buffer_ids"].bincount(minlength=2).tolist() for batch in opened(file).batches(6, 8)]

    assert batches == [[8, 0], [7, 1], [6, 2], [5, 3], [4, 4], [4, 4]]


def test_members_that_have_equal_lengths_are_drawn_independently(tmp_path):
    batch = next(opened(mix(tmp_path, "local/near", "local/far")).batches(1, 64))
    first, second = batch["index", "index"].split(32)

    assert first.tolist() != second.tolist()


def test_observations_are_normalized_by_the_steps_in_their_shares(tmp_path):
    train("bc", mix(tmp_path, "local/near", "local/far", weights=[3, 1]), tmp_path / "run", "--validation", "0")
    near, far = states_of("local/near"), states_of("local/far")
    drawn = np.concatenate([near, near, near, far])  # both have 100 steps

    shift, scale = inputs_of(tmp_path / "run")
    assert shift == pytest.approx(drawn.mean(0), rel=1e-5)
    assert scale == pytest.approx(drawn.std(0) + 1e-3, rel=1e-5)


def test_a_part_of_the_episodes_that_trains_normalizes_alone(tmp_path):
    train("bc", "local/far", tmp_path, "--validation", "0.3", "--seed", "2")
    trained = np.random.default_rng([2, 0]).permutation(10)[3:]

    shift, scale = inputs_of(tmp_path)
    states = states_of("local/far", sorted(trained))
    assert shift == pytest.approx(states.mean(0), rel=1e-5)
    assert scale == pytest.approx(states.std(0) + 1e-3, rel=1e-5)


def test_the_statistics_of_a_part_are_those_of_a_dataset_of_these_episodes():
    part = load("demo/pendulum").derive("train_split")
    data = opened("demo/pendulum").part([np.unique(part.episodes.numbers)])

    assert data.statistics.keys() == part.statistics.keys()
    for name, numbers in part.statistics.items():
        assert data.statistics[name].keys() == numbers.keys()
        for statistic, value in numbers.items():
            assert data.statistics[name][statistic] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("name", ["bc", pytest.param("iql", marks=pytest.mark.slow)])
def test_a_run_on_a_mixture_in_parts_has_the_bits_of_one_run(name, tmp_path):
    file = mix(tmp_path, "local/near", "local/far", weights=[0.6, 0.4])
    words = ["--decay-steps", "4"] if name == "iql" else []
    train(name, file, tmp_path / "parts", *words, "--steps", "3")
    for out in ("parts", "whole", "again"):
        train(name, file, tmp_path / out, *words, "--steps", "4", "--no-conventions")

    assert_same_state(tmp_path / "parts", tmp_path / "whole")
    assert_same_state(tmp_path / "again", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_on_a_mixture_that_is_stopped_ends_with_the_bits_of_one_run(number, tmp_path):
    file = mix(tmp_path, "local/near", "local/far", weights=[0.6, 0.4])
    words = ["--dataset", str(file), "--hidden", "8", "--batch-size", "8", "--eval-every", "50"]
    program = [sys.executable, "-m", "datasets_rl.cli", "train", "bc", *words, "--steps", "1000000"]
    child = subprocess.Popen([*program, "--out", str(tmp_path / "parts")], stderr=subprocess.PIPE, text=True)
    assert any(line.startswith("step 100 ") for line in child.stderr)
    child.send_signal(number)
    child.communicate(timeout=60)

    step = read_checkpoint(tmp_path / "parts" / "checkpoint.pt")["step"]
    main = importlib.import_module("datasets_rl.recipes.train.bc").main
    for out in ("parts", "whole"):
        main([*words, "--steps", str(step + 3), "--out", str(tmp_path / out), "--quiet"])
    assert child.returncode != 0
    assert_same_state(tmp_path / "parts", tmp_path / "whole")


def test_other_weights_or_another_member_are_another_run(tmp_path):
    train("bc", mix(tmp_path, "local/near", "local/far", weights=[3, 1]), tmp_path / "run")
    with pytest.raises(InvalidArgumentError, match=r"is of another run: shares of data 0\.75 0\.25, not 0\.5 0\.5\n"):
        train("bc", mix(tmp_path, "local/near", "local/far"), tmp_path / "run")
    with pytest.raises(
        InvalidArgumentError, match=r"is of another run: data of member 1, local/near None, not .*, not None"
    ):
        train("bc", mix(tmp_path, "local/near", "local/near", weights=[3, 1]), tmp_path / "run")


def test_the_lock_has_all_members_their_parents_the_mixture_and_the_data_for_validation(tmp_path, home):
    file = mix(tmp_path / "files", home / "local" / "near", "local/near")
    train("bc", file, tmp_path / "run", "--validation", "local/far@td3_bc", "--no-conventions", "--no-eval")

    lock = Lock.read(tmp_path / "run" / "rlds.lock")
    assert {(one.id, one.is_parent) for one in lock.datasets} == {
        ("local/near", False),
        ("local/far", True),
        ("local/far@td3_bc", False),
    }
    assert lock.inputs == ("../files/mix.toml", "local/far@td3_bc")
    (mixture,) = lock.mixtures
    assert [member["dataset"] for member in mixture.members] == ["local/near", "local/near"]


def misfit(name, home):
    """Record a dataset that does not fit with ``local/near``."""
    recorded = {
        "wide": {"size": 5},
        "narrow bounds": {"bound": 0.5, "scale": 0.4},
        "large actions": {"scale": 20.0},
        "choices": {"choices": 3},
        "fast": {"fps": 30},
    }
    stored = name.replace(" ", "-")
    if not (home / "local" / stored).exists():
        record(stored, seed=5, **recorded[name])
    return f"local/{stored}"


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("usual", "other", "message"),
    [
        ({}, "wide", r"observation of local/wide is floats \[5\], expected floats \[4\] as in local/usual"),
        ({}, "choices", r"action of local/choices is 3 choices \[\], expected floats \[2\] as in local/usual"),
        (
            {"bound": 1.0},
            "narrow bounds",
            r"action of local/narrow-bounds is from \[-0.5, -0.5\] to \[0.5, 0.5\], expected \[-1.0, -1.0\] to \[1.0, 1.0\]",
        ),
        ({}, "large actions", "values of action spread 20.1 times as far in local/large-actions as in local/usual"),
        ({"fps": 10}, "fast", "local/fast has 30 steps per second, and local/usual has 10"),
    ],
)
def test_members_that_do_not_fit_are_refused_before_a_network_is_built(usual, other, message, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    record("usual", **usual)
    with pytest.raises(InvalidArgumentError, match=message):
        train("bc", mix(tmp_path / "files", "local/usual", misfit(other, tmp_path)), tmp_path / "run")
    with pytest.raises(InvalidArgumentError, match=message):
        train("bc", "local/usual", tmp_path / "run", "--validation", misfit(other, tmp_path))

    assert not (tmp_path / "run").exists()


def test_parts_of_a_dataset_have_its_conventions_also_if_their_values_differ(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    record("growing", episodes=5)
    record("growing", episodes=5, seed=1, scale=20.0)
    for name, numbers in (("first", "0:5"), ("last", "5:10")):
        load("local/growing").derive(KeepEpisodes(numbers), name=name)

    file = mix(tmp_path / "files", "local/growing@first", "local/growing@last")
    assert train("bc", file, tmp_path / "run", "--validation", "local/growing@last")["step"] == 2


def test_members_in_units_of_their_own_are_refused_unless_accepted(tmp_path, capsys):
    file = mix(tmp_path, "local/near@td3_bc", "local/far@td3_bc")
    message = (
        r"step 0 \(normalize\) of td3_bc changed observation of local/far@td3_bc with other parameters than step 0 "
        r"\(normalize\) of td3_bc those of local/near@td3_bc\n.*no_conventions=True"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        train("bc", file, tmp_path / "run")
    with pytest.raises(InvalidArgumentError, match="changed observation of local/far@td3_bc, and not of local/near"):
        train("bc", mix(tmp_path / "plain", "local/near", "local/far@td3_bc"), tmp_path / "run")

    assert train("bc", file, tmp_path / "run", "--no-conventions")["step"] == 2
    assert "a batch of 8: 50.0% local/near@td3_bc, 50.0% local/far@td3_bc" in capsys.readouterr().err


def test_a_mixture_with_what_a_program_decides_is_refused_with_all_reasons(tmp_path):
    settings = 'sampler = "slices"\nkeys = ["observation"]\nmissing = "zero"'
    file = mix(tmp_path, "local/near", settings=settings)
    file.write_text(file.read_text() + 'transforms = ["reward_scaling:0,0.1"]\n')

    message = (
        "it sets keys.*it sets sampler.*missing is 'zero'.*local/near has transforms.*derive a dataset by a recipe"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        train("bc", file, tmp_path / "run")


def test_a_missing_member_is_named_with_the_mixture(tmp_path):
    with pytest.raises(UnknownIdError, match=r"no dataset 'local/neer'.*; local/neer is member 1 of .*mix.toml\n"):
        train("bc", mix(tmp_path, "local/near", "local/neer"), tmp_path / "run")


def test_members_without_an_environment_train_with_a_validation_loss_of_each(tmp_path, capsys):
    result = train("bc", mix(tmp_path, "local/near", "local/far"), tmp_path / "run")

    printed = capsys.readouterr().err
    assert "local/near does not name an environment: the policy is not evaluated" in printed
    assert "2 of 20 episodes are held out for the validation loss" in printed  # one of each
    assert (result["held_out"], result["held_out_copies"], result["shared"]) == (2, 0, [])
    assert result["validation_actor"] > 0


def test_members_of_different_environments_are_not_evaluated(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    for number, environment in enumerate(("Pendulum-v1", "Reacher-v4")):
        record(f"robot-{number}", seed=number, metadata={"environment": environment})
    result = train("bc", mix(tmp_path / "files", "local/robot-0", "local/robot-1"), tmp_path / "run")

    message = "name different environments, Pendulum-v1 of local/robot-0, Reacher-v4 of local/robot-1: the policy is not evaluated"
    assert message in capsys.readouterr().err
    assert "validation_actor" in result
    assert "return" not in result


def test_members_of_one_environment_are_evaluated_there_with_scores(tmp_path):
    load("demo/pendulum")
    result = train("bc", mix(tmp_path, "demo/pendulum", "demo/pendulum"), tmp_path / "run")

    assert result["score"] == pytest.approx((result["return"] + 1205.62) / (1205.62 - 167.13) * 100)


def test_episodes_that_members_share_are_counted(tmp_path, home, capsys):
    file = mix(tmp_path, "local/near", home / "local" / "near")
    result = train("bc", file, tmp_path / "run", "--validation", "0.2")

    copy = str(home / "local" / "near")
    assert result["shared"] == [{"datasets": ["local/near", copy], "episodes": 10}]
    assert (result["held_out"], result["held_out_copies"]) == (4, 4)  # both copies of two episodes
    assert f"10 of 10 episodes of {copy} are in local/near, too: both draw them" in capsys.readouterr().err


def test_the_validation_loss_is_that_of_named_data_normalized_by_the_training_data(tmp_path, capsys):
    words = ["--validation", "local/far", "--batch-size", "50000", "--steps", "1", "--no-conventions"]
    result = train("bc", "local/near", tmp_path, *words)

    weights = read_checkpoint(tmp_path / "checkpoint.pt")["networks"]
    near, far = states_of("local/near"), load("local/far")
    assert inputs_of(tmp_path)[0] == pytest.approx(near.mean(0), rel=1e-4, abs=1e-5)
    batch = far[:]
    hidden = (batch["observation"] - weights["inputs.shift"]) / weights["inputs.scale"]
    hidden = torch.relu(hidden @ weights["actor.0.weight"].T + weights["actor.0.bias"])
    output = torch.tanh(hidden @ weights["actor.2.weight"].T + weights["actor.2.bias"])
    actions = (batch["action"] - weights["outputs.shift"]) / weights["outputs.scale"]
    assert result["validation_actor"] == pytest.approx(float((output - actions).square().mean()), rel=0.02)
    assert (result["held_out"], result["shared"]) == (10, [])
    assert "the validation loss is that of 10 episodes of local/far" in capsys.readouterr().err
    assert (tmp_path / "best.pt").exists()


def test_named_data_for_validation_changes_no_update_and_no_statistics(tmp_path):
    file = mix(tmp_path, "local/near", "local/far")
    for out, validation in (("named", file), ("none", 0)):
        train("bc", "local/near", tmp_path / out, "--validation", validation, "--no-eval", "--no-conventions")

    assert_same_state(tmp_path / "named", tmp_path / "none")


def test_episodes_for_validation_that_are_trained_on_are_counted(tmp_path, capsys):
    dataset = load("local/near").derive("validation_split")
    result = train("bc", "local/near", tmp_path, "--validation", "local/near@validation_split")

    count = len(dataset.episodes)
    pair = ["local/near", "local/near@validation_split"]
    assert result["shared"] == [{"datasets": pair, "episodes": count}]
    message = f"{count} of {count} validation episodes of {pair[1]} are in the training data {pair[0]}, too"
    assert message in capsys.readouterr().err
    load("local/near").derive("train_split")
    assert train("bc", "local/near@train_split", tmp_path / "apart", "--validation", pair[1])["shared"] == []


def test_online_learning_refuses_a_mixture_with_the_reason(tmp_path):
    load("demo/pendulum")
    members = ["demo/pendulum", "demo/pendulum"]
    with pytest.raises(
        InvalidArgumentError,
        match=r"is a mixture, expected a dataset: a batch is half of a dataset.*\ntrain on one of the members",
    ):
        train("rlpd", mix(tmp_path, *members), tmp_path / "run")
