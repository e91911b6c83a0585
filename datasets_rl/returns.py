"""Returns and advantages of batches of trajectories, with the names and parameters of ``torchrl.objectives.value.functional``.

Tensors have the shape [*, T, F]: any batch axes, T consecutive steps, F features. Entry t belongs to the transition from
the state s_t to the state s_{t+1}. Episodes may end at any step:

    state_value         V(s_0)   V(s_1)   V(s_2)  |  V(z_0)   V(z_1)
    next_state_value    V(s_1)   V(s_2)   V(s_3)  |  V(z_1)   V(z_2)     s_3: the final state of the first episode
    reward              r_0      r_1      r_2     |  r_3      r_4        r_0: the reward for leaving s_0
    done                False    False    True    |  False    False      the second episode continues after the batch

Every estimate is a sum ``x[t] = a[t] + c[t] x[t+1]`` along the time axis. With g for gamma and l for lambda:

    estimate      a[t]                                   c[t]        result
    reward2go     r_t                                    g           x
    TD(0)         r_t + g V(s_{t+1})                     0           x
    TD(lambda)    r_t + g (1 - l) V(s_{t+1})             g l         x, and a[t] = r_t + g V(s_{t+1}) in the last step
    GAE           r_t + g V(s_{t+1}) - V(s_t)            g l         x
    V-trace       rho_t (r_t + g V(s_{t+1}) - V(s_t))    g c_t       x + V(s_t)

c[t] is 0 in the last step of an episode, and V(s_{t+1}) is 0 if s_{t+1} is terminal. The last step of a batch without
`done` is like that of a truncated episode: the value of the next state stands for everything that follows. No value affects
another episode, not even NaN or infinity. An advantage is a return minus V(s_t).

The sum is computed by doubling, see `discounted`, which reads no result back from an accelerator. The names that begin
with ``vec_`` are the names of TorchRL's functions without a loop over time. Here they are the same functions. All
functions are differentiable. Their parameters:

    gamma               discount factor: a number, or a tensor with a single element or the shape of the reward
    lmbda               lambda, the weight of longer returns: likewise
    state_value         V(s_t)
    next_state_value    V(s_{t+1})
    reward              r_t
    done                whether the step is the last step of its episode, bool
    terminated          whether s_{t+1} is terminal, bool, which ends the episode as well. By default `done`
    rolling_gamma       whether the factors of tensors belong to the steps, x_0 = a_0 + c_0 a_1 + c_0 c_1 a_2, as by default;
                        if False, each belongs to the sum that begins there, x_0 = a_0 + c_0 a_1 + c_0 c_0 a_2
    time_dim            the axis of the steps. By default the second to last axis

Raises:
    InvalidArgumentError: If shapes differ, or there is no such axis. Every function raises this error.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError

__all__ = [
    "discounted",
    "generalized_advantage_estimate",
    "reward2go",
    "td0_advantage_estimate",
    "td0_return_estimate",
    "td1_advantage_estimate",
    "td1_return_estimate",
    "td_lambda_advantage_estimate",
    "td_lambda_return_estimate",
    "vec_generalized_advantage_estimate",
    "vec_td1_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td_lambda_advantage_estimate",
    "vec_td_lambda_return_estimate",
    "vtrace_advantage_estimate",
]

Factor: TypeAlias = float | Tensor
"""A number, or a tensor with a single element or the shape of the reward."""


def float_rewards(reward: Tensor) -> Tensor:
    """Return rewards, [*], in the dtype in which all functions compute: float64 stays, other dtypes become float32."""
    return reward if reward.dtype == torch.float64 else reward.float()


def reward2go(reward: Tensor, done: Tensor, gamma: Factor, *, time_dim: int = -2) -> Tensor:
    """Return the reward to go: the discounted sum of the rewards from each step to the end of its episode, [*, T, F].

        reward         1      2      4  |  8        gamma = 0.5
        reward to go   3      4      4  |  8

    The sum of the last episode ends with the batch: there is no value for what follows.
    """
    _check(time_dim, reward=reward, done=done)
    values = float_rewards(reward)
    return discounted(values, _carry(done.bool(), _factor(gamma, values), values.dtype), time_dim)


def td0_return_estimate(
    gamma: Factor,
    next_state_value: Tensor,
    reward: Tensor,
    terminated: Tensor | None = None,
    *,
    done: Tensor | None = None,
) -> Tensor:
    """Return the TD(0) targets, ``r_t + g V(s_{t+1})``, [*, T, F] (Sutton and Barto, 2018, section 6.1).

    Args:
        gamma: See the module, as for the other arguments.
        next_state_value: V(s_{t+1}).
        reward: r_t.
        terminated: Whether s_{t+1} is terminal.
        done: Used instead of `terminated` if that is not given.

    Raises:
        InvalidArgumentError: If shapes differ, or neither `terminated` nor `done` is given.
    """
    terminated = done if terminated is None else terminated
    if terminated is None:
        raise InvalidArgumentError("terminated and done are both None, expected at least one")
    _check(None, terminated=terminated, reward=reward, next_state_value=next_state_value)
    following = next_state_value.masked_fill(terminated.bool(), 0)
    return float_rewards(reward) + _factor(gamma, next_state_value) * following


def td0_advantage_estimate(
    gamma: Factor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
) -> Tensor:
    """Return the TD(0) errors, ``r_t + g V(s_{t+1}) - V(s_t)``, [*, T, F] (Sutton and Barto, 2018, section 6.1)."""
    _check(None, reward=reward, done=done, state_value=state_value)
    return td0_return_estimate(gamma, next_state_value, reward, terminated, done=done) - state_value


def discounted(values: Tensor, carry: Tensor, dim: int = 0) -> Tensor:
    """Return x with ``x[t] = values[t] + carry[t] * x[t + 1]`` along an axis, of the shape of the values.

    The span of the sums doubles with each pass, so that the number of passes is the number of binary digits of the
    length of the longest trajectory:

        span 1    v_0 + c v_1                            v_1 + c v_2     v_2 + c v_3    v_3
        span 2    v_0 + c v_1 + c^2 (v_2 + c v_3)        v_1 + ...

    On the CPU, the passes end when no factor remains. Elsewhere, where a read would wait for the device, their
    number depends on the shape alone. The gradient is a sum of the same form, in the opposite direction.

    Args:
        values: Values v, a floating-point or integer tensor.
        carry: Factors c, of the same shape, or with axes of size 1 other than `dim`. 0 at the last step of each
            trajectory. The factor of the last step of all is not used.
        dim: The axis of the steps.
    """
    sums: Tensor = _Discounted.apply(values, carry, dim)  # type: ignore[no-untyped-call]  # of torch
    return sums


class _Discounted(Function):
    """`discounted` with its gradient, h: ``h[t] = grad[t] + c[t-1] h[t-1]`` for values, ``h[t] x[t+1]`` for factors."""

    @staticmethod
    def forward(values: Tensor, carry: Tensor, dim: int) -> Tensor:
        if values.device.type != "cpu":
            return _doubled(values, carry, dim, masked=True)
        sums = _doubled(values, carry, dim)
        # NaN and infinity times 0 are NaN, which would spread to other trajectories: mask these products.
        return _doubled(values, carry, dim, masked=True) if bool(sums.isnan().any()) else sums

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, carry, ctx.dim = inputs
        ctx.save_for_backward(carry, output)

    @staticmethod
    @override
    def vmap(_: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        """Return the sums of a mapped axis, which becomes the first of the batch axes."""
        values, carry, dim = arguments
        values, carry = (
            tensor.unsqueeze(0) if place is None else tensor.movedim(place, 0)
            for tensor, place in zip((values, carry), in_dims, strict=False)
        )
        if in_dims[0] is None:
            values = values.expand(len(carry), *values.shape[1:])
        return discounted(values, carry, dim if dim < 0 else dim + 1), 0

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        carry, sums = ctx.saved_tensors
        dim = ctx.dim
        # Reversed in time, step t receives from step t - 1: the factors move by a step.
        of_values = discounted(grad_outputs[0].flip(dim), carry.roll(1, dim).flip(dim), dim).flip(dim)
        if not ctx.needs_input_grad[1]:
            return of_values, None, None
        after = sums.roll(-1, dim)
        after.movedim(dim, 0)[-1:] = 0
        return of_values, (of_values * after).sum_to_size(carry.shape), None


def _doubled(values: Tensor, carry: Tensor, dim: int, *, masked: bool = False) -> Tensor:
    """Return the sums of `discounted`. If `masked`, nothing is added where the factor is 0."""
    sums, carry = values.clone(), carry.clone()
    size, span = sums.shape[dim], 1
    stops_early = values.device.type == "cpu"
    while span < size and not (stops_early and not bool(carry.any())):
        heads, factors = sums.narrow(dim, 0, size - span), carry.narrow(dim, 0, size - span)
        # The products are new tensors, so that the update in place does not read written elements.
        products = factors * sums.narrow(dim, span, size - span)
        heads += products.masked_fill_(factors == 0, 0) if masked else products
        factors.copy_(factors * carry.narrow(dim, span, size - span))
        span *= 2
    return sums


def td1_return_estimate(
    gamma: Factor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rolling_gamma: bool | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """Return the discounted rewards up to the end of the episode or batch, and the value there, [*, T, F].

        r_0 + g r_1 + g^2 r_2 + g^3 V(s_3)        the Monte-Carlo return, without V(s_3) if s_3 is terminal

    This is TD(lambda) with lambda 1 (Sutton and Barto, 2018, section 12.1).
    """
    return _td_lambda(gamma, 1, next_state_value, reward, done, terminated, rolling_gamma, time_dim)


def vec_td1_return_estimate(
    gamma: Factor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rolling_gamma: bool | None = None,
    time_dim: int = -2,
) -> Tensor:
    """Return `td1_return_estimate`, [*, T, F]. TorchRL accepts `time_dim` by position here only."""
    return _td_lambda(gamma, 1, next_state_value, reward, done, terminated, rolling_gamma, time_dim)


def td1_advantage_estimate(
    gamma: Factor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rolling_gamma: bool | None = None,
    time_dim: int = -2,
) -> Tensor:
    """Return `td1_return_estimate` minus the value of the state, [*, T, F]."""
    _check(time_dim, reward=reward, state_value=state_value)
    return _td_lambda(gamma, 1, next_state_value, reward, done, terminated, rolling_gamma, time_dim) - state_value


vec_td1_advantage_estimate = td1_advantage_estimate


def td_lambda_return_estimate(
    gamma: Factor,
    lmbda: Factor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rolling_gamma: bool | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """Return the lambda-returns, [*, T, F] (Sutton and Barto, 2018, sections 12.1 and 12.8).

    G_t = r_t + g ((1 - l) V(s_{t+1}) + l G_{t+1})        G_t = r_t + g V(s_{t+1}) in the last step

    step     0                              1                              2             gamma 1, lambda 0.5
    return   r_0 + V(s_1) / 2 + G_1 / 2     r_1 + V(s_2) / 2 + G_2 / 2     r_2 + V(s_3)

    If `rolling_gamma` is False and a factor is a tensor, the function needs memory for T times as many numbers.
    """
    return _td_lambda(gamma, lmbda, next_state_value, reward, done, terminated, rolling_gamma, time_dim)


vec_td_lambda_return_estimate = td_lambda_return_estimate


def td_lambda_advantage_estimate(
    gamma: Factor,
    lmbda: Factor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rolling_gamma: bool | None = None,
    time_dim: int = -2,
) -> Tensor:
    """Return `td_lambda_return_estimate` minus the value of the state, [*, T, F]."""
    _check(time_dim, reward=reward, state_value=state_value)
    returns = _td_lambda(gamma, lmbda, next_state_value, reward, done, terminated, rolling_gamma, time_dim)
    return returns - state_value


vec_td_lambda_advantage_estimate = td_lambda_advantage_estimate


def generalized_advantage_estimate(
    gamma: Factor,
    lmbda: Factor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """Return the generalized advantage estimates and the value targets, [*, T, F] each.

        A_t = d_t + g l A_{t+1}    with d_t = r_t + g V(s_{t+1}) - V(s_t)        A_t = d_t in the last step
        target = A_t + V(s_t)

        step         0                            1               2          episode of 3 steps
        advantage    d_0 + g l d_1 + (g l)^2 d_2  d_1 + g l d_2   d_2

    Source: Schulman, Moritz, Levine, Jordan and Abbeel (2015), "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation", equation 16, arXiv:1506.02438.
    """
    values = {"state_value": state_value, "next_state_value": next_state_value}
    _check(time_dim, done=done, terminated=terminated, reward=reward, **values)
    ends, terminal = _flags(done, terminated)
    gamma, lmbda = _factor(gamma, state_value), _factor(lmbda, state_value)
    errors = float_rewards(reward) + gamma * next_state_value.masked_fill(terminal, 0) - state_value
    advantage = discounted(errors, _carry(ends, gamma * lmbda, errors.dtype), time_dim)
    return advantage, advantage + state_value


vec_generalized_advantage_estimate = generalized_advantage_estimate


def vtrace_advantage_estimate(
    gamma: Factor,
    log_pi: Tensor,
    log_mu: Tensor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rho_thresh: float | Tensor = 1.0,
    c_thresh: float | Tensor = 1.0,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """Return the V-trace advantages of the policy gradient and the value targets, [*, T, F] each.

        w_t = pi(a_t | s_t) / mu(a_t | s_t)    rho_t = min(w_t, rho_thresh)    c_t = min(w_t, c_thresh)
        v_t = V(s_t) + rho_t (r_t + g V(s_{t+1}) - V(s_t)) + g c_t (v_{t+1} - V(s_{t+1}))
        advantage = rho_t (r_t + g v_{t+1} - V(s_t))

        step         0        1        2                 episode of 3 steps
        v_{t+1}      v_1      v_2      V(s_3)            v_{t+1} = V(s_{t+1}) in the last step

    Source: Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
    Architectures", section 4.1, arXiv:1802.01561.

    Args:
        gamma: See the module, as for the arguments that are not listed here.
        log_pi: Log-probability of the action under the policy that is evaluated, pi, [*, T, F].
        log_mu: Log-probability of the action under the behavior policy, mu, [*, T, F].
        state_value: V(s_t).
        next_state_value: V(s_{t+1}).
        reward: r_t.
        done: Whether the step is the last step of its episode.
        terminated: Whether s_{t+1} is terminal.
        rho_thresh: Upper bound of rho_t.
        c_thresh: Upper bound of c_t.
        time_dim: The axis of the steps.

    Returns:
        The advantages and the value targets v_t.
    """
    values = {"state_value": state_value, "next_state_value": next_state_value, "log_pi": log_pi, "log_mu": log_mu}
    _check(time_dim, done=done, terminated=terminated, reward=reward, **values)
    ends, terminal = _flags(done, terminated)
    gamma = _factor(gamma, state_value)
    following, reward = next_state_value.masked_fill(terminal, 0), float_rewards(reward)
    ratio = (log_pi - log_mu).exp()
    rho, c = (ratio.clamp(max=bound) for bound in (rho_thresh, c_thresh))
    errors = rho * (reward + gamma * following - state_value)
    targets = state_value + discounted(errors, _carry(ends, gamma * c, errors.dtype), time_dim)
    # v_{t+1}, and V(s_{t+1}) in the last step, as `_last` marks.
    after = torch.where(_last(ends, time_dim), following, targets.roll(-1, time_dim))
    return rho * (reward + gamma * after - state_value), targets


def _td_lambda(
    gamma: Factor,
    lmbda: Factor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None,
    rolling_gamma: bool | None,
    time_dim: int,
) -> Tensor:
    """Return lambda-returns."""
    _check(time_dim, done=done, terminated=terminated, reward=reward, next_state_value=next_state_value)
    ends, terminal = _flags(done, terminated)
    following, reward = next_state_value.masked_fill(terminal, 0), float_rewards(reward)
    gamma, lmbda = _factor(gamma, following), _factor(lmbda, following)
    last, dim = _last(ends, time_dim), time_dim
    per_start = rolling_gamma is False and any(isinstance(factor, Tensor) for factor in (gamma, lmbda))
    if per_start:
        # A row of T steps for each start k, all with the factors of step k, [*, F, k, t]. The result is the diagonal.
        gamma, lmbda = _over_time(gamma, time_dim, -1), _over_time(lmbda, time_dim, -1)
        reward, following, last = (_over_time(each, time_dim, -2) for each in (reward, following, last))
        dim = -1
    carry = _carry(last, gamma * lmbda, following.dtype)
    returns = discounted(reward + (gamma - carry) * following, carry, dim)
    return returns.diagonal(dim1=-2, dim2=-1).movedim(-1, time_dim) if per_start else returns


def _check(time_dim: int | None, **tensors: Tensor | None) -> None:
    """Check the shapes of tensors, by name, and the axis of the steps."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    shape, *others = set(shapes.values())
    if others:
        listed = ", ".join(f"{name} {one}" for name, one in shapes.items())
        raise InvalidArgumentError(f"the shapes are {listed}, expected the same shape for all")
    if time_dim is not None and not -len(shape) <= time_dim < len(shape):
        raise InvalidArgumentError(f"time_dim is {time_dim}, expected an axis of the shape {shape}")


