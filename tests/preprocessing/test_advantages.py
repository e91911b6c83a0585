"""Steps that add advantages and Monte-Carlo returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.preprocessing.recipe import Recipe
from datasets_rl.returns import generalized_advantage_estimate, td_lambda_return_estimate
from datasets_rl.ted.episode_batch import EpisodeBatch

REWARD = ("next", "reward")


def episodes(lengths, rewards, *, known=None, values=None, final_values=None, **steps):
    """Return episodes, of which the first is terminated, and the others are truncated."""
    lengths = np.array(lengths)
    count = int(lengths.sum())
    ends = np.zeros((count, 1), bool)
    ends[np.cumsum(lengths) - 1] = True
    terminated = ends & (np.arange(count) < lengths[0])[:, None]
    key = ("state_value",)
    return EpisodeBatch(
        lengths=lengths,
        steps={
            REWARD: np.reshape(rewards, (count, 1)).astype(np.float32),
            ("next", "terminated"): terminated,
            ("next", "truncated"): ends & ~terminated,
            **{tuple(name.split("__")): one for name, one in steps.items()},
        },
        states={} if values is None else {key: np.reshape(values, (count, 1)).astype(np.float32)},
        final_states={} if values is None else {key: np.reshape(final_values, (len(lengths), 1)).astype(np.float32)},
        final_known=np.ones(len(lengths), bool) if known is None else np.array(known),
        metadata={"source": np.arange(len(lengths))},
    )


def made(step, batch):
    return Recipe.inline([step])(batch).steps


def flat(values):
    return np.asarray(values).ravel().tolist()


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_stored_estimates_are_those_of_the_functions(lengths, seed):
    draw = np.random.default_rng(seed)
    count = sum(lengths)
    batch = episodes(
        lengths, draw.normal(size=count), values=draw.normal(size=count), final_values=draw.normal(size=len(lengths))
    )
    value, following, reward = (
        torch.from_numpy(each)
        for each in (batch.states["state_value",], batch.next_states(("state_value",)), batch.steps[REWARD])
    )
    done = torch.from_numpy(batch.steps["next", "terminated"] | batch.steps["next", "truncated"])
    terminated = torch.from_numpy(batch.steps["next", "terminated"])

    advantage, target = generalized_advantage_estimate(0.9, 0.8, value, following, reward, done, terminated)
    came = made("gae:0.9,0.8", batch)
    np.testing.assert_allclose(came["advantage",], advantage, atol=1e-5)
    np.testing.assert_allclose(came["value_target",], target, atol=1e-5)

    target = td_lambda_return_estimate(0.9, 0.8, following, reward, done, terminated)
    came = made("td_lambda:0.9,0.8,advantage_key=a,value_target_key=critic.target", batch)
    np.testing.assert_allclose(came["a",], target - value, atol=1e-5)
    np.testing.assert_allclose(came["critic", "target"], target, atol=1e-5)
    assert came["a",].dtype == np.float32


def test_values_by_hand():
    """Two steps each, gamma 1/2, lambda 1/2: a terminated episode, one whose final value is 8, and an unknown one."""
    batch = episodes([2, 2, 2], [1, 2] * 3, values=[4, 2] * 3, final_values=[8, 8, 0], known=[True, True, False])
    came = made("gae:0.5,0.5", batch)

    # Errors: 1 + 2 / 2 - 4 = -2; then 2 - 2 = 0, or 2 + 8 / 2 - 2 = 4, or none.
    assert flat(came["advantage",]) == [-2, 0, -2 + 4 / 4, 4, -2, 0]
    assert flat(came["value_target",]) == [2, 2, 3, 6, 2, 2]


def test_values_that_are_stored_separately_are_read():
    value, following = np.float32([[4], [2]]), np.float32([[6], [8]])
    batch = episodes([2], [1, 2], state_value=value, next__state_value=following)

    assert flat(made("td_lambda:0.5,0", batch)["value_target",]) == [1 + 6 / 2, 2]


def test_a_missing_value_is_named():
    with pytest.raises(PreprocessError, match="there is no field state_value"):
        made("gae", episodes([2], [1, 2]))
    with pytest.raises(PreprocessError, match=r"there is no field next\.v"):
        made("gae:value_key=v", episodes([2], [1, 2], v=np.float32([[4], [2]])))


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("gae:gamma=2,lmbda=-1", r"gamma is 2, expected a number in \[0, 1\]; lmbda is -1"),
        ("td_lambda:lmbda=1.5", "lmbda is 1.5"),
        ("returns_to_go:failure=-1", "gamma is 1, expected a smaller number with failure"),
    ],
)
def test_factors_outside_of_the_unit_interval_are_refused(step, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        Recipe.inline([step])


def test_a_failed_sparse_episode_has_the_return_of_endless_failure():
    """The numbers of Cal-QL's calc_return_to_go: AntMaze rewards 0 0 1 and 0 0 0, scaled by 10 and shifted by -5."""
    batch = episodes([3, 3], [-5, -5, 5, -5, -5, -5])

    assert flat(made("returns_to_go:gamma=0.9,failure=-5", batch)["returns_to_go",]) == pytest.approx(
        [-5.45, -0.5, 5, -50, -50, -50]
    )
    assert flat(made("returns_to_go:gamma=0.9", batch)["returns_to_go",])[3:] == pytest.approx([-13.55, -9.5, -5])
    assert flat(made("returns_to_go:gamma=0.9,failure=-5,scale=10", batch)["returns_to_go",])[3:] == [-5, -5, -5]


def test_failure_is_compared_in_the_dtype_of_the_rewards():
    """The number 0.1 is not a float32."""
    assert (
        flat(made("returns_to_go:gamma=0.5,failure=0.1", episodes([2], [0.1, 0.1]))["returns_to_go",])
        == [pytest.approx(0.2)] * 2
    )
