"""Odd files that people have: what the draft of a description asks, and what the answers give."""

from __future__ import annotations

import pickle
import re

import h5py
import numpy as np
import pandas as pd
import pytest

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import check_files, draft_description

LENGTHS = [20, 30, 15]
ROWS = sum(LENGTHS)
STOPS = np.cumsum(LENGTHS)
STATES = [np.cumsum(np.random.default_rng(n).normal(size=(length + 1, 3)), 0) for n, length in enumerate(LENGTHS)]
OBS = np.concatenate([states[:-1] for states in STATES])
NEXT_OBS = np.concatenate([states[1:] for states in STATES])
ACTIONS = [np.random.default_rng(n).normal(size=(length, 2)) for n, length in enumerate(LENGTHS)]
ACTION = np.concatenate(ACTIONS)
LAST = np.isin(np.arange(ROWS) + 1, STOPS)


def converted(tmp_path, path):
    return StoredDataset(download(str(path), settings=Settings(home=tmp_path / "home", progress=False, jobs=1)))


def answered(path, **answers):
    """Write the draft of a file as a person does: each question about an array has its answer."""
    text = draft_description(path).text
    for array, key in answers.items():
        text, count = re.subn(rf'^# \.\.\. = "{array}"', f'{key} = "{array}"', text, flags=re.MULTILINE)
        assert count == 1, array
    (path.parent / "dataset.toml").write_text(text)
    return check_files(path.parent)


def test_letters_of_hindsight_replay_are_answered_in_four_words(tmp_path):
    whole = {
        "o": np.random.default_rng(0).normal(size=(3, 6, 4)),
        "u": np.zeros((3, 5, 2)),
        "g": np.ones((3, 5, 2)),
        "ag": np.zeros((3, 6, 2)),
    }
    np.savez(tmp_path / "her.npz", **whole)
    drafted = draft_description(tmp_path / "her.npz")

    found = answered(tmp_path / "her.npz", o="observation", u="action", g="desired_goal", ag="achieved_goal")

    assert '\n# by = "file"' in drafted.text
    assert "o may be the observation" in drafted.questions
    assert (found.description.by, found.episodes, found.lengths["max"]) == ("axis", 3, 5)
    assert found.last.final is not None


def test_a_description_without_a_way_is_checked_for_jumps(tmp_path):
    np.savez(tmp_path / "a.npz", x=OBS + 99 * np.repeat([0, 1, 2], LENGTHS)[:, None], u=ACTION)

    with pytest.raises(ConversionError, match="x jumps before row 20, 50"):
        answered(tmp_path / "a.npz", x="observation", u="action")


def test_a_buffer_of_a_single_environment_has_rows(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        observations=OBS[:, None],
        next_observations=NEXT_OBS[:, None],
        actions=ACTION[:, None],
        rewards=np.ones((ROWS, 1)),
        dones=LAST[:, None],
        timeouts=np.zeros((ROWS, 1)),
    )

    stored = converted(tmp_path, tmp_path / "a.npz")

    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(stored.column(("observation",))[:, 0], OBS)


def test_a_batch_of_single_steps_without_flags_is_asked_for(tmp_path):
    np.savez(tmp_path / "a.npz", observations=OBS[:, None], actions=ACTION[:, None], rewards=np.ones((ROWS, 1)))

    with pytest.raises(ConversionError, match="may count rows, or agents"):
        converted(tmp_path, tmp_path / "a.npz")


def test_the_line_that_saves_python_objects_gives_a_file_that_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    episodes = [{"obs": states[:-1], "act": actions} for states, actions in zip(STATES, ACTIONS, strict=True)]
    np.savez("mine.npz", trajectories=np.array(episodes, object))

    (question,) = draft_description("mine.npz").questions
    exec(question.partition("save the episodes as arrays, ")[2], {})  # the line that a person copies
    (saved,) = tmp_path.glob("episodes.np*")

    assert "Python objects are not read" in question
    assert converted(tmp_path, saved).episodes.lengths.tolist() == LENGTHS


def test_a_pickle_of_episodes_with_a_success_each_has_episodes(tmp_path):
    episodes = [
        {"observations": states[:-1], "actions": actions, "success": number == 1}
        for number, (states, actions) in enumerate(zip(STATES, ACTIONS, strict=True))
    ]
    (tmp_path / "demos.pkl").write_bytes(pickle.dumps(episodes))

    stored = converted(tmp_path, tmp_path / "demos.pkl")

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert stored.episodes["success"].tolist() == [False, True, False]


def test_a_folder_of_several_formats_shows_the_arrays_of_each(tmp_path):
    np.savez(tmp_path / "train.npz", obs=OBS, act=ACTION, done=LAST)
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file["w"] = np.ones((3, 3))
    drafted = draft_description(tmp_path)

    assert drafted.questions == ("which format has the data?",)
    assert '# format = "hdf5"    # model.h5: w float64 [3, 3]' in drafted.text
    (tmp_path / "dataset.toml").write_text(drafted.text.replace('# format = "npz"', 'format = "npz"'))
    assert check_files(tmp_path).episodes == 3


