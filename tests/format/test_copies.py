"""The rule for copies of episodes: which fields count, in a dataset and in two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stored_data import Trajectory, trajectory, write_dataset

from datasets_rl.format.copies import first_copies, groups_of_copies, joined, shared_episodes, telling_fingerprints
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable

OBSERVATION, ACTION = ("observation",), ("action",)


def episodes(*seeds):
    return [trajectory(10, seed=seed) for seed in seeds]


def changed(one: Trajectory, key, change) -> Trajectory:
    kind = "states" if key in one.states else "steps"
    arrays = getattr(one, kind)
    return replace(one, **{kind: {**arrays, key: change(arrays[key]).astype(arrays[key].dtype)}})


def prints_of(folder, parts):
    return telling_fingerprints(write_dataset(folder, parts))


def copies_in(folder, parts):
    return groups_of_copies(first_copies(prints_of(folder, parts)))


def test_copies_are_grouped_by_their_first(tmp_path):
    assert copies_in(tmp_path / "toy", episodes(0, 1, 2, 1, 3, 0, 1)) == [[0, 5], [1, 3, 6]]


@pytest.mark.parametrize(
    ("key", "expected"),
    [(("next", "reward"), [[0, 2]]), (ACTION, []), (OBSERVATION, [])],
)
def test_other_rewards_make_no_other_episode(key, expected, tmp_path):
    first, second = episodes(0, 1)
    assert copies_in(tmp_path / "toy", [first, second, changed(first, key, lambda values: values + 0.25)]) == expected


def test_equal_rewards_alone_make_no_copy(tmp_path):
    first, second = episodes(0, 1)
    second = replace(second, steps={**second.steps, ("next", "reward"): first.steps["next", "reward"]})
    assert copies_in(tmp_path / "toy", [first, second]) == []


def test_selected_episodes_are_copies_and_parts_of_episodes_are_not(tmp_path):
    stored = write_dataset(tmp_path / "toy", episodes(5, 0, 0, 1))
    whole = RowRanges(np.array([10, 20]), np.array([10, 10]))
    parts = RowRanges(np.array([10, 20]), np.array([9, 9]))
    for rows, expected in ((whole, [[0, 1]]), (parts, [])):
        prints = telling_fingerprints(stored, rows, EpisodeTable.from_lengths(rows.lengths))
        assert groups_of_copies(first_copies(prints)) == expected


def test_the_copies_in_another_dataset_are_whole_or_equal_in_some_fields(tmp_path):
    first = episodes(*range(8))
    half = changed(first[5], OBSERVATION, lambda values: values * 2)
    other = [*episodes(20, 2), half, *episodes(21)]
    (shared,) = shared_episodes([prints_of(tmp_path / "first", first), prints_of(tmp_path / "other", other)])

    assert shared.pairs.tolist() == [[2, 1], [5, 2]]
    assert shared.whole.tolist() == [True, False]
    assert shared.fields == ("action",)
    assert len(shared) == 2


def test_a_script_that_several_episodes_follow_is_no_evidence(tmp_path):
    script = episodes(99)[0].steps[ACTION]
    scripted = [changed(one, ACTION, lambda _: script) for one in episodes(*range(8))]
    parts = [prints_of(tmp_path / "first", scripted[:4]), prints_of(tmp_path / "second", scripted[4:])]

    assert shared_episodes(parts) == ()


def test_labels_that_overlap_are_joined_through_others():
    assert joined([np.array([0, 0, 1, 2, 3]), np.array([5, 6, 6, 7, 8])]).tolist() == [0, 0, 0, 3, 4]
