"""Spikes are named with their row, and ordinary distributions have none."""

from __future__ import annotations

import numpy as np
import pytest
from stored_data import Trajectory, trajectory, write_dataset

from datasets_rl.format.spikes import spikes
from datasets_rl.verification.run import verify


def found(folder, action, reward):
    whole = trajectory(len(action))
    steps = {**whole.steps, ("action",): action.astype("f4"), ("next", "reward"): reward[:, None].astype("f4")}
    stored = write_dataset(folder, [Trajectory(steps, whole.states)])
    return [*spikes(stored.schema, stored.manifest.statistics, stored.episodes, stored.take_fields)]


def test_a_spike_is_named_with_its_element_row_episode_and_value(tmp_path):
    rng = np.random.default_rng(0)
    action = rng.normal(size=(500, 2))
    action[321, 1] = 1e6

    (note,) = found(tmp_path, action, rng.normal(size=500))

    assert note.startswith("action[1] is 1e+06 in row 321 (episode 0): more than 10,000 times")


def test_a_deep_verification_remarks_on_a_spike_and_passes(tmp_path):
    whole = trajectory(500)
    whole.steps["action",][321, 1] = 1e6
    stored = write_dataset(tmp_path / "stored", [whole])

    result = verify(stored.folder, deep=True)

    assert result.problems == ()
    assert "action[1] is 1e+06 in row 321" in str(result.remarks)


@pytest.mark.parametrize("seed", range(4))
def test_heavy_tails_sparse_rewards_and_constants_are_not_spikes(tmp_path, seed):
    rng = np.random.default_rng(seed)
    sparse = np.where(np.arange(20_000) % 9_999 == 1, 1e6, 0)
    one_hot = np.eye(2)[rng.integers(0, 2, 20_000)]
    constant = np.full((20_000, 2), 3.0)

    assert found(tmp_path / "t", rng.standard_t(3, (20_000, 2)), rng.lognormal(size=20_000)) == []
    assert found(tmp_path / "sparse", one_hot, sparse) == []
    assert found(tmp_path / "constant", constant, rng.lognormal(size=20_000)) == []
