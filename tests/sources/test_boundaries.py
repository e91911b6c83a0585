"""Boundaries of episodes in the user's own files: certain evidence is used, doubtful evidence is refused."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest

from datasets_rl import downloading, verification
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import check_files, describe_files, draft_description

LENGTHS = [3, 5, 2]
ROWS = sum(LENGTHS)
STARTS, STOPS = np.cumsum([0, *LENGTHS[:-1]]), np.cumsum(LENGTHS)


def flags_at(rows):
    return np.isin(np.arange(ROWS), rows)


def flat(more=0, **others):
    """Return arrays of three episodes, with the numbers of their rows; `more` is the number of final rows."""
    rows = np.arange(ROWS + more * len(LENGTHS), dtype=np.float32)
    return {"obs": np.stack([rows, -rows], 1), "actions": 100 + np.arange(ROWS)[:, None], **others}


def batch(more=0, **others):
    """Return the arrays of 4 episodes of 3 rows, [4, 3, ...]."""
    obs = np.arange(4 * (3 + more) * 2, dtype=np.float32).reshape(4, 3 + more, 2)
    return {"obs": obs, "actions": np.arange(4 * 3).reshape(4, 3, 1), **others}


@pytest.fixture
def convert(tmp_path):
    """A function that writes arrays and a description, converts them, and verifies the stored dataset."""

    def run(arrays, text="", name="a.npz"):
        folder = tmp_path / "mine"
        folder.mkdir()
        if name.endswith("npz"):
            np.savez(folder / name, **arrays)
        else:
            with h5py.File(folder / name, "w") as file:
                for array, values in arrays.items():
                    file[array] = values
        if text is not None:
            (folder / "dataset.toml").write_text(text)
        settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
        made = downloading.download("local/mine", from_local=folder, settings=settings)
        assert verification.verify(made, deep=True, settings=settings).problems == ()
        return StoredDataset(made)

    return run


def rules(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


MARKS = {
    "flags of first rows": {"episode_starts": flags_at(STARTS)},
    "flags of first rows as numbers": {"is_first": flags_at(STARTS).astype(np.float32)},
    "first rows": {"ep_start": STARTS},
    "rows after the last ones": {"episode_ends": STOPS},
    "last rows": {"traj_ends": STOPS - 1},
    "flags of last rows": {"is_last": flags_at(STOPS - 1)},
    "lengths": {"episode_lengths": np.array(LENGTHS)},
    "lengths of trajectories": {"traj_lengths": np.array(LENGTHS, np.int32)[:, None]},
    "a number for each row": {"trajectory_id": np.repeat([7, 8, 9], LENGTHS)},
    "steps of each row": {"timestep": np.concatenate([np.arange(length) for length in LENGTHS])},
    "two arrays that agree": {"episode_starts": flags_at(STARTS), "episode_lengths": np.array(LENGTHS)},
    "where imitation splits": {"indices": STOPS[:-1]},
}


@pytest.mark.first(1, of="marks")
@pytest.mark.parametrize("text", ["", None], ids=["an empty description", "no description"])
@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_an_array_that_certainly_marks_episodes_is_used(convert, marks, text):
    stored = convert(flat(**marks), text)

    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(stored.column(("observation",))[:, 0], np.arange(ROWS))


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        ({"episode_lengths": np.array([3, 5, 3])}, "expected the lengths of episodes of 10 rows"),
        ({"episode_starts": np.array([0, 5, 3])}, "expected the starts of episodes"),
        ({"episode_starts": flags_at(STARTS[1:])}, "expected the starts of episodes"),
        ({"episodes": np.array([1, 2, 3])}, r"episodes is int64 \[3\], expected the"),
        ({"indices": np.array([2, 7, 9])}, "marks episodes by starts or by last-rows"),
        (
            {"episode_starts": flags_at(STARTS), "episode_lengths": np.array([5, 3, 2])},
            "expected equal ends of episodes",
        ),
        ({"dones": flags_at(STARTS)}, "dones is set in the first row and not in the last row"),
        ({"dones": flags_at([3]), "episode_starts": flags_at(STARTS)}, "within an episode"),
        ({"terminal": np.array([True, False])}, "expected a flag for each of 10 rows"),
    ],
)
def test_marks_that_do_not_fit_or_contradict_each_other_are_refused(convert, marks, problem):
    with pytest.raises(ConversionError, match=problem):
        convert(flat(**marks))


def test_the_layout_of_imitation_is_read_with_the_flag_of_each_episode(convert):
    infos = np.array([{}] * ROWS, dtype=object)
    others = {"acts": np.arange(ROWS), "rews": np.ones(ROWS), "infos": infos, "indices": STOPS[:-1]}
    arrays = flat(more=1, terminal=np.array([True, False, True]), **others)
    del arrays["actions"]

    stored = convert(arrays, None)

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert stored.episodes["final_known"].all()
    assert np.flatnonzero(stored.column(("next", "terminated"))[:, 0]).tolist() == [2, 9]
    assert rules(stored)["left-out"] == 1


def test_values_of_each_episode_are_left_out_and_counted(convert):
    arrays = flat(episode_starts=flags_at(STARTS), episode_returns=np.array([1.5, 2.5, 0.5]))

    assert rules(convert(arrays))["left-out"] == 1


def test_files_without_rewards_have_zeros_that_are_counted(convert):
    stored = convert(flat(episode_lengths=np.array(LENGTHS)), None)

    assert not stored.column(("next", "reward")).any()
    assert rules(stored)["no-reward"] == ROWS


@pytest.mark.parametrize("others", [{}, {"note": np.array(["a"] * ROWS)}])
def test_an_array_that_may_be_the_reward_must_be_described(convert, others):
    with pytest.raises(ConversionError, match="scores may be the reward"):
        convert(flat(episode_lengths=np.array(LENGTHS), scores=np.ones(ROWS), **others))


def test_a_batch_with_one_more_observation_is_a_batch_of_episodes(convert):
    stored = convert(batch(more=1), None)

    assert stored.episodes.lengths.tolist() == [3, 3, 3, 3]
    np.testing.assert_array_equal(stored.column(("action",))[:, 0], np.arange(12))
    np.testing.assert_array_equal(stored.column(("observation",))[3], batch(more=1)["obs"][1, 0])
    assert stored.episodes["final_known"].all()


@pytest.mark.parametrize("others", [{}, {"rewards": np.ones((4, 3))}, {"dones": np.zeros((4, 3), bool)}])
def test_equal_second_axes_are_refused_until_the_axis_is_stated(convert, others):
    arrays = batch(**others)
    with pytest.raises(ConversionError, match="the second axis may count rows, or agents") as caught:
        convert(arrays)
    assert 'by = "axis"' in str(caught.value.hint)


def test_a_stated_axis_is_used(convert):
    assert convert(batch(), '[episodes]\nby = "axis"').episodes.lengths.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "padding",
    [
        {"lengths": np.array([3, 1, 2, 3])},
        {"mask": np.arange(3) < np.array([3, 1, 2, 3])[:, None]},
        {"valid": (np.arange(3) < np.array([3, 1, 2, 3])[:, None]).astype(np.int64), "lengths": np.array([3, 1, 2, 3])},
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_padding_is_left_out(convert, padding, more):
    stored = convert(batch(more, rewards=np.ones((4, 3)), **padding))

    assert stored.episodes.lengths.tolist() == [3, 1, 2, 3]
    assert stored.column(("action",))[:, 0].tolist() == [0, 1, 2, 3, 6, 7, 9, 10, 11]
    assert stored.column(("observation",))[3].tolist() == batch(more)["obs"][1, 0].tolist()


@pytest.mark.parametrize(
    ("padding", "problem"),
    [
        ({"lengths": np.array([3, 1, 2, 4])}, "expected 4 numbers from 0 to 3"),
        ({"mask": np.eye(4, 3, dtype=bool)}, "has steps after padding"),
        ({"mask": np.ones((4, 3), bool), "lengths": np.array([3, 1, 2, 3])}, "expected equal lengths"),
    ],
)
def test_padding_that_contradicts_itself_is_refused(convert, padding, problem):
    with pytest.raises(ConversionError, match=problem):
        convert(batch(1, **padding))


@pytest.mark.first(1, of=("name", "pattern"))
@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
@pytest.mark.parametrize("pattern", ["demo_{}/{}", "data/episode_{}/{}", "{1}_{0}"])
@pytest.mark.parametrize("more", [0, 1])
def test_groups_and_arrays_of_each_episode_are_episodes_in_numeric_order(convert, name, pattern, more):
    lengths = [*range(2, 13)]
    arrays = {}
    for episode, length in enumerate(lengths):
        arrays[pattern.format(episode, "obs")] = np.full((length + more, 2), episode, np.float32)
        arrays[pattern.format(episode, "action")] = np.full(length, episode)

    stored = convert(arrays, None, name)

    assert stored.episodes.lengths.tolist() == lengths
    assert stored.column(("action",)).reshape(-1).tolist() == np.repeat(np.arange(11), lengths).tolist()
    assert stored.episodes["final_known"].all() == bool(more)


def test_numbers_that_may_be_those_of_agents_are_refused_until_they_are_stated(convert, tmp_path):
    arrays = {f"{name}_{number}": np.ones((4, 2)) for name in ("obs", "action") for number in (0, 1)}
    with pytest.raises(ConversionError, match="may count episodes, agents or sensors"):
        convert(arrays)
    (tmp_path / "mine" / "a.npz").unlink()
    (tmp_path / "mine" / "dataset.toml").unlink()
    (tmp_path / "mine").rmdir()
    assert convert(arrays, '[episodes]\nby = "suffix"').episodes.lengths.tolist() == [4, 4]


def test_groups_are_chosen_by_a_pattern(convert):
    arrays = {
        f"runs/{kind}_{n}/{array}": np.ones((3 + n, 1))
        for kind in "ab"
        for n in range(2)
        for array in ("obs", "action")
    }

    stored = convert(arrays, '[episodes]\nby = "group"\narray = "runs/a_*"', "a.hdf5")

    assert stored.episodes.lengths.tolist() == [3, 4]


def test_an_episode_that_lacks_an_array_or_has_other_rows_is_refused_with_its_name(convert):
    arrays = {f"demo_{n}/{array}": np.ones((3 + n, 1)) for n in range(3) for array in ("obs", "action")}
    arrays["demo_1/action"] = np.ones((2, 1))
    arrays["demo_2/action"] = np.ones((7, 1))
    with pytest.raises(ConversionError, match=r"in episode 1, \w+ has"):
        convert(arrays, "", "a.hdf5")


def test_episodes_end_where_the_next_observation_is_not_the_following_one(convert):
    arrays = flat(rewards=np.ones(ROWS))
    after = np.roll(arrays["obs"], -1, axis=0)
    after[STOPS - 1] += 50
    arrays["next_obs"] = after

    stored = convert(arrays, '[episodes]\nby = "seams"')

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert stored.episodes["source"].tolist() == [0, 1, 2]
    assert rules(stored)["by-seams"] == 3


def test_chunks_of_actions_are_a_field(convert):
    arrays = {"observations": np.ones((16, 7)), "actions": np.ones((16, 16, 2)), "dones": np.arange(16) % 4 == 3}

    assert convert(arrays).episodes.lengths.tolist() == [4, 4, 4, 4]


def test_a_seed_in_the_info_of_each_episode_is_left_out(tmp_path):
    episodes = {
        number: {
            "observations": np.random.default_rng(number).normal(size=(length, 2)),
            "actions": np.zeros((length, 1)),
        }
        | {"rewards": np.arange(float(length)), "info": {"seed": number}}
        for number, length in ((10, 4), (2, 6))
    }
    (tmp_path / "data.pkl").write_bytes(pickle.dumps(episodes))

    drafted = draft_description(tmp_path / "data.pkl")
    found = check_files(tmp_path / "data.pkl")
    (tmp_path / "dataset.toml").write_text(drafted.text)

    assert drafted.questions == ()
    assert found.episodes == check_files(tmp_path).episodes == 2
    assert [use.array for use in found.description.left_out] == ["info/seed"]


@pytest.mark.parametrize("text", ['reward = ""', 'info.x = ""', 'info.x = { array = "" }', 'info.x = ["obs", ""]'])
def test_a_field_without_a_name_of_an_array_is_refused(convert, text):
    with pytest.raises(ConversionError, match="expected the name of an array"):
        convert(flat(dones=flags_at(STOPS - 1)), f"[fields]\n{text}")


@pytest.mark.parametrize("text", [None, '[episodes]\nby = "flags"'])
def test_an_end_without_a_flag_is_named_before_a_download_with_the_line_that_helps(tmp_path, text):
    observations = np.random.default_rng(0).normal(size=(ROWS + 3, 2))
    first = np.arange(ROWS) + np.repeat(np.arange(3), LENGTHS)
    arrays = flat(dones=flags_at(STOPS[[0, 2]] - 1), next_obs=observations[first + 1]) | {"obs": observations[first]}
    np.savez(tmp_path / "a.npz", **arrays)
    if text:
        (tmp_path / "dataset.toml").write_text(text)

    match = r"next_obs of row 7 is not obs of row 8 \(the only such row\): an episode ends there without a flag"
    with pytest.raises(ConversionError, match=match) as caught:
        describe_files(tmp_path)

    assert 'by = "seams"' in str(caught.value.remedy)
    (tmp_path / "dataset.toml").write_text('[episodes]\nby = "seams"')
    assert check_files(tmp_path).episodes == 3
