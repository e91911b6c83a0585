"""Appending whole episodes to a dataset."""

import shutil
from dataclasses import replace

import filelock
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from datasets_rl import Recipe, Selection, append_episodes, disk, download, load, preprocess, restore, verify
from datasets_rl.errors import InvalidArgumentError, RecordingWarning, UnknownIdError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.schema import Column, Schema
from datasets_rl.preprocessing.steps.split import Split
from datasets_rl.recording.adding import column_differences
from datasets_rl.transforms import RewardScaling


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))


def transitions(rows, steps, ends=()):
    """Return transitions [rows, steps] with terminations at `ends`, whose states are unique numbers."""
    states = torch.arange(rows * (steps + 1), dtype=torch.float32).reshape(rows, steps + 1, 1)
    done = torch.zeros(rows, steps, 1, dtype=torch.bool)
    for row, step in ends:
        done[row, step] = True
    after = {"observation": states[:, 1:], "reward": torch.ones(rows, steps, 1), "done": done}
    return TensorDict(
        {"observation": states[:, :-1], "action": torch.zeros(rows, steps, 2), "next": after}, [rows, steps]
    )


def test_transitions_are_added_as_episodes_whose_states_are_stored_once():
    data = transitions(2, 4, ends=[(0, 1)])
    append_episodes("local/a", data)
    append_episodes("local/a", data[0])

    dataset = load("local/a")
    assert dataset.episodes.lengths.tolist() == [2, 2, 4, 2, 2]
    stored = dataset[:]
    for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
        assert torch.equal(stored[key], torch.cat([data.reshape(-1)[key], data[0][key]]))
    assert stored["next", "terminated"][:, 0].nonzero()[:, 0].tolist() == [1, 9]
    assert stored["next", "truncated"][:, 0].nonzero()[:, 0].tolist() == [3, 7, 11]
    assert dataset.stored.schema[("observation",)].shared
    assert verify("local/a", deep=True).problems == ()


def test_next_values_that_no_following_step_repeats_are_stored_apart():
    data = transitions(1, 3)
    data["next", "observation"] = data["next", "observation"] + 0.5
    append_episodes("local/a", data)

    dataset = load("local/a")
    assert not dataset.stored.schema[("observation",)].shared
    assert torch.equal(dataset[:]["next", "observation"], data[0]["next", "observation"])


def test_stored_datasets_are_added_to_another_and_to_themselves():
    download("demo/pendulum")
    demo = load("demo/pendulum")
    append_episodes("local/a", "demo/pendulum")
    append_episodes("local/a", "local/a", again=True)

    dataset = load("local/a")
    assert len(dataset) == 2 * len(demo)
    assert torch.equal(dataset[len(demo) :]["observation"], demo[:]["observation"])
    assert dataset.episodes.numbers.tolist() == 2 * list(range(len(demo.episodes)))
    returns = demo.stored.manifest.statistics["return"]
    assert dataset.stored.manifest.statistics["return"]["mean"] == pytest.approx(returns["mean"])
    assert verify("local/a", deep=True).problems == ()


def test_episodes_with_other_fields_are_refused_and_the_dataset_is_unchanged(tmp_path):
    download("demo/pendulum")
    append_episodes("local/a", transitions(1, 3))

    with pytest.raises(InvalidArgumentError, match=r"action is float32 \[1\], and the dataset has float32 \[2\]"):
        append_episodes("local/a", "demo/pendulum")
    assert len(load("local/a")) == 3
    assert not (tmp_path / "local" / ".recorded").exists()


def test_the_order_of_the_fields_does_not_matter():
    data = transitions(1, 4).set("other", torch.ones(1, 4, 2))
    swapped = TensorDict({key: data[key] for key in ("other", "action", "observation", "next")}, data.batch_size)
    append_episodes("local/a", data)
    append_episodes("local/a", swapped)

    stored = load("local/a")[:]
    for key in ("action", "other", "observation"):
        assert torch.equal(stored[key], torch.cat([data[0][key], data[0][key]])), key
    assert verify("local/a", deep=True).problems == ()


def test_pixels_do_not_fit_a_dataset_that_stores_the_images_in_another_form():
    pixels = Column(("pixels",), np.dtype(np.uint8), (64, 64, 3))
    for form in ("encoded", "compressed"):
        stored = Schema.layout([replace(pixels, form=form)])
        assert column_differences(stored, [pixels]) == [
            f"pixels is uint8 [64, 64, 3], and the dataset has uint8 [64, 64, 3] {form}"
        ]


def test_unknown_datasets_and_data_without_rewards_or_steps_are_refused():
    with pytest.raises(UnknownIdError):
        append_episodes("local/a", "local/b")
    with pytest.raises(InvalidArgumentError, match="expected transitions in TED"):
        append_episodes("local/a", TensorDict({"observation": torch.zeros(3)}, [3]))
    with pytest.raises(InvalidArgumentError, match=r"expected \[T\] or \[B, T\]"):
        append_episodes("local/a", TensorDict({}, []))


