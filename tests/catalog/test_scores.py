"""The interquartile mean and its bootstrap interval, compared with SciPy and with the normal approximation."""

from __future__ import annotations

import numpy as np
import pytest

from datasets_rl import interquartile_mean
from datasets_rl.errors import InvalidArgumentError


@pytest.mark.parametrize("shape", [(1,), (3,), (8,), (5, 3)])
def test_the_value_is_the_mean_without_the_outer_quarters(shape):
    from scipy import stats

    scores = np.random.default_rng(0).normal(size=shape)

    assert interquartile_mean(scores).value == pytest.approx(stats.trim_mean(scores, 0.25, axis=None))


def test_the_interval_of_many_scores_is_that_of_the_trimmed_mean():
    from scipy import stats

    scores = np.random.default_rng(0).normal(50, 10, 400)
    found = interquartile_mean(scores, resamples=4000)
    middle = stats.mstats.trimmed_mean_ci(scores, limits=(0.25, 0.25))

    assert (found.low, found.high) == pytest.approx(tuple(middle), abs=0.15)
    assert found == interquartile_mean(scores, resamples=4000)


def test_tasks_are_resampled_separately():
    scores = np.tile([0.0, 100.0, 10.0, 20.0], (5, 1))  # without noise in a task, the interval has no width

    assert (found := interquartile_mean(scores)).low == found.high == found.value == 15


@pytest.mark.parametrize("scores", [[], [1.0, float("nan")], np.zeros((2, 2, 2)), 3.0])
def test_scores_that_have_no_average_are_refused(scores):
    with pytest.raises(InvalidArgumentError, match="expected finite scores of runs"):
        interquartile_mean(scores)


@pytest.mark.parametrize("options", [{"confidence": 0}, {"confidence": 1.0}, {"resamples": 0}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(InvalidArgumentError, match="expected 0 < confidence < 1"):
        interquartile_mean([1.0, 2.0], **options)
