"""Returns and advantages against their recursive definitions, written here for one sequence of numbers at a time."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets_rl import returns
from datasets_rl.errors import InvalidArgumentError

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}
ESTIMATES = {
    name: getattr(returns, f"vec_{name}")
    for name in (
        "generalized_advantage_estimate",
        "td1_return_estimate",
        "td1_advantage_estimate",
        "td_lambda_return_estimate",
        "td_lambda_advantage_estimate",
    )
}


@st.composite
def batches(draw):
    """Draw rewards, values, flags and factors of the shape [*, T, F], with the axis of time at any place."""
    shape = draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    shape = (*shape, draw(st.integers(1, 24)), draw(st.integers(1, 2)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    ending, terminal = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])), draw(st.sampled_from([0.0, 0.5, 1.0]))

    def numbers(low=-1.0, high=1.0):
        return torch.rand(shape, dtype=dtype, generator=generator) * (high - low) + low

    done = torch.rand(shape, generator=generator) < ending
    batch = {
        "state_value": numbers(),
        "next_state_value": numbers(),
        "reward": numbers(),
        "done": done,
        "terminated": done & (torch.rand(shape, generator=generator) < terminal),
    }
    if draw(st.booleans()):
        del batch["terminated"]
    for name in ("gamma", "lmbda"):
        number = draw(st.sampled_from([0.0, 0.5, 0.99, 1.0]))
        batch[name] = draw(st.sampled_from([number, torch.tensor(number), numbers(low=0.0)]))
    axis = draw(st.integers(0, len(shape) - 1))
    moved = {key: one.transpose(axis, -2) if is_full(one) else one for key, one in batch.items()}
    return moved, draw(st.sampled_from([axis, axis - len(shape)]))


def is_full(value):
    return isinstance(value, torch.Tensor) and value.ndim > 0


def arguments(batch, function, **more):
    """Return those of the entries that a function takes."""
    names = inspect.signature(function).parameters
    return {key: value for key, value in {**batch, **more}.items() if key in names}


def lambda_return(step, *, gamma, lmbda, next_state_value, reward, done, terminated, rolling):
    """Return the lambda-return of one step of a sequence."""

    def of(now):
        g, w = (gamma[now], lmbda[now]) if rolling else (gamma[step], lmbda[step])
        value = 0.0 if terminated[now] else next_state_value[now]
        last = done[now] or now == len(reward) - 1
        return reward[now] + g * (value if last else (1 - w) * value + w * of(now + 1))

    return of(step)


def advantage(step, *, gamma, lmbda, state_value, next_state_value, reward, done, terminated):
    value = 0.0 if terminated[step] else next_state_value[step]
    error = reward[step] + gamma[step] * value - state_value[step]
    if done[step] or step == len(reward) - 1:
        return error
    following = {"state_value": state_value, "next_state_value": next_state_value, "reward": reward}
    rest = advantage(step + 1, gamma=gamma, lmbda=lmbda, done=done, terminated=terminated, **following)
    return error + gamma[step] * lmbda[step] * rest


def v_trace(step, *, gamma, ratio, bound_rho, bound_c, state_value, next_state_value, reward, done, terminated):
    """Return the advantage and the target of one step of a sequence."""

    def target(now):
        value = 0.0 if terminated[now] else next_state_value[now]
        error = min(bound_rho, ratio[now]) * (reward[now] + gamma[now] * value - state_value[now])
        last = done[now] or now == len(reward) - 1
        rest = 0.0 if last else gamma[now] * min(bound_c, ratio[now]) * (target(now + 1) - state_value[now + 1])
        return state_value[now] + error + rest

    last = done[step] or step == len(reward) - 1
    after = (0.0 if terminated[step] else next_state_value[step]) if last else target(step + 1)
    estimate = min(bound_rho, ratio[step]) * (reward[step] + gamma[step] * after - state_value[step])
    return estimate, target(step)


def reward_to_go(step, *, gamma, reward, done):
    if done[step] or step == len(reward) - 1:
        return reward[step]
    return reward[step] + gamma[step] * reward_to_go(step + 1, gamma=gamma, reward=reward, done=done)


def defined(rule, batch, axis, names):
    """Return the results of a rule for all steps of all sequences of a batch, float64 of its shape."""
    shape, values = batch["reward"].shape, {"terminated": batch["done"], **batch}
    columns = {
        name: torch.as_tensor(values[name], dtype=torch.float64).expand(shape).movedim(axis, -1).numpy()
        for name in names
    }
    first = columns[names[0]]
    result = np.zeros((*first.shape, 2))
    for place in np.ndindex(first.shape[:-1]):
        sequence = {name: column[place].tolist() for name, column in columns.items()}
        for step in range(first.shape[-1]):
            result[(*place, step)] = rule(step, **sequence)
    both = torch.from_numpy(result).movedim(-2, axis if axis >= 0 else axis - 1)
    return both[..., 0], both[..., 1]


def close(came, wanted, dtype):
    assert came.shape == wanted.shape
    assert came.dtype == dtype
    torch.testing.assert_close(came.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


TD = ("reward", "gamma", "lmbda", "next_state_value", "done", "terminated")


@settings(deadline=None)
@given(drawn=batches())
def test_advantages_are_those_of_the_definition(drawn):
    batch, axis = drawn
    function = ESTIMATES["generalized_advantage_estimate"]
    wanted, _ = defined(advantage, batch, axis, (*TD, "state_value"))
    came, targets = function(**batch, time_dim=axis)

    close(came, wanted, batch["reward"].dtype)
    close(targets, wanted + batch["state_value"], batch["reward"].dtype)


@pytest.mark.parametrize("rolling", [None, True, False])
@settings(deadline=None, max_examples=35)
@given(drawn=batches())
def test_lambda_returns_are_those_of_the_definition(rolling, drawn):
    batch, axis = drawn

    def rule(step, **sequence):
        return lambda_return(step, **sequence, rolling=rolling is not False)

    wanted, _ = defined(rule, batch, axis, TD)
    ones, _ = defined(rule, {**batch, "lmbda": 1.0}, axis, TD)
    for name, expected in (("td_lambda", wanted), ("td1", ones)):
        of_returns, of_advantages = (ESTIMATES[f"{name}_{what}_estimate"] for what in ("return", "advantage"))
        more = {"rolling_gamma": rolling, "time_dim": axis}
        came = of_returns(**arguments(batch, of_returns, **more))
        close(came, expected, batch["reward"].dtype)
        came = of_advantages(**arguments(batch, of_advantages, **more))
        close(came, expected - batch["state_value"], batch["reward"].dtype)


@settings(deadline=None)
@given(drawn=batches())
def test_one_step_targets_are_those_of_the_definition(drawn):
    batch, axis = drawn
    wanted, _ = defined(lambda_return_of_zero, batch, axis, TD)
    terminated = batch.get("terminated", batch["done"])
    shared = (batch["gamma"],), (batch["next_state_value"], batch["reward"])

    came = returns.td0_return_estimate(*shared[0], *shared[1], terminated)
    close(came, wanted, batch["reward"].dtype)
    assert torch.equal(came, returns.td0_return_estimate(*shared[0], *shared[1], done=terminated))
    came = returns.td0_advantage_estimate(
        *shared[0], batch["state_value"], *shared[1], batch["done"], batch.get("terminated")
    )
    close(came, wanted - batch["state_value"], batch["reward"].dtype)


def lambda_return_of_zero(step, **sequence):
    return lambda_return(step, **{**sequence, "lmbda": [0.0] * len(sequence["reward"])}, rolling=True)


@settings(deadline=None)
@given(drawn=batches(), bounds=st.tuples(*[st.sampled_from([0.5, 1.0, math.inf])] * 2), seed=st.integers(0, 99))
def test_v_trace_is_that_of_the_definition(drawn, bounds, seed):
    batch, axis = drawn
    torch.manual_seed(seed)
    log_pi, log_mu = (torch.randn_like(batch["reward"]) / 3 for _ in range(2))
    ratio = (log_pi.double() - log_mu.double()).exp()

    def rule(step, **sequence):
        return v_trace(step, **sequence, bound_rho=bounds[0], bound_c=bounds[1])

    names = ("reward", "gamma", "ratio", "state_value", "next_state_value", "done", "terminated")
    wanted = defined(rule, {**batch, "ratio": ratio}, axis, names)
    function = returns.vtrace_advantage_estimate
    given_as = [bounds, tuple(map(torch.tensor, bounds))]
    for rho, c in given_as:
        came = function(
            **arguments(batch, function, log_pi=log_pi, log_mu=log_mu, rho_thresh=rho, c_thresh=c, time_dim=axis)
        )
        for one, expected in zip(came, wanted, strict=True):
            close(one, expected, batch["reward"].dtype)


@settings(deadline=None)
@given(drawn=batches())
def test_rewards_to_go_are_those_of_the_definition(drawn):
    batch, axis = drawn
    wanted, _ = defined(reward_to_go, batch, axis, ("reward", "gamma", "done"))

    close(
        returns.reward2go(batch["reward"], batch["done"], batch["gamma"], time_dim=axis), wanted, batch["reward"].dtype
    )


def test_rewards_to_go_of_integers_are_floats():
    reward, done = torch.tensor([1, 2, 4, 8]), torch.tensor([False, False, True, False])

    assert returns.reward2go(reward, done, 0.5, time_dim=0).tolist() == [3, 4, 4, 8]


def example(*batch, seed=0):
    torch.manual_seed(seed)
    state_value, next_state_value, reward = (torch.randn(*batch, dtype=torch.float64) for _ in range(3))
    done = torch.rand(*batch) < 0.3
    flags = {"done": done, "terminated": done & (torch.rand(*batch) < 0.5)}
    return {"state_value": state_value, "next_state_value": next_state_value, "reward": reward, **flags}


EVERY = {name: getattr(returns, name) for name in returns.__all__ if name != "discounted"}
FACTORS = {"gamma": 0.9, "lmbda": 0.8, "log_pi": torch.zeros(2, 9, 1).double(), "log_mu": torch.zeros(2, 9, 1).double()}


def outputs(function, batch):
    came = function(**arguments(batch, function))
    return came if isinstance(came, tuple) else (came,)


@pytest.mark.parametrize("name", list(EVERY))
def test_a_number_that_is_not_finite_affects_no_other_episode(name):
    batch = example(2, 9, 1) | FACTORS
    batch["done"][:, 4] = batch["terminated"][:, 4] = True
    spoiled = {key: one.clone() if is_full(one) else one for key, one in batch.items()}
    spoiled["next_state_value"][:, 4] = math.inf  # of a terminal state: it counts as 0
    for key in ("state_value", "next_state_value", "reward"):
        spoiled[key][:, 5:] = math.nan
    for came, wanted in zip(outputs(EVERY[name], spoiled), outputs(EVERY[name], batch), strict=True):
        assert torch.equal(came[:, :5], wanted[:, :5])
        assert came[:, 5:].isnan().any()


@pytest.mark.parametrize("name", list(EVERY))
def test_gradients_are_those_of_finite_differences(name):
    batch = example(2, 5, 1) | {key: one[:, :5] if is_full(one) else one for key, one in FACTORS.items()}
    batch |= {key: torch.rand(2, 5, 1).double() for key in ("gamma", "lmbda", "log_pi")}
    taken = arguments(batch, EVERY[name])
    keys = [key for key, one in taken.items() if one.is_floating_point()]

    def function(*values):
        return EVERY[name](**taken | dict(zip(keys, values, strict=True)))

    inputs = [taken[key].clone().requires_grad_() for key in keys]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", list(EVERY))
def test_no_result_is_read_back_from_the_device(name):
    """A tensor on the device "meta" has no values: reading one is an error, as it would delay an accelerator."""
    batch = {key: one.to("meta") if is_full(one) else one for key, one in (example(2, 9, 1) | FACTORS).items()}

    assert all(one.shape == (2, 9, 1) for one in outputs(EVERY[name], batch))


@pytest.mark.parametrize("name", list(EVERY))
def test_other_shapes_are_refused(name):
    batch = example(2, 9, 1) | FACTORS
    function = EVERY[name]
    unused = {"done"} if name == "td0_return_estimate" else set()
    for key in arguments(batch, function).keys() - {"gamma", "lmbda"} - unused:
        with pytest.raises(InvalidArgumentError, match=rf"{key} \(2, 9\).*, expected the same shape"):
            function(**arguments(batch | {key: batch[key][..., 0]}, function))
    with pytest.raises(InvalidArgumentError, match=r"is \(9, 1\), expected a number, or"):
        function(**arguments(batch | {"gamma": torch.ones(9, 1)}, function))
    if "time_dim" in arguments(batch, function, time_dim=3):
        with pytest.raises(InvalidArgumentError, match=r"time_dim is 3, expected an axis of the shape \(2, 9, 1\)"):
            function(**arguments(batch, function, time_dim=3))


def test_one_step_targets_need_a_flag():
    with pytest.raises(InvalidArgumentError, match="both None"):
        returns.td0_return_estimate(0.9, torch.zeros(2, 1), torch.zeros(2, 1))


def test_an_episode_ends_at_either_flag():
    """In TED, terminated steps are done; a batch without that flag must not join two episodes."""
    batch = example(2, 9, 1) | {"gamma": 0.9, "lmbda": 0.8}
    for function in ESTIMATES.values():
        both = outputs(function, batch | {"done": batch["done"] | batch["terminated"]})
        one = outputs(function, batch | {"done": batch["done"] & ~batch["terminated"]})
        assert all(map(torch.equal, both, one))


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("name", list(EVERY))
def test_batches_of_no_step_and_of_one_step_are_accepted(name, length):
    batch = {key: one[:, :length] if is_full(one) else one for key, one in (example(2, 9, 1) | FACTORS).items()}

    assert all(one.shape == (2, length, 1) for one in outputs(EVERY[name], batch))


def test_sums_over_a_million_steps_are_exact():
    """Powers of gamma underflow here: a formulation that divides by them gives infinities."""
    reward, done = torch.ones(1_000_000, dtype=torch.float64), torch.zeros(1_000_000, dtype=torch.bool)
    to_go = returns.reward2go(reward, done, 0.9, time_dim=0)

    assert to_go[0].item() == pytest.approx(10, rel=1e-12)
    assert to_go[-3:].tolist() == pytest.approx([2.71, 1.9, 1])


def test_factors_of_fewer_axes_have_gradients_of_their_shape():
    values = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    carry = torch.rand(7, 1, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(returns.discounted, [values, carry])


@pytest.mark.parametrize("name", ["reward2go", "td_lambda_return_estimate", "vec_generalized_advantage_estimate"])
def test_estimates_of_mapped_batches_are_those_of_each_batch(name):
    check_mapped_estimates(EVERY[name], lambda estimate: estimate)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EVERY))
def test_gradients_of_mapped_batches_are_those_of_each_batch(name):
    def gradient(estimate):
        def total(reward, items):
            return sum(result.sum() for result in estimate({**items, "reward": reward}))

        return lambda items: (torch.func.grad(total)(items["reward"], items),)

    check_mapped_estimates(EVERY[name], lambda estimate: estimate)
    check_mapped_estimates(EVERY[name], gradient)


def check_mapped_estimates(function, derive):
    """Compare `torch.vmap` of a function derived from an estimate with calls of it for each batch."""
    batch = example(3, 7, 1) | {"gamma": torch.rand(3, 7, 1).double(), "lmbda": 0.8}
    batch |= {key: torch.randn(3, 7, 1).double() for key in ("log_pi", "log_mu")}
    mapped = {key: value for key, value in arguments(batch, function).items() if is_full(value)}

    def estimate(items):
        results = function(**arguments(batch, function) | items)
        return results if isinstance(results, tuple) else (results,)

    derived = derive(estimate)
    parts = [derived({key: value[number] for key, value in mapped.items()}) for number in range(3)]
    for results, expected in zip(torch.vmap(derived)(mapped), zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(results, torch.stack(expected))


def test_sums_are_mapped_along_any_axis():
    values, carry = torch.randn(7, 2), torch.rand(7, 5, 1)
    sums = torch.vmap(lambda factors: returns.discounted(values, factors), in_dims=1)(carry)

    assert torch.equal(sums[3], returns.discounted(values, carry[:, 3]))
    assert torch.vmap(torch.vmap(lambda item: returns.reward2go(item, item > 9, 0.9)))(torch.ones(3, 2, 7, 1)).ndim == 4
