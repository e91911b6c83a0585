"""Batches of episodes that are padded with NaN: the padding is left out and counted, and doubtful padding is refused."""

from __future__ import annotations

import numpy as np
import pytest

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

LENGTHS = [12, 20, 7]
WIDTH = 20
_DRAW = np.random.default_rng(3)
OBS = [_DRAW.normal(size=(length + 1, 3)).cumsum(0) for length in LENGTHS]
ACT = [_DRAW.normal(size=(length, 2)) for length in LENGTHS]
REW = [_DRAW.normal(size=length) for length in LENGTHS]
AXIS = '[episodes]\nby = "axis"'


def padded(parts, width=WIDTH, value=np.nan):
    """Return episodes as an array with rows of a value after the rows of each episode, [E, width, ...]."""
    arrays = [
        np.concatenate([part, np.full((width - len(part), *part.shape[1:]), value, part.dtype)]) for part in parts
    ]
    return np.stack(arrays)


def batch(**others):
    """Return the arrays of three episodes without observations after the last actions."""
    return {"obs": padded([one[:-1] for one in OBS]), "actions": padded(ACT), "rewards": padded(REW), **others}


@pytest.fixture
def convert(tmp_path):
    """A function that writes arrays into a file, and downloads the folder."""

    def run(arrays, text=AXIS):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        np.savez(folder / "a.npz", **arrays)
        (folder / "dataset.toml").write_text(text)
        settings = Settings(home=tmp_path / "home", progress=False, jobs=1)
        return StoredDataset(download(str(folder), settings=settings))

    return run


def rules(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


def assert_steps(stored):
    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(stored.column(("action",)), np.concatenate(ACT))
    np.testing.assert_array_equal(np.asarray(stored.column(("next", "reward")))[:, 0], np.concatenate(REW))
    assert "not-finite" not in rules(stored)
    assert rules(stored)["nan-padding"] == 3 * WIDTH - sum(LENGTHS)


FLAG = [np.arange(length) == length - 1 for length in LENGTHS]
OTHERS = {
    "nothing": {},
    "flags of zeros": {"dones": padded(FLAG, value=False)},
    "flags that stay set": {"dones": padded(FLAG, value=True)},
    "a time of zeros": {"timestamps": padded([np.arange(length) / 10 + 1 for length in LENGTHS], value=0)},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_rows_in_which_all_fields_are_nan_are_left_out_and_counted(convert, others):
    assert_steps(convert(batch(**others)))


@pytest.mark.parametrize("value", [0, -1])
def test_actions_that_are_numbers_of_choices_are_padded_with_zero_or_minus_one(convert, value):
    choices = [np.arange(length) % 4 for length in LENGTHS]

    stored = convert(batch(actions=padded(choices, value=value)))

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert np.asarray(stored.column(("action",))).reshape(-1).tolist() == np.concatenate(choices).tolist()


def test_observations_with_a_row_more_than_the_actions_keep_the_row(convert):
    stored = convert(batch(obs=padded(OBS, WIDTH + 1)), text="")

    assert_steps(stored)
    assert rules(stored)["final-observation-kept"] == 3


def test_a_batch_without_nan_is_read_as_it_is(convert):
    stored = convert({"obs": np.ones((3, 5, 2)), "actions": np.ones((3, 5, 1)), "rewards": np.ones((3, 5))})

    assert stored.episodes.lengths.tolist() == [5, 5, 5]
    assert "nan-padding" not in rules(stored)


def test_nan_within_an_episode_is_no_padding(convert):
    arrays = batch()
    arrays["obs"][0, 3] = arrays["actions"][0, 3] = arrays["rewards"][0, 3] = np.nan

    stored = convert(arrays)

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert rules(stored)["not-finite"] == 6


def test_fields_that_end_before_the_others_are_refused_until_the_alignment_is_stated(convert):
    arrays = batch(obs=padded(OBS, WIDTH + 1), actions=padded(ACT, WIDTH + 1), rewards=padded(REW, WIDTH + 1))

    with pytest.raises(ConversionError, match=r"actions, rewards is NaN .* of 3 of 3 episodes.* episode 0, row 12"):
        convert(arrays)
    assert_last_rows(convert(arrays, f'alignment = "one-more"\n{AXIS}'))


def assert_last_rows(stored):
    assert stored.episodes.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(stored.column(("action",)), np.concatenate(ACT))
    assert rules(stored)["final-observation-kept"] == 3


def test_rewards_that_have_values_where_the_observations_are_nan_are_refused(convert):
    with pytest.raises(ConversionError, match="obs, actions is NaN in the last rows of 2 of 3 episodes"):
        convert(batch(rewards=padded(REW, value=1)))
