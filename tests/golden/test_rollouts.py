"""Real MuJoCo rollouts in D4RL files, served over HTTP and downloaded by the real command, compared step by step."""

import json
import os
import subprocess

import numpy as np
import pytest
import torch
from d4rl_files import mujoco
from oracles import comparison
from servers import File, serve

from datasets_rl import verification
from datasets_rl.datasets import D4RLExperienceReplay

CASES = {
    "halfcheetah-medium-v2": {"env_id": "HalfCheetah-v5", "steps": 350, "limit": 100},
    "hopper-medium-replay-v2": {"env_id": "Hopper-v5", "steps": 500, "limit": 60, "dtype": np.float64},
    "hopper-random-v2": {"env_id": "Hopper-v5", "steps": 403, "limit": 1000, "seed": 5},
    "hopper-medium-v0": {"env_id": "Hopper-v5", "steps": 300, "limit": 1000, "version": 0},
}


@pytest.fixture(scope="module", params=list(CASES))
def downloaded(request, tmp_path_factory, warm_executable):
    """The rollout, and the dataset that the command converted from its file."""
    folder = tmp_path_factory.mktemp("golden")
    run = mujoco(folder / "raw.hdf5", **CASES[request.param])
    root = folder / "home" / "d4rl"
    info = [warm_executable, "-m", "datasets_rl.cli", "--root", str(root.parent)]
    from datasets_rl import sources

    path = sources.find(f"d4rl/{request.param}").params["path"]
    with serve({f"/{path}": File(folder / "raw.hdf5")}) as server:
        words = ["download", f"d4rl/{request.param}", "--mirror", server.url, "--no-hash-check", "--keep-raw", "--json"]
        done = subprocess.run([*info, *words], capture_output=True, text=True, check=False, env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema_version"]
    return request.param, run, D4RLExperienceReplay(request.param, root=root, download=False, batch_size=8)


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("RLDS_")}


@pytest.mark.first(1)
def test_every_step_of_the_rollout_is_in_its_row(downloaded):
    name, run, dataset = downloaded
    keeps_finals = not name.endswith("v0")
    kind = CASES[name].get("dtype", np.float32)
    row = 0
    for number, actions in enumerate(run.actions):
        for step, action in enumerate(actions):
            transition = dataset[row]
            last = step == len(actions) - 1
            states = run.states[number].astype(kind)
            following = states[step + 1] if keeps_finals or not last else np.zeros_like(states[0])
            np.testing.assert_array_equal(transition["observation"].numpy(), states[step])
            np.testing.assert_array_equal(transition["next", "observation"].numpy(), following)
            np.testing.assert_array_equal(transition["action"].numpy(), action.astype(kind))
            assert transition["next", "reward"].item() == kind(run.rewards[number][step])
            assert transition["next", "terminated"].item() == (last and run.terminated[number])
            cut = last and (run.truncated[number] or not run.terminated[number])
            assert transition["next", "truncated"].item() == cut
            assert transition["next", "done"].item() == last
            assert transition["episode"].item() == number
            assert not any(transition[flag].item() for flag in ("done", "terminated", "truncated"))
            row += 1
    assert row == len(dataset) == run.steps


def test_a_batch_equals_its_rows(downloaded):
    _, _, dataset = downloaded
    index = torch.randint(len(dataset), (64,), generator=torch.Generator().manual_seed(0))

    batch = dataset[index]

    for position, row in enumerate(index.tolist()):
        assert (batch[position] == dataset[row]).all()


def test_returns_and_lengths_are_those_of_the_rollout(downloaded):
    name, run, dataset = downloaded
    kind = CASES[name].get("dtype", np.float32)

    assert dataset.episodes.lengths.tolist() == [len(actions) for actions in run.actions]
    expected = [rewards.astype(kind).astype(np.float64).sum() for rewards in run.rewards]
    np.testing.assert_allclose(dataset.episodes["return"], expected, rtol=1e-9)


@pytest.mark.first(1)
def test_verify_finds_the_dataset_intact(downloaded):
    name, _, dataset = downloaded

    report = verification.verify(f"d4rl/{name}", deep=True, root=dataset.root)

    assert report.problems == ()
    assert any("every converted value" in line for line in report.checked)
    assert comparison.deep_problems(dataset.data_path) == []


def test_padded_trajectories_are_the_episodes_of_the_rollout(downloaded):
    name, run, dataset = downloaded
    padded = D4RLExperienceReplay(name, root=dataset.root, download=False, split_trajs=True)

    whole = padded[:]

    assert list(whole.shape) == [len(run.actions), max(map(len, run.actions))]
    for number, actions in enumerate(run.actions):
        kind = CASES[name].get("dtype", np.float32)
        states = run.states[number].astype(kind)
        np.testing.assert_array_equal(whole["observation"][number, : len(actions)].numpy(), states[:-1])
        assert whole["mask"][number].tolist() == [step < len(actions) for step in range(whole.shape[1])]
        assert not whole["observation"][number, len(actions) :].any()
