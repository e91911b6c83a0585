"""Spikes are named with their row, and ordinary distributions have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stored_data import Trajectory, trajectory, write_dataset

from datasets_rl.verification.run import verify


def stored_with(folder, action, reward):
    whole = trajectory(len(action))
    steps = {**whole.steps, ("action",): action.astype("f4"), ("next", "reward"): reward[:, None].astype("f4")}
    return write_dataset(folder, [Trajectory(steps, whole.states)])


def with_a_spike(folder, steps):
    rng = np.random.default_rng(0)
    action = rng.normal(size=(steps, 2))
    action[steps // 2, 1] = 1e6
    return stored_with(folder, action, rng.normal(size=steps))


def test_a_spike_is_named_with_its_element_row_episode_and_value(tmp_path):
    (spike,) = with_a_spike(tmp_path, 642).manifest.spikes

    assert spike.startswith("action[1] is 1e+06 in row 321 (episode 0): more than 10,000 times")


@pytest.mark.parametrize(("steps", "found"), [(2, 0), (50, 0), (100, 0), (101, 1)])
def test_a_spike_is_found_from_101_steps_on(tmp_path, steps, found):
    assert len(with_a_spike(tmp_path, steps).manifest.spikes) == found


def test_a_deep_verification_remarks_on_a_spike_and_passes(tmp_path):
    stored = with_a_spike(tmp_path, 642)

    result = verify(stored.folder, deep=True)

    assert result.problems == ()
    assert "action[1] is 1e+06 in row 321" in str(result.remarks)


def test_a_deep_verification_finds_spikes_that_are_not_those_of_the_values(tmp_path):
    stored = with_a_spike(tmp_path, 642)
    replace(stored.manifest, spikes=()).write(stored.folder)

    result = verify(stored.folder, deep=True)

    (problem,) = result.problems
    assert problem.startswith("spikes is [], but the values have ['action[1] is 1e+06 in row 321")


@pytest.mark.parametrize("seed", range(4))
def test_heavy_tails_sparse_rewards_and_constants_are_not_spikes(tmp_path, seed):
    rng = np.random.default_rng(seed)
    sparse = np.where(np.arange(20_000) % 9_999 == 1, 1e6, 0)
    one_hot = np.eye(2)[rng.integers(0, 2, 20_000)]
    constant = np.full((20_000, 2), 3.0)

    for number, (action, reward) in enumerate(
        [
            (rng.standard_t(3, (20_000, 2)), rng.lognormal(size=20_000)),
            (one_hot, sparse),
            (constant, rng.lognormal(size=20_000)),
        ]
    ):
        assert stored_with(tmp_path / str(number), action, reward).manifest.spikes == ()