def _flags(done: Tensor, terminated: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return which steps end an episode, and which steps end in a terminal state, bool [*, T, F] each."""
    done = done.bool()
    if terminated is None:
        return done, done
    terminal = terminated.bool()
    return done | terminal, terminal


def _last(ends: Tensor, dim: int) -> Tensor:
    """Return the ends of episodes and of the batch, bool [*, T, F]."""
    last = ends.clone()
    last.movedim(dim, 0)[-1:] = True
    return last


def _factor(factor: Factor, like: Tensor) -> Factor:
    """Return a number, or a tensor [*, T, F], for a factor."""
    if not isinstance(factor, Tensor):
        return factor
    if factor.numel() != 1 and factor.shape != like.shape:
        raise InvalidArgumentError(
            f"the shape of gamma or lmbda is {tuple(factor.shape)}, expected a number, or a tensor with a single element or of"
            f" the shape {tuple(like.shape)}"
        )
    return factor.to(like).reshape(()).expand(like.shape) if factor.numel() == 1 else factor.to(like)


def _carry(ends: Tensor, factor: Factor, dtype: torch.dtype) -> Tensor:
    """Return the factors of `discounted`: 0 at the ends of episodes, else the given factor."""
    if not isinstance(factor, Tensor):
        return torch.full(ends.shape, factor, dtype=dtype, device=ends.device).masked_fill(ends, 0)
    return factor.to(dtype).masked_fill(ends, 0)


def _over_time(value: Any, time_dim: int, new: int) -> Any:
    """Return a tensor with the time axis last, and a new axis of size 1 at -1 or -2. A number is returned unchanged."""
    return value.movedim(time_dim, -1).unsqueeze(new) if isinstance(value, Tensor) else value
