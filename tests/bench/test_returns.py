"""What returns and advantages cost, against TorchRL's vectorized functions for the same batches."""

import importlib

import pytest
import torch

from datasets_rl import returns

FACTORS = {"gamma": 0.99, "lmbda": 0.95}
NAMES = [
    "reward2go",
    "vec_generalized_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td_lambda_return_estimate",
    "vtrace_advantage_estimate",
]


@pytest.fixture(scope="module")
def torchrl(torchrl_data):  # noqa: ARG001 - skips where it is not installed
    return importlib.import_module("torchrl.objectives.value.functional")


def batch_of(*shape):
    """Return steps, of which every 200th ends an episode."""
    torch.manual_seed(0)
    done = torch.rand(shape) < 1 / 200
    numbers = {name: torch.randn(shape) for name in ("state_value", "next_state_value", "reward", "log_pi", "log_mu")}
    return {"done": done, "terminated": done & (torch.rand(shape) < 0.5), **numbers}


def arguments(function, batch):
    code = function.__wrapped__.__code__ if hasattr(function, "__wrapped__") else function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: one for name, one in (batch | FACTORS).items() if name in names}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", ["8 slices of 32 steps", "64 slices of 1,000 steps"])
def test_returns_are_computed_at_least_as_fast_as_by_torchrl(name, shape, torchrl, size, compare, expect):
    slices, steps = (8, 32) if shape.startswith("8") else (64, size(full=1_000, small=50))
    ours, theirs = getattr(returns, name), getattr(torchrl, name)
    given = arguments(theirs, batch_of(slices, steps, 1))
    took = compare({"ours": lambda: ours(**given), "torchrl": lambda: theirs(**given)}, rounds=7, repeat=5)

    expect(f"{name} of {shape}, of TorchRL's time", took["ours"] / took["torchrl"], at_most=1)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_computed_at_least_as_fast_as_by_torchrl(name, torchrl, size, compare, expect):
    given = arguments(getattr(torchrl, name), batch_of(64, size(full=1_000, small=50), 1))
    inputs = [one.requires_grad_() for one in given.values() if torch.is_tensor(one) and one.is_floating_point()]

    def gradients(module):
        came = getattr(module, name)(**given)
        return torch.autograd.grad((came[0] if isinstance(came, tuple) else came).sum(), inputs, allow_unused=True)

    took = compare({"ours": lambda: gradients(returns), "torchrl": lambda: gradients(torchrl)}, rounds=3, repeat=1)

    expect(f"the gradient of {name}, of TorchRL's time", took["ours"] / took["torchrl"], at_most=1)
