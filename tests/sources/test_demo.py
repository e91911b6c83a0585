"""The data in the package is the output of its script, and is converted like any other dataset."""

from __future__ import annotations

import hashlib
from pathlib import Path

import d4rl_files
import h5py
import numpy as np
import pytest
from raw import make_pendulum

import datasets_rl.sources.demo
from datasets_rl.sources import find, get_source

FILE = Path(datasets_rl.sources.demo.__file__).with_name("pendulum.hdf5")


@pytest.fixture(scope="module")
def stored():
    with h5py.File(FILE) as file:
        return {name: file[name][:] for name in make_pendulum.generate_columns(3)}


def test_the_file_has_the_digest_of_the_catalog():
    (asset,) = get_source("demo").assets("pendulum")

    assert asset.urls == ("package:datasets_rl.sources.demo/pendulum.hdf5",)
    assert asset.size == FILE.stat().st_size < 1_000_000
    assert asset.sha256 == hashlib.sha256(FILE.read_bytes()).hexdigest()


@pytest.mark.slow
def test_the_script_generates_the_columns_of_the_file(stored):
    """Equal except for the last bit of a sine, which differs between processors."""
    made = make_pendulum.generate_columns()

    assert list(made) == list(stored)
    for name, array in made.items():
        assert array.dtype == stored[name].dtype
        np.testing.assert_allclose(array, stored[name], rtol=0, atol=1e-3, err_msg=name)


def test_the_script_is_deterministic(tmp_path):
    data = make_pendulum.generate_columns(3)
    for name in ("a.h5", "b.h5"):
        make_pendulum.write_hdf5(tmp_path / name, data)

    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_it_has_75_complete_episodes_of_three_policies(stored):
    with get_source("demo").open("pendulum", {"pendulum.hdf5": FILE}) as recording:
        episodes = d4rl_files.pieces(recording)
        rules = {decision.rule: decision.count for decision in recording.decisions}

    assert len(episodes) == 75
    assert all(episode["known"] and len(episode["steps"]["action",]) == 200 for episode in episodes)
    assert rules == {"same-row": 15_000, "final-observation-kept": 75, "final-info-unknown": 75}
    np.testing.assert_array_equal(episodes[7]["states"]["observation",][-1], stored["next_observations"][1599])


def test_the_scores_are_the_mean_returns_of_the_random_and_the_good_policy(stored):
    returns = stored["rewards"].astype(np.float64).reshape(75, 200).sum(axis=1)
    score = find("demo/pendulum").score
    means = [returns[kind::3].mean() for kind in range(3)]

    assert means == sorted(means)
    assert score.low == pytest.approx(means[0], abs=0.01)
    assert score.high == pytest.approx(means[2], abs=0.01)


def test_rewards_match_the_formula_of_pendulum(stored):
    """-(angle² + 0.1 speed² + 0.001 torque²), from Gymnasium's documentation."""
    angle = (stored["infos/qpos"][:, 0] + np.pi) % (2 * np.pi) - np.pi
    speed, torque = stored["infos/qvel"][:, 0], stored["actions"][:, 0]

    np.testing.assert_allclose(stored["rewards"], -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), atol=1e-4)
    np.testing.assert_allclose(stored["observations"][:, 0], np.cos(angle), atol=1e-5)
