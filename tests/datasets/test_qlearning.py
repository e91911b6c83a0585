"""`from_env=False` gives the transitions of D4RL's own function for all flags, through the complete pipeline."""

from __future__ import annotations

import tempfile
from pathlib import Path

import d4rl_files
import numpy as np
import pytest
from golden.qlearning import qlearning_reference
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from datasets_rl import Recipe, downloading, load, sources
from datasets_rl.datasets import D4RLExperienceReplay

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
IDS = ["bullet-hopper-medium-v0", "bullet-maze2d-umaze-v0", "flow-ring-random-v0"]
"""Two datasets with resets at the time limit, and between them one whose environment is never reset."""


@st.composite
def files(draw):
    """Columns of a file of up to 40 rows with random flags, with or without timeouts."""
    rows = draw(st.integers(2, 40))
    chance = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9]))
    generator = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    columns = {
        "observations": generator.uniform(1, 2, (rows, 4)),
        "actions": generator.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": generator.normal(size=rows).astype(np.float32),
        "terminals": generator.random(rows) < chance,
    }
    if draw(st.booleans()):
        columns["timeouts"] = generator.random(rows) < draw(st.sampled_from([0.0, 0.2, 0.8]))
    return columns


def check(columns, name, limit, *, terminate_on_end):
    expected = qlearning_reference(columns, limit, terminate_on_end=terminate_on_end)
    with tempfile.TemporaryDirectory() as folder:
        local = d4rl_files.write(Path(folder) / "local.hdf5", columns)
        downloading.download(f"d4rl/{name}", from_local=local, hash_check=False, root=folder)
        if not len(expected["rows"]):
            return
        dataset = D4RLExperienceReplay(
            name, from_env=False, terminate_on_end=terminate_on_end, root=folder, download=False, batch_size=3
        )
        batch = dataset[:]

        assert len(dataset) == len(expected["rows"])
        for key, column in (("observation", "observations"), ("action", "actions")):
            assert str(batch[key].dtype) == "torch.float32"
            assert np.array_equal(batch[key].numpy(), expected[column].astype(np.float32))
        assert np.array_equal(batch["next", "reward"][:, 0].numpy(), expected["rewards"])
        assert np.array_equal(batch["next", "terminated"][:, 0].numpy(), expected["terminals"])
        goes_on = ~batch["next", "done"][:, 0].numpy()
        following = expected["next_observations"].astype(np.float32)
        assert np.array_equal(batch["next", "observation"].numpy()[goes_on], following[goes_on])
        check_strict(dataset, batch, expected)


def check_strict(dataset, batch, expected):
    """Check that the result is TED: an episode is consecutive rows of the file, and ends with a flag."""
    done = batch["next", "done"][:, 0].numpy()
    stops = dataset.episodes.stops

    assert (np.flatnonzero(done) + 1).tolist() == stops.tolist()
    assert set(batch.keys()) == {"observation", "action", "episode", "done", "terminated", "truncated", "next"}
    for rows in dataset.episodes:
        assert np.ptp(expected["rows"][list(rows)]) == len(rows) - 1
    # The key separates trajectories like the table and the flags, for any way of reading.
    numbers = np.repeat(np.arange(len(dataset.episodes)), dataset.episodes.lengths)
    for found in (batch["episode"], dataset[np.arange(len(dataset))]["episode"]):
        assert np.array_equal(found.numpy(), numbers)
    assert dataset.sample(64)["episode"].max() < len(dataset.episodes)
    assert dataset.specs.is_in(dataset.sample())


COUNTED = {
    "observations": np.arange(20.0)[:, None],
    "actions": np.zeros((20, 2), np.float32),
    "rewards": np.arange(20, dtype=np.float32),
    "terminals": np.isin(np.arange(20), [4, 17]),
}
"""Without timeouts and with a limit of 7, rows 10 and 17 are seventh steps: D4RL counts row 5 as the second step."""


@pytest.mark.first(1)
@pytest.mark.parametrize("terminate_on_end", [False, True])
@FEW
@example(columns=COUNTED, name=IDS[0], limit=7)
@example(columns=COUNTED, name=IDS[1], limit=7)
@given(columns=files(), name=st.sampled_from(IDS), limit=st.sampled_from([1, 2, 3, 7, 1000]))
def test_the_transitions_are_those_of_the_reference(columns, name, limit, terminate_on_end):
    with pytest.MonkeyPatch.context() as patch:
        facts = sources.get_source("d4rl").catalog["ids"][name]
        patch.setitem(facts, "time_limit", limit)
        check(columns, name, limit, terminate_on_end=terminate_on_end)


