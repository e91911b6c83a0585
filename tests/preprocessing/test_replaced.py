"""Concurrent and repeated runs never lose or mix data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stored_data import columns, store_dataset, trajectory

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.preprocessing import Function, Recipe, dry_run, make, partial, preprocess
from datasets_rl.store import restore

LENGTHS = ((5, True), (3, False), (8, True), (1, False), (4, True))


@pytest.fixture
def folder(tmp_path):
    given = [trajectory(steps, seed=number, known=known) for number, (steps, known) in enumerate(LENGTHS)]
    return store_dataset(tmp_path / "home" / "toy" / "data", given, columns()).folder.parent


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_reads_the_version_with_which_it_started(folder, tmp_path, jobs):
    marker, before = tmp_path / "done", StoredDataset(folder).column(("next", "reward"))

    def meddling(data):
        if (data["episode"] == 3).any() and not marker.exists():
            marker.touch()
            preprocess(folder, Recipe.inline(["reward_scaling:scale=100"]), jobs=1, in_place=True)
        return data

    recipe = Recipe([Function(meddling, "episode")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry_run, "_BYTES", 1)
        made = StoredDataset(preprocess(folder, recipe, out=tmp_path / "out", jobs=jobs, num_parts=5))
    assert np.array_equal(made.column(("next", "reward")), before)

    again = preprocess(folder, recipe, out=tmp_path / "out", jobs=jobs, num_parts=5, force=True)
    rewards = StoredDataset(folder).column(("next", "reward"))
    assert np.array_equal(StoredDataset(again).column(("next", "reward")), rewards)
    assert np.allclose(rewards, 100 * before)


def test_some_steps_replace_all_only_with_force(folder):
    recipe = Recipe.inline(["reward_scaling:scale=2"])
    with pytest.raises(InvalidArgumentError, match="21 steps would be replaced"):
        preprocess(folder, recipe, num_frames=5, in_place=True)
    assert not StoredDataset(folder).manifest.history

    assert len(StoredDataset(preprocess(folder, recipe, num_frames=5, force=True, in_place=True))) == 5
    restore(folder)
    assert len(StoredDataset(preprocess(folder, recipe, num_frames=21, in_place=True))) == 21


def test_a_result_does_not_replace_another_result(folder, tmp_path):
    preprocess(folder, Recipe.inline(["reward_scaling:scale=2"]), in_place=True)
    other = preprocess(folder, Recipe.inline(["reward_scaling:scale=3"]), out=tmp_path / "other")

    for target in (folder, other):
        before = StoredDataset(target).manifest
        source = other if target == folder else folder
        with pytest.raises(InvalidArgumentError, match="already exists"):
            preprocess(source, Recipe.inline(["keep_lengths:4"]), out=target)
        assert StoredDataset(target).manifest == before


def test_partials_do_not_reuse_the_random_numbers_of_the_next_seed(folder, tmp_path):
    def noisy(data):
        import torch

        return data.set("noise", torch.rand(len(data), 1))

    drawn = [
        StoredDataset(
            preprocess(folder, Recipe([Function(noisy, "batch")]), out=tmp_path / str(seed), seed=seed, num_parts=5)
        ).column(("noise",))[:, 0]
        for seed in (0, 1)
    ]
    assert not set(drawn[0].tolist()) & set(drawn[1].tolist())


def test_random_numbers_of_fitting_depend_on_the_seed(folder, tmp_path):
    import torch

    recipes = [
        Recipe([Function(lambda data: data.set("action", torch.rand_like(data["action"])), "batch"), *steps])
        for steps in [Recipe.inline(["normalize:keys=[action]"]).steps] * 2
    ]
    one, two = (preprocess(folder, recipe, out=tmp_path / str(n)) for n, recipe in enumerate(recipes))

    assert StoredDataset(one).manifest.files == StoredDataset(two).manifest.files


def test_the_batch_size_is_a_part_of_the_identity_of_a_function(folder, tmp_path):
    def centred(data):
        return data.set("action", data["action"] - data["action"].mean())

    three = preprocess(folder, Recipe([Function(centred, "batch", 3)]), out=tmp_path / "3")
    ten = preprocess(folder, Recipe([Function(centred, "batch", 10)]), out=tmp_path / "10")
    prints = [StoredDataset(one).manifest.history[-1]["fingerprint"] for one in (three, ten)]

    assert prints[0] != prints[1]


def test_a_resumed_run_keeps_layout_revisions(folder, tmp_path, monkeypatch):
    marker, calls = tmp_path / "died", tmp_path / "calls"

    def late(data):
        with calls.open("a") as file:
            file.write(f"{int(data['episode'][0])} ")
        if (data["episode"] == 4).any() and not marker.exists():
            marker.touch()
            raise KeyboardInterrupt
        return data.set("observation", data["observation"] + 1.0 * (data["episode"][0] == 2))

    monkeypatch.setattr(dry_run, "_BYTES", 1)
    monkeypatch.setattr(dry_run, "_SECONDS", 0.0)
    recipe = Recipe([Function(late, "episode")])
    with pytest.raises(KeyboardInterrupt):
        preprocess(folder, recipe, out=tmp_path / "out", jobs=1, num_parts=5)
    assert calls.read_text().split() == ["0", "0", "1", "2", "0", "1", "2", "3", "4"]
    found = json.loads(next((tmp_path / "out").glob("build-*/revisions.json")).read_text())
    assert found["unshared"] == [["observation"]]
    calls.write_text("")
    preprocess(folder, recipe, out=tmp_path / "out", jobs=1, num_parts=5)
    assert calls.read_text().split() == ["0", "3", "4"]


@pytest.mark.parametrize(("per", "parts"), [("step", [0, 1, 3]), ("episode", [0, 1, 3]), ("batch", [0])])
def test_functions_with_growing_memory_get_small_partials(folder, tmp_path, monkeypatch, per, parts):
    begun = []

    def fill(writer, task, *others):
        begun.append(task.first)
        assert task.max_steps == 2 or per == "batch"
        return partial.write_episodes(writer, task, *others)

    monkeypatch.setattr(make, "_PART_CALLS", 5)
    monkeypatch.setattr(make, "_BATCH_CALLS", 2)
    monkeypatch.setattr(make, "write_episodes", fill)
    preprocess(folder, Recipe([Function(lambda data: data, per)]), out=tmp_path / "out", jobs=1)

    assert begun == parts
