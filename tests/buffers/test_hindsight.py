"""Goals are replaced by goals of the right steps, and rewards follow from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    HERReplayBuffer,
    HindsightStrategy,
    LazyTensorStorage,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages import DatasetStorage
from datasets_rl.transforms import RewardScaling


def steps(*lengths, first=0):
    """Return episodes of these lengths; the goal that a step achieves is its number, and the desired goal is -1."""
    t = torch.arange(first, first + sum(lengths))
    done = torch.cat([torch.arange(length) == length - 1 for length in lengths])[:, None]
    goals = {"achieved_goal": t.float()[:, None].expand(-1, 3).clone(), "desired_goal": torch.full((len(t), 3), -1.0)}
    following = {**goals, "reward": torch.full((len(t), 1), -99.0), "done": done, "terminated": done}
    return TensorDict({"t": t, **goals, "next": following}, [len(t)])


def distance(batch):
    """Return the reward of steps: the distance between both goals."""
    return (batch["achieved_goal"] - batch["desired_goal"]).abs().sum(-1, keepdim=True)


def buffer(data, size=30, **kwargs):
    arguments = {"her_ratio": 1.0, "batch_size": 200, "generator": torch.Generator().manual_seed(0), **kwargs}
    rb = HERReplayBuffer(distance, storage=LazyTensorStorage(size), **arguments)
    rb.extend(data)
    return rb


def goals_by_step(rb):
    """Return the goals that each step got, by step number."""
    batch = rb.sample()
    found = {}
    for step, goal in zip(batch["t"].tolist(), batch["desired_goal"][:, 0].tolist(), strict=True):
        found.setdefault(step, set()).add(int(goal))
    return found


@pytest.mark.parametrize("strategy", HindsightStrategy)
def test_the_goal_is_that_of_a_step_that_the_strategy_allows(strategy):
    rb = buffer(steps(5, 8, 7), strategy=strategy, batch_size=10_000)
    first, last = [0] * 5 + [5] * 8 + [13] * 7, [4] * 5 + [12] * 8 + [19] * 7
    allowed = {
        "future": lambda step: range(step, last[step] + 1),
        "final": lambda step: [last[step]],
        "episode": lambda step: range(first[step], last[step] + 1),
        "random": lambda _: range(20),
    }[strategy]

    assert goals_by_step(rb) == {step: set(allowed(step)) for step in range(20)}


def test_both_goals_the_reward_and_the_index_follow_from_the_new_goal():
    batch = buffer(steps(5, 8, 7)).sample()

    assert torch.equal(batch["desired_goal"], batch["next", "desired_goal"])
    assert torch.equal(batch["next", "reward"], distance(batch))
    assert torch.equal(batch["desired_goal"][:, 0], batch["goal_index"].float())
    assert torch.equal(batch["next", "achieved_goal"], batch["achieved_goal"])


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (0.83, 8), (1.0, 10)])
def test_a_share_of_every_batch_has_new_goals(ratio, count):
    batch = buffer(steps(20), her_ratio=ratio, batch_size=10).sample()

    assert (batch["goal_index"] >= 0).tolist() == [True] * count + [False] * (10 - count)
    assert (batch["next", "reward"][count:] == -99).all()
    assert (batch["next", "reward"][:count] >= 0).all()
    assert (batch["desired_goal"][count:] == -1).all()


def test_an_episode_of_a_wrapped_ring_continues_at_its_start():
    """Slots 0 to 3 hold steps 10 to 13, which belong to the episode of steps 6 to 13."""
    rb = buffer(steps(6, 8), size=10, strategy="final")

    assert goals_by_step(rb) == {4: {5}, 5: {5}, **{step: {13} for step in range(6, 14)}}


def test_goals_stay_in_their_environment():
    rb = HERReplayBuffer(
        distance, storage=LazyTensorStorage(16, ndim=2), her_ratio=1.0, strategy="final", batch_size=100
    )
    rb.extend(torch.stack([steps(5, 3), steps(8, first=8)]))

    assert goals_by_step(rb) == {step: {4 if step < 5 else 7 if step < 8 else 15} for step in range(16)}


def test_goals_of_a_dataset_are_replaced(tmp_path):
    """The goals are two fields of a stored dataset, which is never written to."""
    stored = write_dataset(tmp_path, [trajectory(4), trajectory(6)])
    key = "observation"
    rb = HERReplayBuffer(
        lambda batch: torch.ones(len(batch)),
        storage=DatasetStorage(stored),
        sampler=SamplerWithoutReplacement(shuffle=False),
        goal_key=key,
        achieved_goal_key=key,
        strategy="final",
        her_ratio=1.0,
        batch_size=10,
    )
    plain = TensorDictReplayBuffer(storage=DatasetStorage(stored))[:]
    batch = rb.sample()

    last = np.array([3] * 4 + [9] * 6)
    assert torch.equal(batch[key], plain[key][last])
    assert torch.equal(batch["next", key], plain[key][last])
    assert (batch["next", "reward"] == 1).all()


def test_transforms_see_the_new_rewards():
    batch = buffer(steps(20), transform=RewardScaling(0.0, 10.0)).sample()

    torch.testing.assert_close(batch["next", "reward"], 10 * distance(batch))


def test_threads_draw_the_same_goals():
    plain, ahead = buffer(steps(5, 8, 7)), buffer(steps(5, 8, 7), prefetch=3)

    for _ in range(5):
        assert torch.equal(plain.sample()["goal_index"], ahead.sample()["goal_index"])
    ahead._prefetch.close()


def test_keys_may_be_nested():
    data = steps(6)
    groups = TensorDict({"obs": data.select("desired_goal", "achieved_goal"), "next": data["next"]}, [6])
    goal, achieved = ("obs", "desired_goal"), ("obs", "achieved_goal")
    rb = HERReplayBuffer(
        lambda batch: batch[goal].sum(-1), storage=LazyTensorStorage(6), goal_key=goal, achieved_goal_key=achieved
    )
    rb.extend(groups)
    batch = rb.sample(10)

    assert torch.equal(batch["next", "reward"][:8, 0], batch[goal].sum(-1)[:8])


@pytest.mark.parametrize(
    ("missing", "argument"), [("desired_goal", "goal_key"), ("achieved_goal", "achieved_goal_key")]
)
def test_a_missing_key_is_named_with_its_argument(missing, argument):
    with pytest.raises(UnknownKeyError, match=f"(?s)'{missing}'.*another key: {argument}="):
        buffer(steps(5).exclude(missing)).sample()


def test_all_invalid_arguments_are_reported_together():
    with pytest.raises(InvalidArgumentError, match=r"reward_fn is 3.*her_ratio is 1\.5.*strategy is 'past'"):
        HERReplayBuffer(3, her_ratio=1.5, strategy="past")
    rb = HERReplayBuffer(lambda _: torch.zeros(3), storage=LazyTensorStorage(5))
    rb.extend(steps(5))
    with pytest.raises(InvalidArgumentError, match=r"reward_fn returned the shape \[3\]"):
        rb.sample(10)


def test_an_ensemble_refuses_it_because_it_would_not_replace_the_goals():
    rb = buffer(steps(5))
    with pytest.raises(InvalidArgumentError, match="hindsight"):
        ReplayBufferEnsemble(rb, rb)


def test_its_description_names_the_strategy_and_the_keys():
    assert "strategy=future, her_ratio=1.0, goal_key=desired_goal, " in repr(buffer(steps(5)))