@pytest.mark.parametrize("name", ["index", "row", "global_index", "step", "t", "frame_index"])
def test_a_number_of_each_row_is_no_question(tmp_path, name):
    frame = pd.DataFrame(
        {name: np.arange(ROWS), "state_0": OBS[:, 0], "state_1": OBS[:, 1], "action_0": 0.5, "done": LAST}
    )
    frame = frame.rename(columns={"action_0": "action"})
    frame.to_csv(tmp_path / "a.csv", index=False)

    assert draft_description(tmp_path / "a.csv").questions == ()
    assert converted(tmp_path, tmp_path / "a.csv").episodes.lengths.tolist() == LENGTHS


def test_numbers_of_steps_that_agree_with_the_episodes_are_no_question(tmp_path):
    frame = pd.DataFrame(
        {"state_0": OBS[:, 0], "state_1": OBS[:, 1], "action": 0.5, "episode": np.repeat([3, 4, 5], LENGTHS)}
    )
    frame["step"] = np.concatenate([np.arange(length) for length in LENGTHS])
    frame.to_csv(tmp_path / "a.csv", index=False)

    assert draft_description(tmp_path / "a.csv").questions == ()


def test_observations_with_rows_of_episodes_more_say_what_they_may_be(tmp_path):
    np.savez(tmp_path / "a.npz", states=np.concatenate(STATES), actions=ACTION)

    text = draft_description(tmp_path / "a.npz").text

    assert "68 rows, for 65 rows of steps in 1 episode" in text
    assert "# if each of 3 episodes has one more observation than steps, add an array of the lengths" in text


@pytest.mark.parametrize("elements", [2, 3, 6])
def test_transposed_arrays_are_refused(tmp_path, elements):
    np.savez(tmp_path / "a.npz", obs=np.tile(OBS, 2)[:, :elements].T, actions=ACTION.T)

    assert "save the transposed arrays" in draft_description(tmp_path / "a.npz").text
    with pytest.raises(ConversionError, match="transposed arrays"):
        converted(tmp_path, tmp_path / "a.npz")


def test_a_short_episode_with_rewards_is_not_transposed(tmp_path):
    np.savez(tmp_path / "a.npz", obs=np.ones((4, 9)), actions=np.ones((4, 9)), rewards=np.ones(4))

    assert converted(tmp_path, tmp_path / "a.npz").episodes.lengths.tolist() == [4]


def test_a_file_of_text_names_the_writer(tmp_path):
    (tmp_path / "a.txt").write_text("the run of Monday\n0.5 1.5\n")

    with pytest.raises(ConversionError, match="store the episodes with EpisodeWriter"):
        draft_description(tmp_path / "a.txt")


@pytest.mark.parametrize("lag", [0, -1])
@pytest.mark.parametrize("layout", ["d4rl", "neorl"])
def test_shifted_next_observations_of_public_layouts_are_refused(tmp_path, layout, lag):
    after = OBS if lag == 0 else np.concatenate([states[[0, *range(len(states) - 2)]] for states in STATES])
    if layout == "neorl":
        arrays = {"obs": OBS, "next_obs": after, "action": ACTION, "reward": np.ones((ROWS, 1)), "done": LAST[:, None]}
        np.savez(tmp_path / "a.npz", **{**arrays, "done": LAST[:, None].astype(float)})
    else:
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            for name, values in {
                "observations": OBS,
                "next_observations": after,
                "actions": ACTION,
                "terminals": LAST,
            }.items():
                file[name] = values
            file["rewards"], file["timeouts"] = np.ones(ROWS), np.zeros(ROWS, bool)
    (path,) = tmp_path.iterdir()

    with pytest.raises(ConversionError, match=f"obs.* of the {'same' if lag == 0 else 'preceding'} row"):
        converted(tmp_path, path)


@pytest.mark.parametrize("group", ["data", "rollouts/train"])
def test_a_group_around_all_arrays_does_not_hide_their_names(tmp_path, group):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[f"{group}/obs/pos"], file[f"{group}/action"], file[f"{group}/done"] = OBS, ACTION, LAST

    stored = converted(tmp_path, tmp_path / "a.h5")

    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(stored.column(("observation", "pos")), OBS)


def test_discounts_of_zero_within_a_single_episode_are_refused(tmp_path):
    arrays = {"observation": np.tile(OBS[:1], (ROWS, 1)), "action": ACTION, "reward": np.ones(ROWS)}
    np.savez(tmp_path / "a.npz", **arrays, discount=1.0 - LAST)
    np.savez(tmp_path / "b.npz", **arrays, discount=1.0 - (np.arange(ROWS) == ROWS - 1))

    with pytest.raises(ConversionError, match=r"discount is 0 at row 19, as after a termination \(2 such rows\)"):
        converted(tmp_path, tmp_path / "a.npz")
    assert converted(tmp_path, tmp_path / "b.npz").episodes.lengths.tolist() == [ROWS]
