"""Evaluations: means with standard errors, success rates with Wilson's interval, and episodes that count once."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from datasets_rl.training import Episodes, play, success_interval, summarize


class Counter(gymnasium.Env):
    """An environment of `length` steps with the reward 1; it reports success in its second step, if it is told to."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, length, succeeds=None):
        self.length, self.succeeds = length, succeeds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return np.float32([0]), {"seed": seed, **(options or {})}

    def step(self, action):
        del action
        self.step_number += 1
        info = {} if self.succeeds is None else {"success": self.succeeds and self.step_number == 2}
        return np.float32([0]), 1.0, self.step_number == self.length, False, info


def vector(*lengths, succeeds=(None,)):
    succeeds = succeeds * len(lengths) if len(succeeds) == 1 else succeeds
    makers = [
        lambda length=length, one=one: Counter(length, one) for length, one in zip(lengths, succeeds, strict=True)
    ]
    return gymnasium.vector.SyncVectorEnv(makers)


def act(observations, *_):
    return np.zeros((len(observations), 1), np.float32)


def test_each_environment_counts_for_one_episode():
    episodes = play(vector(1, 5, 3), act, [1, 2, 3])

    assert episodes.returns.tolist() == [1, 5, 3]
    assert episodes.success is None


def test_success_in_any_step_of_an_episode_is_success():
    episodes = play(vector(4, 4, 1, succeeds=(True, False, True)), act, [1, 2, 3])

    assert episodes.success.tolist() == [True, False, False]  # the third one ends before its second step


def test_episodes_are_cut_after_a_number_of_steps():
    assert play(vector(9, 2), act, [0, 0], max_steps=4).returns.tolist() == [4, 2]


def test_a_policy_gets_returns_infos_and_options():
    seen = []

    def policy(observations, returns, infos):
        seen.append((returns.tolist(), infos.get("task_id", np.zeros(0)).tolist()))
        return act(observations)

    play(vector(2, 2), policy, [0, 0], options={"task_id": 3})

    assert seen[:2] == [([0, 0], [3, 3]), ([1, 1], [])]


def test_the_score_is_the_mean_with_its_standard_error():
    returns = np.array([-1205.62, -167.13, -167.13, -167.13])  # the scores 0, 100, 100, 100
    found = summarize("demo/pendulum", Episodes(returns, None))

    assert found["score"] == pytest.approx(75)
    assert found["score_stderr"] == pytest.approx(25)  # sqrt(4 * 25^2 * ... / 3) / sqrt(4) = 50 / 2
    assert found["return"] == pytest.approx(returns.mean())
    assert found["return_stderr"] == pytest.approx(returns.std(ddof=1) / 2)


def test_one_episode_has_no_standard_error():
    assert summarize("demo/pendulum", Episodes(np.array([-167.13]), None)) == pytest.approx(
        {"return": -167.13, "score": 100}
    )


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_the_interval_of_a_success_rate_is_wilsons(successes, count, low, high):
    """The numbers are those of `binom.test`'s score interval: `prop.test(8, 10, correct=FALSE)` in R; the last, Newcombe's (1998)."""
    assert success_interval(successes, count) == pytest.approx((low, high), abs=2e-4)


def test_a_success_rate_is_in_percent():
    found = summarize("demo/pendulum", Episodes(np.zeros(10), np.arange(10) < 8))

    assert (found["success"], found["success_low"], found["success_high"]) == pytest.approx(
        (80, 49.016, 94.332), abs=1e-2
    )
