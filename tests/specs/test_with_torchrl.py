"""Conversion of specs to and from TorchRL, and the check of environments."""

from __future__ import annotations

import sys

import pytest
import torch
from tensordict import NonTensorData, TensorDict

import datasets_rl as rl
from datasets_rl.errors import InvalidArgumentError, MissingDependencyError
from datasets_rl.specs import Choice


def bits(text):
    return torch.tensor([letter == "1" for letter in text])


SPECS = {
    "bounded": rl.Bounded(-1, 1, (2, 3)),
    "bounds by element": rl.Bounded([-1.0, 0.0], [1.0, 5.0], dtype=torch.float64),
    "bounded integers": rl.Bounded(-3, 4, (2,), dtype=torch.int64, domain="continuous"),
    "bounded, any size": rl.Bounded(0, 1, (-1, 2)),
    "unbounded": rl.Unbounded((3,), domain="discrete"),
    "categorical": rl.Categorical(4, (2,), dtype=torch.int32, mask=bits("1011")),
    "unknown number": rl.Categorical(-1),
    "one-hot": rl.OneHot(4, (2, 4), use_register=True, mask=bits("1011")),
    "multi-categorical": rl.MultiCategorical((3, 2), (5, 2), mask=bits("10111"), remove_singleton=False),
    "rows that differ": rl.MultiCategorical([[3, 2], [2, 5]]),
    "multi-one-hot": rl.MultiOneHot((3, 2), (4, 5), mask=bits("10111")),
    "binary": rl.Binary(3, (2, 3)),
    "text": rl.NonTensor((2,), example_data="a"),
    "text by element": rl.NonTensor((2,), example_data="a", batched=True),
    "choice": Choice([rl.Bounded(-1, 1, (2,)), rl.Bounded(3, 4, (2,))]),
    "choice of texts": Choice([NonTensorData("a"), NonTensorData("b")]),
    "composite": rl.Composite(
        a=rl.Bounded(-1, 1, (2, 3)),
        b=rl.Composite(c=rl.Categorical(4, (2, 1)), shape=(2,), device="cpu"),
        d=None,
        shape=(2,),
        names=["time"],
        step_mdp_static=True,
    ),
    "stack": torch.stack([rl.Unbounded((3,)), rl.Unbounded((4,))]),
    "stack of composites": torch.stack(
        [rl.Composite(a=rl.Unbounded((3,)), b=rl.Binary(2)), rl.Composite(a=rl.Binary(3))]
    ),
}


@pytest.fixture
def lib():
    """The module with TorchRL's specs."""
    pytest.importorskip("torchrl", reason="pip install --no-deps torchrl hoptorch")
    from torchrl.data import tensor_specs

    return tensor_specs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_spec_survives_the_way_to_torchrl_and_back(lib, spec):
    theirs = rl.to_torchrl(spec)
    again = rl.from_torchrl(theirs)

    assert isinstance(theirs, lib.TensorSpec)
    assert theirs.shape == spec.shape
    assert theirs.device == spec.device
    assert again == spec
    assert type(again) is type(spec)
    assert again.domain == spec.domain
    assert rl.to_torchrl(again) == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("lib")
def test_masks_names_and_locks_are_converted():
    masked = rl.to_torchrl(SPECS["categorical"])
    composite = rl.to_torchrl(SPECS["composite"].clone().lock_())

    assert set(masked.rand((50,)).flatten().tolist()) == {0, 2, 3}
    assert composite.is_locked
    assert composite.names == ["time"]
    assert composite.step_mdp_static
    assert composite["b"].device == torch.device("cpu")
    assert rl.from_torchrl(composite).is_locked


def test_other_objects_are_refused(lib):
    with pytest.raises(InvalidArgumentError, match="expected a spec of datasets_rl"):
        rl.to_torchrl(lib.Unbounded((3,)))
    with pytest.raises(InvalidArgumentError, match="expected a spec of TorchRL"):
        rl.from_torchrl(rl.Unbounded((3,)))


def test_without_torchrl_the_error_says_how_to_install_it(monkeypatch):
    class Hidden:
        @staticmethod
        def find_spec(name, *_):
            if name.partition(".")[0] == "torchrl":
                raise ModuleNotFoundError("No module named 'torchrl'", name="torchrl")

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchrl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])

    with pytest.raises(MissingDependencyError, match=r"pip install 'datasets-rl\[torchrl\]'"):
        rl.to_torchrl(rl.Unbounded((3,)))


def test_a_writer_takes_only_specs():
    with pytest.raises(InvalidArgumentError, match="a str is not a spec"):
        rl.RoundRobinWriter(spec="float")


class Counter:
    """An environment that counts; an episode has two steps."""

    def __init__(self, **specs):
        flag = rl.Categorical(2, (1,), dtype=torch.bool)
        self.observation_spec = rl.Composite(observation=rl.Bounded(0, 2, (1,)))
        self.action_spec = rl.Bounded(-1, 1, (2,))
        self.reward_spec = rl.Unbounded((1,))
        self.done_spec = rl.Composite(done=flag, terminated=flag)
        self.__dict__.update(specs)
        self.count, self.resets, self.seed = 0, 0, None

    def _state(self):
        done = torch.tensor([self.count >= 2])
        return {"observation": torch.tensor([float(self.count)]), "done": done, "terminated": done.clone()}

    def reset(self, tensordict=None):
        del tensordict
        self.count, self.resets = 0, self.resets + 1
        return TensorDict(self._state())

    def step(self, tensordict):
        assert self.action_spec.is_in(tensordict["action"])
        self.count += 1
        return tensordict.set("next", TensorDict({**self._state(), "reward": torch.zeros(1)}))

    def set_seed(self, seed):
        self.seed = seed


class TestCheckEnvSpecs:
    def test_specs_that_match_pass(self):
        environment = Counter()
        rl.check_env_specs(environment)
        assert environment.resets == 2
        rl.check_env_specs(environment, break_when_any_done=True)
        assert environment.resets == 3
        rl.check_env_specs(environment, break_when_any_done="both", tensordict=TensorDict())

    def test_a_seed_does_not_change_the_state_of_torch(self):
        environment = Counter()
        before = torch.get_rng_state()
        rl.check_env_specs(environment, seed=7)

        assert environment.seed == 7
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("specs", "message"),
        [
            (
                {"observation_spec": rl.Composite(observation=rl.Bounded(0, 1, (1,)))},
                r"step 1: observation is 2\.0 at \[0\]",
            ),
            (
                {"observation_spec": rl.Composite(pixels=rl.Unbounded((1,)))},
                "reset: observation has no spec; reset: pixels",
            ),
            ({"reward_spec": rl.Unbounded((1,), dtype=torch.float64)}, "step 0: reward has dtype torch.float32"),
            ({"reward_spec": rl.Unbounded((2,))}, r"step 0: reward has shape \[1\]"),
            ({"done_spec": rl.Categorical(2, (1,), dtype=torch.bool)}, "reset: terminated has no spec"),
        ],
    )
    def test_what_does_not_match_is_an_assertion_error(self, specs, message):
        with pytest.raises(AssertionError, match=message):
            rl.check_env_specs(Counter(**specs))

    def test_dtypes_are_ignored_on_request(self):
        rl.check_env_specs(Counter(reward_spec=rl.Unbounded((1,), dtype=torch.float64)), check_dtype=False)

    def test_other_objects_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="has no reset, step, observation_spec"):
            rl.check_env_specs(object())
