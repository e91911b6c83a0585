"""Transforms of TorchRL in the buffers of this package: `forward` runs on reads, and `inv` on writes."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, TensorDictReplayBuffer, transforms

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrl = pytest.importorskip("torchrl.envs.transforms", reason="pip install --no-deps torchrl hoptorch")
    from torchrl import data as torchrl_data
    from torchrl.envs import PendulumEnv


def steps():
    """Return the same steps at every call."""
    torch.manual_seed(0)
    return TensorDict({"action": torch.randn(20, 2), "next": {"reward": torch.randn(20, 1)}}, [20])


def filled(transform):
    """Return a buffer with a transform that contains the steps."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), transform=transform, batch_size=8)
    buffer.extend(steps())
    return buffer


@pytest.mark.parametrize("place", ["alone", "in a list", "in our Compose", "in their Compose", "appended"])
def test_forward_runs_on_reads_and_inv_on_writes(place):
    theirs = torchrl.ActionScaling(loc=1.0, scale=2.0)
    if place == "appended":
        buffer = filled(None)
        buffer.empty()
        buffer.append_transform(theirs)
        buffer.extend(steps())
    else:
        wrapped = {
            "alone": theirs,
            "in a list": [theirs, transforms.DoubleToFloat()],
            "in our Compose": transforms.Compose(theirs, transforms.DoubleToFloat()),
            "in their Compose": torchrl.Compose(theirs),
        }
        buffer = filled(wrapped[place])
    batch = buffer.sample()
    rows = batch["index"]

    given = steps()["action"]
    torch.testing.assert_close(buffer.storage.get(slice(None))["action"], given * 2 + 1)
    torch.testing.assert_close(batch["action"], given[rows])


def test_a_subclass_of_their_transform_runs_unchanged():
    class Marked(torchrl.Transform):
        def forward(self, tensordict):
            return tensordict.set("read", torch.ones(tensordict.shape))

        def _inv_call(self, tensordict):
            return tensordict.set("written", torch.ones(tensordict.shape))

    data = steps()
    buffer = filled(Marked())
    buffer.extend(data)
    assert {"read", "written"} <= set(buffer.sample().keys())
    assert "written" not in data
    assert "read" not in buffer.storage.get(slice(None))


def test_their_statistics_are_part_of_our_state():
    compose = transforms.Compose(torchrl.RewardScaling(1.0, 2.0), transforms.RewardScaling(3.0, 4.0))
    state = compose.state_dict()

    assert {name: value.item() for name, value in state.items()} == {
        "transforms.0.loc": 1,
        "transforms.0.scale": 2,
        "transforms.0.standard_normal": False,
        "transforms.1.loc": 3,
        "transforms.1.scale": 4,
    }


def test_their_state_loads_into_our_transforms():
    state = torchrl.Compose(torchrl.RewardScaling(1.0, 2.0, standard_normal=True)).state_dict()
    compose = transforms.Compose(transforms.RewardScaling(0.0, 0.0))
    compose.load_state_dict(state)

    assert (compose[0].scale, compose[0].standard_normal) == (2, True)


class TestInTorchRL:
    """TorchRL takes a transform of another package for a function, and leaves specs and actions unchanged."""

    def test_an_environment_of_torchrl_calls_a_transform_as_a_function_of_its_steps(self):
        plain = PendulumEnv()
        env = torchrl.TransformedEnv(PendulumEnv(), transforms.ClipTransform(["th"], low=7.0, high=8.0))

        assert env.reset()["th"].item() == 7
        assert env.observation_spec["th"] == plain.observation_spec["th"]

    def test_buffers_of_torchrl_may_call_them(self):
        rb = torchrl_data.ReplayBuffer(storage=torchrl_data.LazyTensorStorage(20), batch_size=8)
        rb.extend(steps())
        rb.append_transform(transforms.ClipTransform(["action"], low=0.0))

        assert rb.sample()["action"].min() == 0
