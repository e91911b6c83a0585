"""The returns and advantages of TorchRL for the same arguments; requires TorchRL."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from datasets_rl import returns

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrl = pytest.importorskip(
        "torchrl.objectives.value.functional", reason="pip install --no-deps torchrl hoptorch"
    )

NAMES = sorted({*torchrl.__all__, "reward2go"})
SHAPE = (4, 30, 2)


def parameters(function):
    return {name: (one.kind, one.default) for name, one in inspect.signature(function).parameters.items()}


def batch_of(shape, dtype, *, ends=0.1, seed=0):
    torch.manual_seed(seed)
    done = torch.rand(shape) < ends
    numbers = {name: torch.randn(shape, dtype=dtype) for name in ("state_value", "next_state_value", "reward")}
    probabilities = {name: torch.randn(shape, dtype=dtype) / 3 for name in ("log_pi", "log_mu")}
    return {"done": done, "terminated": done & (torch.rand(shape) < 0.5), **numbers, **probabilities}


def alike(name, batch, **more):
    ours, theirs = (
        getattr(module, name)(**{key: one for key, one in {**batch, **more}.items() if key in parameters(function)})
        for module in (returns, torchrl)
        for function in [getattr(torchrl, name)]
    )
    # TorchRL leaves out powers of gamma below 1e-7.
    for one, other in zip(*((came if isinstance(came, tuple) else (came,)) for came in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_there_is_one_for_each_function_of_torchrl():
    assert set(NAMES) == set(returns.__all__) - {"discounted"}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_same(name):
    assert parameters(getattr(returns, name)) == parameters(getattr(torchrl, name))


@pytest.mark.first(1, of=("name", "shape", "dtype"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("gamma", "lmbda"), [(0.99, 0.95), (0.5, 0.1), (1.0, 1.0)])
@pytest.mark.parametrize("shape", [(30, 1), SHAPE, (2, 3, 30, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_same(name, shape, gamma, lmbda, dtype):
    """Except for lambda 0, for which TorchRL's vectorized functions raise an IndexError."""
    alike(name, batch_of(shape, dtype), gamma=gamma, lmbda=lmbda)


@pytest.mark.parametrize("name", [name for name in NAMES if "time_dim" in parameters(getattr(torchrl, name))])
def test_results_along_another_axis_are_the_same(name):
    alike(name, batch_of((30, 4, 2), torch.float64), gamma=0.9, lmbda=0.8, time_dim=-3)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "reward2go"])
def test_results_for_factors_of_each_step_are_the_same(name):
    batch = batch_of((4, 30, 1), torch.float64)
    gamma, lmbda = torch.rand(2, 4, 30, 1, dtype=torch.float64).unbind(0)
    # TorchRL's vectorized lambda-returns accept one lambda only.
    alike(name, batch, gamma=gamma, lmbda=0.8 if name.startswith("vec_td_lambda") else lmbda)


@pytest.mark.parametrize("name", ["td_lambda_return_estimate", "td_lambda_advantage_estimate", "td1_return_estimate"])
def test_results_for_factors_of_each_return_are_the_same(name):
    """TorchRL's TD(1) leaves out the last value of a batch if its last episode continues."""
    batch = batch_of(SHAPE, torch.float64)
    batch["done"][:, -1] |= name.startswith("td1")
    gamma, lmbda = torch.rand(2, *SHAPE, dtype=torch.float64).unbind(0)
    alike(name, batch, gamma=gamma, lmbda=lmbda, rolling_gamma=False)