def return_range(rewards, terminals, limit):
    """Return the difference of the returns as `return_reward_range` of CORL has it, one step after the other."""
    returns, total, steps = [], 0.0, 0
    for reward, terminal in zip(rewards, terminals, strict=True):
        total, steps = total + float(reward), steps + 1
        if terminal or steps == limit:
            returns.append(total)
            total, steps = 0.0, 0
    return max(returns) - min(returns)


@pytest.mark.parametrize("terminal_end", [False, True])
def test_without_time_outs_the_rows_and_the_factor_are_those_of_corl(tmp_path, monkeypatch, terminal_end):
    """Episodes of 40 steps end by time-out, others by termination; D4RL also leaves out the last row of the file."""
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    generator = np.random.default_rng(4)
    lengths = [40, 25, 40, 40, 13, 40, 30]
    stops, rows = np.cumsum(lengths) - 1, sum(lengths)
    columns = {
        "observations": generator.normal(size=(rows, 3)).astype(np.float32),
        "actions": generator.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": generator.normal(1, 1, rows).astype(np.float32),
        "terminals": np.isin(np.arange(rows), stops[[1, 4, 6] if terminal_end else [1, 4]]),
        "timeouts": np.isin(np.arange(rows), stops[[0, 2, 3, 5]]),
    }
    local = d4rl_files.write(tmp_path / "local.hdf5", columns)
    downloading.download(f"d4rl/{IDS[0]}", from_local=local, hash_check=False)
    theirs = qlearning_reference(columns, None)
    dataset = load(f"d4rl/{IDS[0]}", download=False)
    ours, count = dataset.as_dict("corl", timeouts=False), len(theirs["rows"])

    assert len(dataset.as_dict("corl")["rewards"]) == count + terminal_end  # these time-outs have no next observation
    assert len(ours["rewards"]) == count + terminal_end
    for name in ("observations", "actions", "rewards", "terminals"):
        assert np.array_equal(ours[name][:count], theirs[name].astype(np.float32)), name
    goes_on = ~theirs["terminals"]
    assert np.array_equal(ours["next_observations"][:count][goes_on], theirs["next_observations"][goes_on])
    scaled = dataset.derive(Recipe.inline(["drop_timeouts", "scale_by_returns:max_steps=40"]), name="scaled")
    flat = scaled.as_dict("corl")
    factor = 1000 / return_range(ours["rewards"], ours["terminals"], 40)
    assert len(flat["rewards"]) == len(ours["rewards"])
    assert np.allclose(flat["rewards"], ours["rewards"] * factor, rtol=1e-5)
    assert np.array_equal(flat["observations"], ours["observations"])


@pytest.mark.slow
@settings(FEW, max_examples=1000)
@given(columns=files(), name=st.sampled_from(IDS), limit=st.integers(1, 12), terminate_on_end=st.booleans())
def test_the_transitions_are_those_of_the_reference_at_length(columns, name, limit, terminate_on_end):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sources.get_source("d4rl").catalog["ids"][name], "time_limit", limit)
        check(columns, name, limit, terminate_on_end=terminate_on_end)


def test_real_rollouts_with_every_option(tmp_path):
    """Rollouts of a simulator, with terminations and timeouts; the true final observations are kept."""
    run = d4rl_files.mujoco(tmp_path / "local.hdf5", env_id="Hopper-v5", steps=200, limit=30)
    downloading.download(
        "d4rl/hopper-medium-v2", from_local=tmp_path / "local.hdf5", hash_check=False, root=tmp_path / "d4rl"
    )

    def opened(**options):
        return D4RLExperienceReplay("hopper-medium-v2", root=tmp_path / "d4rl", download=False, **options)

    whole = opened()
    final_states = np.array([states[-1] for states in run.states], np.float32)
    ends = whole.episodes.stops - 1
    assert np.array_equal(whole["next", "observation"].numpy()[ends], final_states)
    assert whole["next", "terminated"].numpy()[ends, 0].tolist() == list(run.terminated)
    not_done = opened(use_truncated_as_done=False)
    assert not_done["next", "done"].numpy()[ends, 0].tolist() == list(run.terminated)
    assert not_done.episodes.stops.tolist() == (ends + 1).tolist()
    split = opened(split_trajs=True, batch_size=2)
    assert split["mask"].sum(1).tolist() == [len(actions) for actions in run.actions]
    assert whole["info", "qpos"].shape == (run.steps, run.qpos[0].shape[1])
