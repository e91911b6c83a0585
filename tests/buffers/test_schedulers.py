"""Schedulers change parameters of samplers step by step."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LambdaScheduler,
    LazyTensorStorage,
    LinearScheduler,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBufferEnsemble,
    SchedulerList,
    StepScheduler,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError


def values(scheduler, steps):
    """Return the values of the parameter after each of several steps."""
    found = []
    for _ in range(steps):
        scheduler.step()
        found.append(getattr(scheduler.sampler, scheduler.param_name))
    return found


def sampler(alpha=0.5, beta=0.6):
    return PrioritizedSampler(10, alpha, beta)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda obj: LinearScheduler(obj, "beta", 1.0, 4), [0.7, 0.8, 0.9, 1.0, 1.0]),
        (lambda obj: LinearScheduler(obj, "beta", 0.2, 2), [0.4, 0.2, 0.2]),
        (lambda obj: StepScheduler(obj, "beta", 0.5), [0.3, 0.15, 0.075]),
        (lambda obj: StepScheduler(obj, "beta", 0.1, 2, "additive", max_value=0.75), [0.6, 0.7, 0.7, 0.75, 0.75]),
        (lambda obj: StepScheduler(obj, "beta", 0.5, min_value=0.2), [0.3, 0.2]),
        (lambda obj: LambdaScheduler(obj, "beta", lambda step: step**2), [0.6, 2.4, 5.4]),
        (lambda obj: LambdaScheduler(obj, "beta", lambda step: step**2, max_value=1.0), [0.6, 1.0]),
    ],
    ids=["linear", "linear down", "factor", "additive", "lower bound", "function", "upper bound"],
)
def test_the_values_follow_the_schedule(make, expected):
    assert values(make(sampler()), len(expected)) == pytest.approx(expected)


def test_a_scheduler_of_a_buffer_changes_its_sampler():
    rb = PrioritizedReplayBuffer(alpha=0.5, beta=0.6, storage=LazyTensorStorage(10))
    both = SchedulerList(LinearScheduler(rb, "beta", 1.0, 2))
    both.append(StepScheduler(rb, "alpha", 0.5))
    both.step()

    assert (rb.sampler.beta, rb.sampler.alpha) == pytest.approx((0.8, 0.25))


def test_probabilities_of_an_ensemble_change_as_a_tensor():
    members = [TensorDictReplayBuffer(storage=LazyTensorStorage(3)) for _ in range(2)]
    for member in members:
        member.extend(TensorDict({"t": torch.arange(3)}, [3]))
    rb = ReplayBufferEnsemble(*members, p=[0.5, 0.5])
    found = values(LinearScheduler(rb, "p", [1.0, 0.0], 2), 3)

    assert [p.tolist() for p in found] == [[0.75, 0.25], [1.0, 0.0], [1.0, 0.0]]


def test_a_loaded_state_continues_the_schedule():
    first = LinearScheduler(sampler(), "beta", 1.0, 4)
    values(first, 2)
    second = LinearScheduler(sampler(beta=0.8), "beta", 1.0, 4)
    second.load_state_dict(first.state_dict())

    assert values(second, 2) == pytest.approx([0.9, 1.0])


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: LinearScheduler(3, "beta", 1.0, 4), "obj is a int"),
        (lambda: LinearScheduler(sampler(), "gamma", 1.0, 4), "gamma of PrioritizedSampler"),
        (lambda: LinearScheduler(sampler(), "beta", 1.0, 0), "num_steps is 0"),
        (lambda: StepScheduler(sampler(), "beta", n_steps=0, mode="up"), r"n_steps is 0.*mode is 'up'"),
    ],
    ids=["object", "parameter", "steps", "mode"],
)
def test_invalid_arguments_are_refused(call, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        call()
