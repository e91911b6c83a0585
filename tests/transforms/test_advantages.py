"""Advantages of sampled slices: where estimates end, and where the values come from."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from datasets_rl import LazyTensorStorage, RandomSampler, Recipe, SliceSampler, TensorDictReplayBuffer, load
from datasets_rl.returns import (
    generalized_advantage_estimate,
    td0_advantage_estimate,
    td_lambda_return_estimate,
)
from datasets_rl.transforms import GAE, TDLambda, split_trajectories

FACTORS = {"gamma": 0.9, "lmbda": 0.8}


def steps(lengths, *, terminated=(), seed=0):
    """Return episodes back to back; those with a number in `terminated` end in a terminal state."""
    torch.manual_seed(seed)
    count = sum(lengths)
    done, terminal = torch.zeros(2, count, 1, dtype=torch.bool)
    for number, stop in enumerate(torch.tensor(lengths).cumsum(0).tolist()):
        done[stop - 1] = True
        terminal[stop - 1] = number in terminated
    entries = {"observation": torch.randn(count, 3), "state_value": torch.randn(count, 1)}
    following = {"observation": torch.randn(count, 3), "state_value": torch.randn(count, 1)}
    flags = {"done": done, "terminated": terminal, "truncated": done & ~terminal}
    return TensorDict({**entries, "next": {**following, "reward": torch.randn(count, 1), **flags}}, [count])


def columns(batch):
    """Return the arguments of the functions of `datasets_rl.returns`, without the flags."""
    return batch["state_value"], batch["next", "state_value"], batch["next", "reward"]


def buffer(data, transform, **how):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), transform=transform, **how)
    rb.extend(data)
    return rb


def expected(batch):
    """Return the advantages and targets of a batch [n, T] whose flags are right, by the loop over its steps."""
    return generalized_advantage_estimate(
        *FACTORS.values(), *columns(batch), batch["next", "done"], batch["next", "terminated"]
    )


@pytest.mark.parametrize("marked", [True, False])
def test_estimates_of_a_slice_end_with_the_slice(marked):
    """Without marks in the batch, slices end where rows are not those of successive steps."""
    sampler = SliceSampler(slice_len=4, truncated_key=("next", "truncated") if marked else None)
    rb = buffer(steps([9, 4, 7], terminated=[1]), GAE(**FACTORS), sampler=sampler, batch_size=80)
    for _ in range(5):
        batch = rb.sample().reshape(20, 4)
        came, targets = expected(batch)

        torch.testing.assert_close(batch["advantage"], came)
        torch.testing.assert_close(batch["value_target"], targets)


def test_lambda_returns_of_slices():
    sampler = SliceSampler(slice_len=4)
    rb = buffer(steps([9, 4, 7], terminated=[1]), TDLambda(**FACTORS), sampler=sampler, batch_size=80)
    batch = rb.sample().reshape(20, 4)
    value, *others = columns(batch)
    targets = td_lambda_return_estimate(*FACTORS.values(), *others, batch["next", "done"], batch["next", "terminated"])

    torch.testing.assert_close(batch["value_target"], targets)
    torch.testing.assert_close(batch["advantage"], targets - value)


def test_single_random_steps_have_one_step_estimates():
    """Adjacent rows of such a batch belong to different trajectories, or to one in any order."""
    rb = buffer(steps([50] * 20), GAE(**FACTORS), sampler=RandomSampler(), batch_size=64)
    batch = rb.sample()
    errors = td0_advantage_estimate(0.9, *columns(batch), batch["next", "done"], batch["next", "terminated"])
    apart = batch["index"].diff(append=torch.tensor([-1])) != 1

    torch.testing.assert_close(batch["advantage"][apart], errors[apart])


def test_a_ring_buffer_joins_no_steps_across_its_seam():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10), transform=GAE(**FACTORS), batch_size=10)
    rb.extend(steps([7]))
    rb.extend(steps([9], seed=1)[:5])  # in rows 7, 8, 9, 0 and 1; row 2 is the oldest step
    data = rb[:]
    done = data["next", "done"].clone()
    assert done.nonzero()[:, 0].tolist() == [6]
    done[1] = True
    came, _ = generalized_advantage_estimate(*FACTORS.values(), *columns(data), done, torch.zeros_like(done))

    torch.testing.assert_close(data["advantage"], came)


def test_padded_slices():
    rb = buffer(
        steps([3, 6], terminated=[0]),
        GAE(**FACTORS),
        sampler=SliceSampler(slice_len=5, strict_length=False, pad_output=True),
        batch_size=40,
    )
    batch = split_trajectories(rb.sample())
    mask = batch["collector", "mask"]
    came, _ = expected(batch)

    assert not mask.all()
    torch.testing.assert_close(batch["advantage"][mask], came[mask])


def test_the_axis_named_time_is_used():
    data = steps([4, 4], terminated=[0]).reshape(2, 4)
    across = TensorDict({key: one.transpose(0, 1) for key, one in data.items()}, [4, 2], names=["time", None])

    torch.testing.assert_close(GAE(**FACTORS)(across)["advantage"].transpose(0, 1), expected(data)[0])


def test_a_value_network_is_evaluated_at_both_states():
    data = steps([4, 4], terminated=[0])
    layer = torch.nn.Linear(3, 1)
    module = TensorDictModule(layer, in_keys=["observation"], out_keys=["state_value"])
    valued = data.clone()
    valued["state_value"], valued["next", "state_value"] = (
        layer(data["observation"]),
        layer(data["next", "observation"]),
    )
    wanted = GAE(**FACTORS)(valued.detach())["advantage"]

    for network in (module, lambda states: layer(states["observation"])):
        came = GAE(**FACTORS, value_network=network)(data.exclude("state_value", ("next", "state_value")))
        torch.testing.assert_close(came["advantage"], wanted)
        assert not came["advantage"].requires_grad
        assert "state_value" not in came
    came = GAE(**FACTORS, value_network=module, differentiable=True)(data)
    came["value_target"].sum().backward()
    assert layer.weight.grad.any()


def test_estimates_use_no_unknown_state():
    """The second of two truncated episodes ends in an unknown state: its last step has no target."""
    data = steps([3, 4])
    data["next", "final_known"] = ~data["next", "done"]
    data["next", "final_known"][2] = True
    data["next", "state_value"][6] = float("nan")
    shorter = data[:6].clone()
    shorter["next", "done"][5] = True
    for transform in (GAE(**FACTORS), TDLambda(**FACTORS)):
        came, wanted = transform(data), transform(shorter)
        for key in ("advantage", "value_target"):
            torch.testing.assert_close(came[key][:6], wanted[key])
        assert came["advantage"][6].item() == 0
        assert came["value_target"][6].item() == data["state_value"][6].item()


def test_a_terminal_state_need_not_be_known():
    data = steps([3, 4], terminated=[1])
    wanted = GAE(**FACTORS)(data)["advantage"]
    data["next", "final_known"] = ~data["next", "terminated"]

    assert torch.equal(GAE(**FACTORS)(data)["advantage"], wanted)


def test_a_recipe_evaluates_a_value_network_on_whole_episodes(tmp_path):
    def value(states):
        return states["observation"].sum(-1, keepdim=True)

    dataset = load("demo/pendulum", root=tmp_path / "demo")
    stored = dataset.preprocess(Recipe([GAE(**FACTORS, value_network=value)]), dest=tmp_path / "out")[:]
    stored["state_value"], stored["next", "state_value"] = value(stored), value(stored["next"])

    came, targets = expected(stored)
    torch.testing.assert_close(stored["advantage"], came, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stored["value_target"], targets, rtol=1e-4, atol=1e-4)