def test_a_stored_dataset_is_added_once_under_whatever_name_it_is_given(tmp_path):
    """The same command is repeated after a kill, and the dataset may have been moved or preprocessed in between."""
    append_episodes("local/a", transitions(1, 3))
    append_episodes("local/b", transitions(2, 4))
    append_episodes("local/a", "local/b")
    shutil.copytree(tmp_path / "local" / "b", tmp_path / "moved")

    for again in ("local/b", tmp_path / "moved", "local/a"):
        with pytest.warns(RecordingWarning, match=r"already: nothing was added\nagain=True adds the episodes again"):
            append_episodes("local/a", again)
    assert load("local/a").episodes.lengths.tolist() == [3, 4, 4]

    held = Manifest.read(tmp_path / "local" / "a").recordings
    preprocess("local/a", Recipe([RewardScaling(0.0, 2.0)]), name="twice")
    preprocess("local/a", Recipe([RewardScaling(0.0, 2.0)]), in_place=True)
    assert Manifest.read(tmp_path / "local" / "a@twice").recordings == held
    with pytest.warns(RecordingWarning, match="already"):
        append_episodes("local/a", "local/b")
    with pytest.raises(InvalidArgumentError, match="does not grow"):
        append_episodes("local/a", "local/b", again=True)
    restore(tmp_path / "local" / "a")

    append_episodes("local/a", "local/b", again=True)
    append_episodes("local/a", "local/a", again=True)
    assert load("local/a").episodes.lengths.tolist() == [3, 4, 4, 4, 4] * 2
    assert verify("local/a", deep=True).problems == ()


def test_copies_of_an_episode_share_its_number_and_other_episodes_have_their_own():
    """A selection takes all copies of an episode, and a split of the dataset has them on one side."""
    append_episodes("local/a", transitions(1, 3))
    append_episodes("local/b", transitions(1, 4))
    append_episodes("local/b", transitions(1, 5))
    append_episodes("local/a", "local/b")
    append_episodes("local/a", transitions(1, 6))
    append_episodes("local/a", "local/b", again=True)
    append_episodes("local/a", transitions(1, 7))
    once = load("local/a")
    assert once.episodes.lengths.tolist() == [3, 4, 5, 6, 4, 5, 7]
    assert once.episodes.numbers.tolist() == [0, 1, 2, 3, 1, 2, 4]

    append_episodes("local/a", "local/a", again=True)
    append_episodes("local/a", "local/b", again=True)
    whole = load("local/a")
    assert whole.episodes.numbers.tolist() == [0, 1, 2, 3, 1, 2, 4] * 2 + [1, 2]
    assert load("local/a", selection=Selection(episodes=[2])).episodes.lengths.tolist() == [5] * 5
    assert verify("local/a", deep=True).problems == ()
    train, validation = (
        {*whole.derive(Recipe([Split(side, 0.5)]), name=side).episodes.numbers.tolist()}
        for side in ("train", "validation")
    )
    assert train | validation == {0, 1, 2, 3, 4}
    assert not train & validation


def test_episodes_added_at_once_by_a_process_without_the_lock_are_both_in_the_dataset(tmp_path, monkeypatch):
    """Another process publishes a version after this one has read which version is current."""
    root = tmp_path / "local"
    append_episodes("local/own", rollout(1), root=root)
    claim, others = disk.claim, []

    def claimed_late(folder):
        if folder.name.startswith("build-") and not others:
            others.append(folder)
            monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: None)
            append_episodes("local/own", rollout(2), root=root)
        return claim(folder)

    monkeypatch.setattr(disk.claims, "claim", claimed_late)
    append_episodes("local/own", rollout(3), root=root)
    rewards = load("local/own", root=root, download=False)[:]["next", "reward"].flatten().tolist()
    assert sorted(rewards) == [1.0, 2.0, 3.0]
    assert [path.name for path in (root / "own").iterdir() if path.name.startswith(("build-", "recorded"))] == []


def rollout(reward):
    """Return an episode of one step with a reward."""
    done = torch.tensor([[True]])
    following = {"observation": torch.ones(1, 1), "reward": torch.full((1, 1), float(reward)), "done": done}
    return TensorDict({"observation": torch.zeros(1, 1), "action": torch.zeros(1, 1), "next": following}, [1])


def test_episodes_that_are_added_to_a_part_have_numbers_of_their_own(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "dataset.toml").write_text('alignment = "one-more"\n[episodes]\nby = "file"\n')
    for number in range(3):
        states = np.full((5, 1), number, np.float32)
        np.savez(files / f"{number}.npz", observation=states, action=states[1:], reward=np.ones(4, np.float32))
    download("local/a", from_local=files, selection=Selection(episodes=[0, 2]))
    append_episodes("local/a", load("local/a")[:8])

    numbers = load("local/a").episodes.numbers.tolist()
    assert numbers == [0, 2, 3, 4]
    assert load("local/a", selection=Selection(episodes=2))["observation"].unique().tolist() == [2]


def test_numbers_of_earlier_episodes_do_not_change_where_each_file_counts_from_0(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "dataset.toml").write_text('license = "MIT"\n')
    ends = np.array([0, 1, 0, 0, 1], bool)
    for number in range(2):
        states = np.arange(5, dtype=np.float32)[:, None] + 10 * number
        arrays = {"observations": states, "actions": states, "rewards": np.ones(5, np.float32), "terminals": ends}
        np.savez(files / f"{number}.npz", **arrays)
    download("local/a", from_local=files)
    before = load("local/a").episodes
    append_episodes("local/a", load("local/a")[:2].exclude(("next", "final_known")))

    after = load("local/a").episodes
    assert before["source"].tolist() == [0, 1, 0, 1]
    assert (before.numbers.tolist(), after.numbers.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3, 4])
