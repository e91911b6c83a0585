"""Mixtures, audits, training and splits count the same episodes as copies, and say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from stored_data import columns, trajectory, write_dataset

REWARD = ("next", "reward")


def scaled(one, *keys):
    """Return a trajectory with some fields times 2."""
    steps = {key: values * 2 if key in keys else values for key, values in one.steps.items()}
    states = {key: values * 2 if key in keys else values for key, values in one.states.items()}
    return replace(one, steps=steps, states=states)


def test_mixtures_audits_training_and_splits_of_a_merge_count_the_same_copies(rlds, tmp_path):
    """Copies in another order, twice, and with other rewards. An episode in another scale is none."""
    first = [trajectory(10, seed=seed) for seed in range(12)]
    second = [trajectory(10, seed=20), scaled(first[3], REWARD), first[7], first[0], first[7]]
    second.append(scaled(first[5], ("observation",), ("action",)))
    folders = [write_dataset(tmp_path / "first", first).folder, write_dataset(tmp_path / "second", second).folder]
    (shared,) = rlds("mix", *folders, "--json").json["shared"]
    audited = rlds("audit", *folders, "--checks", "shared_episodes", "--json").json["datasets"]
    (finding,) = audited[0]["findings"]
    words = ["--hidden", "8", "--steps", "1", "--no-conventions", "--out", tmp_path / "run"]
    trained = rlds("--json", "train", "bc", "--dataset", folders[0], "--validation", folders[1], *words).json["result"]
    words = ["preprocess", *folders, "-t", "split:train,0.3", "--out", tmp_path / "merged"]
    tried, made = rlds(*words, "--dry-run"), rlds(*words)

    assert shared["episodes"] == finding["evidence"]["copies"] == 4
    assert trained["shared"] == [{"datasets": [*map(str, folders)], "episodes": 4}]
    assert finding["level"] == "proof"
    assert finding["evidence"]["pairs"] == [[0, 3], [3, 1], [7, 2], [7, 4]]
    # The three originals are counted, too.
    for text in (tried.out, made.err):
        assert "of 18 episodes are for validation, 7 episodes that are copies of each other are on one side" in text


def test_a_dataset_that_is_stored_in_another_dtype_is_shared_as_a_whole(rlds, tmp_path):
    episodes = [trajectory(10, seed=seed) for seed in range(6)]
    write_dataset(tmp_path / "first", episodes)
    wide = [
        replace(
            one,
            steps={
                key: values.astype("f8") if values.dtype == np.float32 else values for key, values in one.steps.items()
            },
            states={key: values.astype("f8") for key, values in one.states.items()},
        )
        for one in episodes
    ]
    write_dataset(tmp_path / "second", wide, columns(dtype=np.float64))
    ran = rlds("audit", tmp_path / "first", tmp_path / "second", "--checks", "shared_episodes")

    assert "6 of 6 episodes" in ran.out
    assert "in all observations and actions" in ran.out
