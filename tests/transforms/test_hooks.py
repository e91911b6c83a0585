"""Custom transforms that override TorchRL's hooks, when sampling and when writing."""

from __future__ import annotations

import importlib.util
import types
import warnings

import pytest
import torch
from tensordict import TensorDict

import datasets_rl
from datasets_rl import transforms
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.transforms import Compose, Transform

HAS_TORCHRL = importlib.util.find_spec("torchrl") is not None


def own_names() -> types.SimpleNamespace:
    return types.SimpleNamespace(
        **{name: getattr(datasets_rl, name) for name in datasets_rl.__all__},
        **{name: getattr(transforms, name) for name in transforms.__all__ if name not in datasets_rl.__all__},
    )


def torchrl_names() -> types.SimpleNamespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl import data, envs
    names = {**vars(data), **vars(envs)}
    return types.SimpleNamespace(**{name: value for name, value in names.items() if name[0].isupper()})


@pytest.fixture(
    params=[
        "datasets_rl",
        pytest.param("torchrl", marks=pytest.mark.skipif(not HAS_TORCHRL, reason="torchrl is not installed")),
    ]
)
def lib(request):
    """The module under test: this library, and TorchRL as the reference."""
    return own_names() if request.param == "datasets_rl" else torchrl_names()


def steps(count=8):
    obs = torch.arange(count, dtype=torch.float32).unsqueeze(-1)
    return TensorDict({"obs": obs, "next": {"reward": torch.ones(count, 1)}}, [count])


def buffer(lib, transform):
    rb = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(20), batch_size=4, transform=transform)
    rb.extend(steps())
    return rb


def doubled(lib, **keys):
    class Double(lib.Transform):
        def _apply_transform(self, obs):
            return obs * 2

        def _inv_apply_transform(self, state):
            return state + 100

    return Double(**keys)


def test_apply_transform_is_called_for_every_in_key(lib):
    batch = buffer(lib, doubled(lib, in_keys=["obs"], out_keys=["twice"])).sample()

    assert torch.equal(batch["twice"], 2 * batch["obs"])


def test_inv_apply_transform_is_called_for_every_in_key_inv(lib):
    rb = buffer(lib, doubled(lib, in_keys_inv=["stored"], out_keys_inv=["obs"]))

    batch = rb.sample()
    assert torch.equal(batch["stored"], batch["obs"] + 100)


def test_inv_call_is_called_without_any_keys(lib):
    class Mark(lib.Transform):
        def forward(self, tensordict):
            return tensordict

        def _inv_call(self, tensordict):
            return tensordict.set("written", torch.ones(tensordict.shape))

    rb = buffer(lib, Mark())
    rb.extend(steps(2))
    assert (rb.sample()["written"] == 1).all()


def test_forward_may_change_its_input_also_inside_of_compose(lib):
    class Count(lib.Transform):
        def forward(self, tensordict):
            tensordict["size"] = torch.full(tensordict.shape, tensordict.numel())
            return tensordict

    assert (buffer(lib, lib.Compose(Count())).sample()["size"] == 4).all()
    assert (buffer(lib, Count()).sample()["size"] == 4).all()


def test_a_subclass_of_a_transform_changes_what_it_does(lib):
    class Shifted(lib.RewardScaling):
        def _apply_transform(self, reward):
            return super()._apply_transform(reward) + 10

    batch = buffer(lib, Shifted(0.0, 3.0, in_keys=[("next", "reward")])).sample()
    assert (batch["next", "reward"] == 13).all()


def test_apply_transform_takes_precedence_over_call(lib):
    class Both(lib.Transform):
        def _apply_transform(self, obs):
            return obs * 2

        def _call(self, next_tensordict):
            return next_tensordict.set("called", torch.ones(next_tensordict.shape))

    batch = buffer(lib, Both(in_keys=["obs"], out_keys=["twice"])).sample()
    assert "twice" in batch
    assert "called" not in batch


def test_keys_may_be_properties_of_a_subclass(lib):
    class Fixed(lib.Transform):
        @property
        def in_keys(self):
            return ["obs"]

        @property
        def out_keys(self):
            return ["twice"]

        def _apply_transform(self, obs):
            return obs * 2

    assert torch.equal(Fixed()(steps())["twice"], steps()["obs"] * 2)


def test_entries_may_be_passed_by_name(lib):
    obs = steps()["obs"]

    assert torch.equal(doubled(lib, in_keys=["obs"], out_keys=["twice"])(obs=obs), 2 * obs)
    both = doubled(lib, in_keys=["obs", ("next", "obs")], out_keys=["now", "then"])(obs=obs, next_obs=obs + 1)
    assert torch.equal(both[1], 2 * obs + 2)


class TestHereOnly:
    """TorchRL does not call `_call` when sampling; without `forward` such a transform has no effect or fails."""

    def test_call_is_honored_on_reads(self):
        class Add(Transform):
            def _call(self, next_tensordict):
                return next_tensordict.set("sum", next_tensordict["obs"] + 1)

        batch = buffer(datasets_rl, Compose(Add())).sample()
        assert torch.equal(batch["sum"], batch["obs"] + 1)
        spec = datasets_rl.Composite(obs=datasets_rl.Unbounded((1,)))
        assert Add().transform_spec(spec)["sum"].shape == (1,)

    def test_call_may_call_each_for_the_entries(self):
        class Add(Transform):
            def transform_value(self, value):
                return value * 3

            def _call(self, next_tensordict):
                return super()._call(next_tensordict).set("more", torch.zeros(next_tensordict.shape))

        batch = buffer(datasets_rl, Add(in_keys=["obs"], out_keys=["three"])).sample()
        assert torch.equal(batch["three"], batch["obs"] * 3)
        assert "more" in batch

    def test_the_data_of_the_caller_does_not_change(self):
        class Mark(Transform):
            def _inv_call(self, tensordict):
                return tensordict.set("written", torch.ones(tensordict.shape))

        given = steps()
        rb = datasets_rl.TensorDictReplayBuffer(storage=datasets_rl.LazyTensorStorage(20), transform=Mark())
        rb.extend(given)
        rb.add(given[0])
        assert "written" not in given
        assert len(rb) == 9

    def test_a_transform_without_hooks_is_an_error_that_names_them(self):
        with pytest.raises(NotImplementedError, match="override _apply_transform, _call or forward"):
            Transform(in_keys=["obs"])(steps())
        with pytest.raises(InvalidArgumentError, match="has no inverse"):
            Transform(in_keys_inv=["obs"]).inv(steps())
        with pytest.raises(UnknownKeyError):
            doubled(transforms, in_keys=["nothing"])(steps())
        with pytest.raises(InvalidArgumentError, match=r"\['other'\] are not in_keys"):
            doubled(transforms, in_keys=["obs"])(other=steps()["obs"])
