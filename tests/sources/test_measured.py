"""Measured matches: states and next observations of the user's own files against the observations, at three lags."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import describe_files, draft_description

LENGTHS = [20, 12, 16]
ROWS = sum(LENGTHS)
STOPS = np.cumsum(LENGTHS)
LAST = np.isin(np.arange(ROWS), STOPS - 1)
WALKS = [np.cumsum(np.random.default_rng(n).normal(size=(length + 1, 4)), 0) for n, length in enumerate(LENGTHS)]
"""States of each episode, [T + 1, 4]: two positions and two velocities."""
BEFORE = np.concatenate([walk[:-1] for walk in WALKS])
AFTER = np.concatenate([walk[1:] for walk in WALKS])
PRECEDING = np.concatenate([walk[[0, *range(len(walk) - 2)]] for walk in WALKS])
BASE = {"obs": BEFORE, "action": np.arange(ROWS), "reward": np.zeros(ROWS), "dones": LAST}


@pytest.fixture
def convert(tmp_path):
    """A function that writes arrays and a description, and converts them."""

    def run(arrays, text=None):
        np.savez(tmp_path / "a.npz", **arrays)
        if text is not None:
            (tmp_path / "dataset.toml").write_text(text)
        path = tmp_path if text is not None else tmp_path / "a.npz"
        return StoredDataset(download(str(path), settings=Settings(home=tmp_path / "home", progress=False, jobs=1)))

    return run


def rules(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


def test_next_observations_of_the_following_rows_are_recorded_and_shown(convert, tmp_path):
    stored = convert({**BASE, "next_obs": AFTER})

    assert rules(stored)["next-observation-measured"] == ROWS - 2 * len(LENGTHS)
    assert describe_files(tmp_path / "a.npz").measured == (
        "next_obs is obs of the following row (42 rows, 42 rows compared)",
    )


@pytest.mark.parametrize("text", [None, '[fields]\n"next.observation" = "next_obs"'])
@pytest.mark.parametrize(("values", "role"), [(BEFORE, "obs of the same row"), (PRECEDING, "obs of the preceding row")])
def test_next_observations_of_another_row_are_refused(convert, values, role, text):
    with pytest.raises(ConversionError, match=f"next_obs is not the observation after the step: next_obs is {role}"):
        convert({**BASE, "next_obs": values}, text)


def test_next_observations_of_steps_alone_must_not_repeat_the_observations(convert):
    with pytest.raises(ConversionError, match="obs of the same row"):
        convert({**BASE, "dones": np.ones(ROWS, bool), "next_obs": BEFORE})


def test_next_observations_of_steps_alone_may_differ(convert):
    assert convert({**BASE, "dones": np.ones(ROWS, bool), "next_obs": AFTER}).episodes.lengths.tolist() == [1] * ROWS


def test_next_observations_by_seams_must_not_repeat_the_observations(convert):
    with pytest.raises(ConversionError, match="obs of the same row"):
        convert({**BASE, "next_obs": BEFORE}, '[episodes]\nby = "seams"')


def test_rows_in_no_order_are_refused_with_the_way_out(convert):
    order = np.random.default_rng(0).permutation(ROWS)
    arrays = {name: values[order] for name, values in {**BASE, "next_obs": AFTER}.items()}

    with pytest.raises(ConversionError, match="next_obs matches obs at no lag") as caught:
        convert(arrays)
    assert 'by = "seams"' in str(caught.value.remedy)
    stored = convert(arrays, '[episodes]\nby = "seams"')
    assert stored.episodes.lengths.sum() == ROWS
    assert stored.episodes["final_known"].all()


def test_observations_that_do_not_change_show_no_lag(convert):
    stored = convert({**BASE, "obs": np.ones((ROWS, 2)), "next_obs": np.ones((ROWS, 2))})

    assert "next-observation-measured" not in rules(stored)


@pytest.mark.parametrize("observed", [slice(None), slice(1, 3)])
@pytest.mark.parametrize("name", ["states", "infos/qpos", "qpos"])
def test_states_before_the_actions_are_recorded_and_shown(convert, tmp_path, name, observed):
    stored = convert({**BASE, "obs": BEFORE[:, observed], name: BEFORE})

    key = ("info", name.rpartition("/")[2])
    np.testing.assert_array_equal(stored.column(key), BEFORE)
    assert rules(stored)["states-measured"] == 42
    assert "obs of the same row" in describe_files(tmp_path / "a.npz").measured[0]


@pytest.mark.parametrize("name", ["states", "infos/qpos"])
@pytest.mark.parametrize(
    ("values", "when"), [(AFTER, "is from after the action"), (PRECEDING, "is from before the prec")]
)
def test_states_of_another_row_are_refused_and_asked_for(convert, tmp_path, name, values, when):
    root = name.partition("/")[0]
    with pytest.raises(ConversionError, match=f"{root} {when}") as caught:
        convert({**BASE, name: values})

    inner = ".qpos" if root == "infos" else ""
    assert f'states_after{inner} = "{name}"' in str(caught.value.remedy)
    assert f'[fields], states_after{inner} = "{name}" for states after' in draft_description(tmp_path / "a.npz").text
    answer = f'[fields]\nstates_after{inner} = "{name}"'
    assert convert({**BASE, name: values}, answer).column(("states_after", "qpos")[: 1 + bool(inner)]).shape == (
        ROWS,
        4,
    )


def test_states_after_the_actions_are_a_field_of_the_step(convert):
    stored = convert({**BASE, "states": AFTER}, '[fields]\nstates_after = "states"')

    np.testing.assert_array_equal(stored.column(("states_after",)), AFTER)


def test_states_that_match_no_observation_are_asked_for_until_they_are_stated(convert):
    other = np.cumsum(np.random.default_rng(9).normal(size=(ROWS, 3)), 0)
    with pytest.raises(ConversionError, match="states may be from before or after the action") as caught:
        convert({**BASE, "states": other})
    assert 'info.states = "states" for states before the actions' in str(caught.value.remedy)

    assert "states-measured" not in rules(convert({**BASE, "states": other}, '[fields]\ninfo.states = "states"'))


def test_states_with_one_more_row_than_steps_are_compared_in_their_own_rows(convert):
    stored = convert({**BASE, "obs": np.concatenate(WALKS), "infos/qpos": np.concatenate(WALKS)[:, :2]})

    assert rules(stored)["states-measured"] == 42
    assert stored.episodes["final_known"].all()


def test_groups_of_episodes_are_compared_together(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, walk in enumerate(WALKS):
            file[f"demo_{number}/obs/joints"] = walk[:-1, :2]
            file[f"demo_{number}/states/robot/root"] = np.ones((len(walk) - 1, 3))
            file[f"demo_{number}/states/robot/joints"] = walk[1:, :2]
            file[f"demo_{number}/actions"] = np.zeros((len(walk) - 1, 1))

    with pytest.raises(ConversionError, match="states is from after the action: states is obs/joints of the following"):
        describe_files(tmp_path / "a.h5")


def test_files_that_are_too_short_to_compare_are_counted(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, length in enumerate((20, 3, 0, 1)):
        walk = WALKS[0][: length + 1]
        np.savez(folder / f"{number}.npz", obs=walk, states=walk, action=np.zeros((length, 1)))

    stored = StoredDataset(download(str(folder), settings=Settings(home=tmp_path / "home", progress=False, jobs=1)))

    assert stored.episodes.lengths.tolist() == [20, 3, 1]
    assert rules(stored)["states-measured"] == 18
    assert rules(stored)["states-not-measured"] == 2
