"""What the length of episodes has to do with the scores of checks."""

from __future__ import annotations

import clean
import numpy as np
import pytest
from length_table import auc, cut, scored
from planting import audited, load_faults

from datasets_rl.auditing.lengths import control, rank_correlation, without_length

LENGTHS = np.arange(20, 60)


def test_the_rank_correlation_is_that_of_ranks_where_equal_values_have_their_mean_rank():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: Pearson's correlation of these is 4.5 / sqrt(4.5 * 5).
    assert rank_correlation(np.array([0.0, 5, 5, 1e6]), np.array([1.0, 2, 3, 4])) == pytest.approx(np.sqrt(0.9))
    assert rank_correlation(np.array([3.0, 2, 1]), np.array([1.0, 2, 9])) == pytest.approx(-1)
    assert rank_correlation(np.array([3.0, 3, 3]), np.array([1.0, 2, 9])) is None
    assert rank_correlation(np.zeros(0), np.zeros(0)) is None


def test_a_score_that_is_the_length_names_the_longest_and_no_named_episode_stands_out():
    lengths = np.arange(100, 500)
    score = lengths + np.random.default_rng(0).normal(size=400)
    found = control("noise", "", score, lengths >= 480, lengths)

    assert found is not None
    assert found.correlation > 0.95
    assert found.named == 20
    assert found.standing is not None
    assert found.standing <= 4
    assert str(found).endswith("of 20 named still stand out: the length may be why they are named")


def test_an_outlier_stands_out_in_a_score_that_grows_with_the_length_too():
    score = 0.1 * LENGTHS + np.random.default_rng(0).normal(size=40)
    score[[4, 30]] += 20
    found = control("noise", "observation", score, np.isin(np.arange(40), [4, 30]), LENGTHS)

    assert found is not None
    assert (found.named, found.standing) == (2, 2)
    assert str(found).startswith("noise, observation: rank correlation of score and length of the episodes 0.")
    assert str(found).endswith("apart from the length, 2 of 2 named still stand out")


def test_a_check_without_a_score_is_controlled_by_what_it_names():
    found = control("copies", "", None, LENGTHS >= 50, LENGTHS)

    assert found is not None
    assert (found.scored, found.named, found.standing) == (False, 10, None)
    assert found.correlation > 0.7
    assert "being named" in str(found)


def test_episodes_of_one_length_have_no_control_and_keep_their_scores():
    equal = np.full(6, 10)

    assert control("noise", "", np.arange(6.0), np.ones(6, np.bool_), equal) is None
    np.testing.assert_array_equal(without_length(np.arange(6.0), equal), np.arange(6.0))


@pytest.mark.parametrize(
    "name", ["sensor_sticks", "infinite_states", "spikes_in_actions", "actions_too_large", "pause"]
)
def test_the_score_of_a_planted_episode_is_above_that_of_the_others(name):
    fault = load_faults()[name]
    recording = cut(clean.record("maze", 40, 3), np.random.default_rng(1))
    planted = fault.plant(recording, "medium", np.random.default_rng(1))
    score = scored(planted.recording, fault.check)
    truth = np.isin(np.arange(40), list(planted.episodes))
    controls = [one for one in audited(planted.recording, [fault.check]).lengths if one.named]

    assert score is not None
    assert auc(score, truth) > 0.95
    assert [one.standing for one in controls] == [len(planted.episodes)]
