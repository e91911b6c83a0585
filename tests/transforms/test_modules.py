"""Transforms as modules of torch: registration, states, devices and dtypes, hooks, and sequences."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from datasets_rl import LazyTensorStorage, ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import (
    GAE,
    BurnInTransform,
    ClipTransform,
    Compose,
    DeviceCastTransform,
    DiscreteActionProjection,
    LineariseRewards,
    ObservationNorm,
    PermuteTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    Transform,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
    VecNormV2,
    WindowTransform,
)


def steps(count=6):
    return TensorDict(
        {
            "observation": torch.randn(count, 3),
            "next": {"observation": torch.randn(count, 3), "reward": torch.ones(count, 1)},
        },
        [count],
    )


def fitted(decay=0.9):
    norm = VecNorm(["observation"], decay=decay)
    norm(steps())
    return norm


class TestModules:
    def test_a_transform_is_a_layer_of_a_network(self):
        network = nn.Sequential(RewardScaling(0.0, 2.0), nn.Identity())

        assert (network(steps())["next", "reward"] == 2).all()
        assert {"0.loc", "0.scale"} == set(network.state_dict())

    def test_init_functions_of_a_network_visit_transforms(self):
        visited = []
        nn.Sequential(Compose(RewardScaling(0.0, 2.0), torch.clone)).apply(lambda module: visited.append(type(module)))

        assert RewardScaling in visited

    def test_hooks_run_also_inside_of_compose(self):
        scaling = RewardScaling(0.0, 2.0)
        scaling.register_forward_hook(lambda *given: given[-1].set("seen", torch.ones(6)))

        assert "seen" in Compose(scaling)(steps())

    def test_parameters_and_buffers_of_a_custom_transform_are_registered(self):
        class Scaled(Transform):
            def __init__(self):
                super().__init__(["observation"])
                self.register_buffer("shift", torch.ones(3))
                self.factor = nn.Parameter(torch.full((3,), 2.0))

            def _apply_transform(self, obs):
                return self.factor * obs + self.shift

        compose = Compose(Scaled(), torch.clone)
        assert [name for name, _ in compose.named_parameters()] == ["transforms.0.factor"]
        assert [name for name, _ in compose.named_buffers()] == ["transforms.0.shift"]
        compose(data := steps())["observation"].sum().backward()
        torch.testing.assert_close(compose[0].factor.grad, data["observation"].sum(0))

    def test_dtypes_and_devices_of_all_tensors_change_together(self):
        layer = nn.Linear(3, 1)
        advantages = GAE(gamma=torch.tensor(0.9), lmbda=0.5, value_network=layer)
        compose = Compose(fitted(), ObservationNorm(0.0, 1.0), advantages).to(torch.float64)
        tensors = [*compose.parameters(), *compose.buffers(), advantages.gamma]

        assert {tensor.dtype for tensor in tensors} == {torch.float64}
        assert {tensor.device.type for tensor in compose.to("meta").buffers()} == {"meta"}
        assert layer.weight.is_meta

    def test_networks_of_functions_and_burn_in_are_registered(self):
        layer = nn.Linear(3, 3)

        assert len(list(UnaryTransform(["observation"], fn=layer).parameters())) == 2
        assert len(list(BurnInTransform([layer, torch.clone], 2).parameters())) == 2

    def test_train_and_eval_reach_all_transforms(self):
        norm = VecNorm(["observation"])
        network = nn.Sequential(Compose(norm, torch.clone)).eval()
        assert norm.frozen
        network.train()
        assert not norm.frozen
        norm.freeze()
        network.train()
        assert norm.frozen
        assert not norm.unfreeze().frozen

    def test_a_clone_changes_apart(self):
        norm = fitted()
        other = norm.clone()
        before = norm.mean_0.clone()
        other(steps())

        assert torch.equal(norm.mean_0, before)
        assert not torch.equal(other.mean_0, before)
        sequence = Compose(norm, torch.clone)
        twin = sequence.clone().append(torch.clone)
        assert (len(sequence), len(twin), twin[0] is norm, twin[1]) == (2, 3, False, torch.clone)


class TestStates:
    def test_statistics_before_the_first_batch_have_a_state(self):
        norm, state = fitted(), VecNorm(["observation"]).state_dict()
        norm.load_state_dict(state)

        with pytest.raises(InvalidArgumentError, match="has no statistics"):
            norm.eval()(steps())

    def test_a_state_goes_through_a_folder(self, tmp_path):
        compose = Compose(fitted(), RewardScaling(1.0, 3.0))
        compose.dumps(tmp_path / "state")
        other = Compose(VecNorm(["observation"]), RewardScaling(0.0, 1.0))
        other.loads(tmp_path / "state")

        assert torch.equal(other[0].mean_0, compose[0].mean_0)
        assert other[1].scale == 3

    def test_nothing_changes_if_a_state_does_not_fit(self):
        layer = nn.Linear(3, 1)
        compose = Compose(ObservationNorm(1.0, 2.0), UnaryTransform(["a"], fn=layer))
        state, weight = compose.state_dict(), layer.weight.detach().clone()
        wrong = {name: value + 1 for name, value in state.items()} | {"transforms.1.fn.bias": torch.ones(7)}
        with pytest.raises(InvalidArgumentError, match=r"does not fit: .*size mismatch"):
            compose.load_state_dict(wrong)

        assert compose[0].loc == 1
        assert torch.equal(layer.weight, weight)


class TestSequences:
    def test_transforms_are_taken_out_replaced_and_removed(self):
        first, second, third = RewardClipping(-1, 1), RewardScaling(0.0, 1.0), torch.clone
        compose = Compose([first, second, third])

        assert compose.pop() is third
        assert compose.pop(0) is first
        compose[0] = third
        compose.append(first)
        del compose[0]
        assert list(compose) == [first]
        assert list(Compose(transforms=[second])) == [second]
        with pytest.raises(TypeError, match="unexpected arguments: other"):
            Compose(other=[second])

    def test_items_are_modules_also_of_plain_functions(self):
        compose = Compose(torch.clone, RewardClipping(-1, 1))

        assert all(isinstance(item, Transform) for item in compose.transforms)
        assert compose[0] is torch.clone

    def test_a_buffer_loses_a_transform_that_is_popped_from_its_transform(self):
        rb = ReplayBuffer(storage=LazyTensorStorage(6), transform=[RewardScaling(0.0, 2.0), torch.clone], batch_size=2)
        rb.extend(steps())
        rb.transform.pop(0)

        assert rb.transforms == (torch.clone,)
        assert (rb.sample()["next", "reward"] == 1).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RewardSum(in_keys=1), "the keys are 1, expected a string, or a list of keys"),
        (lambda: RewardSum(in_keys=[()]), "a key is \\(\\), expected a name"),
        (lambda: RewardScaling("x", 1.0), "a shift or a scale is 'x', expected a number"),
        (lambda: ClipTransform(["a"], low="x"), "a limit is 'x', expected a number"),
        (lambda: LineariseRewards(["r"], weights=["x"]), r"weights is \['x'\], expected a number"),
        (lambda: UnsqueezeTransform("x", in_keys=["a"]), "dim is 'x', expected a negative axis"),
        (lambda: UnsqueezeTransform("x", allow_positive_dim=True, in_keys=["a"]), "dim is 'x', expected an axis"),
        (lambda: PermuteTransform(1, in_keys=["a"]), "dims is 1, expected a list of axes"),
        (lambda: WindowTransform(3), "windows is 3, expected a mapping"),
        (lambda: WindowTransform({"a": 1}), "the window of 'a' is 1, expected two integers"),
        (lambda: DeviceCastTransform(["x"]), r"the device is \['x'\], expected a device"),
        (lambda: DiscreteActionProjection(None, 3), "num_actions_effective is None, expected an integer"),
        (lambda: VecNormV2(["a"], decay="x"), "decay is 'x', expected a number"),
        (lambda: Compose(other=1), "unexpected arguments: other"),
    ],
)
def test_an_argument_of_another_type_is_an_error_of_this_package(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
