"""Advantages and value targets of slices of trajectories."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.arguments import check, share_problems
from datasets_rl.returns import Factor, float_rewards, vec_generalized_advantage_estimate, vec_td_lambda_return_estimate
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, NEXT_REWARD, NEXT_TERMINATED
from datasets_rl.transforms._time import OverSlices, TimeAxis
from datasets_rl.transforms.base import NestedKey, expand_right, get_entry, under_next


class Advantages(OverSlices):
    """Base class of transforms that compute advantages and value targets from the rewards and values of a batch.

    A batch consists of slices of trajectories, as `SliceSampler` draws them: its time axis is the axis named "time", or
    the last axis of the batch size. Estimates do not extend past the end of a slice: as at the end of a truncated
    episode, the value of the next state stands for all later rewards. In a batch of a buffer, a slice also ends where
    the next row of the batch is not the next step of the trajectory, so that the estimates of single random steps are
    those of TD(0).

        slice                  1                2
        step                   0    1    2      0    1
        next.done              -    -    x      -    x           SliceSampler sets it at the end of a slice
        estimates use steps    0-2  1-2  2      0-1  1

    The estimates of a step whose next state is unknown (``("next", "final_known")`` is False, and the step is not
    terminated) cannot be computed: its advantage is 0, and its target is the value of its state. Earlier estimates end
    one step earlier, at the last known state.

    Args:
        gamma: Discount factor: a number, or a tensor with one element. TorchRL has no default, here and below.
        lmbda: Weight of longer returns, lambda: 0 for one step, 1 for whole slices.
        value_network: Function of a TensorDict of states, such as a TensorDictModule. It returns their values, [*, 1],
            or a TensorDict with the values at `value_key`. It is called with the batch and with the entries under
            "next". By default, the values are read from the batch.
        differentiable: Whether gradients flow through the results to the network.
        advantage_key: Key of the advantages.
        value_target_key: Key of the value targets.
        value_key: Key of the values of states, [*, 1], at the root and under "next".

    Raises:
        InvalidArgumentError: If a factor is a number outside of [0, 1].
    """

    shown = ("gamma", "lmbda")
    in_double = True

    def __init__(
        self,
        gamma: Factor = 0.99,
        lmbda: Factor = 0.95,
        *,
        value_network: Callable[[Any], Any] | None = None,
        differentiable: bool = False,
        advantage_key: NestedKey = "advantage",
        value_target_key: NestedKey = "value_target",
        value_key: NestedKey = "state_value",
    ) -> None:
        super().__init__([], [])
        check(share_problems(gamma=gamma, lmbda=lmbda))
        for name, factor in (("gamma", gamma), ("lmbda", lmbda)):
            # A tensor moves with the transform, but is not a part of its state.
            if isinstance(factor, Tensor):
                self.register_buffer(name, factor, persistent=False)
            else:
                setattr(self, name, factor)
        self.value_network, self.differentiable = value_network, differentiable
        self.advantage_key, self.value_target_key, self.value_key = advantage_key, value_target_key, value_key

    gamma: Factor
    lmbda: Factor

    @override
    def read_keys(self) -> Sequence[NestedKey] | None:
        if self.value_network is not None:
            return None
        return [self.value_key, under_next(self.value_key), NEXT_REWARD]

    @abstractmethod
    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and value targets, all of the shape of the reward, see `datasets_rl.returns`."""

    def estimate_known(
        self,
        value: Tensor,
        next_value: Tensor,
        reward: Tensor,
        done: Tensor,
        terminated: Tensor,
        known: Tensor,
        time_dim: int,
    ) -> tuple[Tensor, Tensor]:
        """Return `estimate` without the unknown states, see the class.

        Args:
            value: Values of the states.
            next_value: Values of the next states.
            reward: Rewards.
            done: Whether a step is the last step of a slice or episode, bool.
            terminated: Whether the next state is terminal, bool.
            known: Whether the next state is known, bool.
            time_dim: The axis of the steps.
        """
        unknown = ~(known | terminated)
        # The step before such a step becomes the last step. What roll moves from the first step to the last has no effect.
        advantage, target = self.estimate(
            value, next_value, reward, done | unknown.roll(-1, time_dim), terminated, time_dim
        )
        return advantage.masked_fill(unknown, 0), torch.where(unknown, value, target)

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        axis = TimeAxis.of_batch(batch)
        with nullcontext() if self.differentiable else torch.no_grad():
            value, next_value = self._state_values(batch)
            reward = float_rewards(get_entry(batch, NEXT_REWARD))

            def flag(key: NestedKey, default: Tensor) -> Tensor:
                found = batch.get(key, None)
                return default if found is None else expand_right(found.reshape(*batch.shape, -1).any(-1), reward.shape)

            done = flag(under_next("done"), torch.zeros_like(reward, dtype=torch.bool))
            terminated = flag(NEXT_TERMINATED, done)
            mask = self.padding_mask(batch)
            if mask is not None:
                done = done | ~expand_right(mask.roll(-1, axis.place) & mask, reward.shape)
            if values:
                done = done | ~expand_right(self.continued(values, axis).to(done.device), reward.shape)
            known = flag(NEXT_FINAL_KNOWN, torch.ones_like(done))
            advantage, target = self.estimate_known(value, next_value, reward, done, terminated, known, axis.place)
        return batch.set(self.advantage_key, advantage).set(self.value_target_key, target)

    def _state_values(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the values of the states and of the next states, [*batch, 1] each."""
        network = self.value_network
        if network is None:
            return get_entry(batch, self.value_key), get_entry(batch, under_next(self.value_key))

        def values(states: Any) -> Tensor:
            came = network(states.copy())  # a TensorDictModule writes into what it is given
            return came if isinstance(came, Tensor) else get_entry(came, self.value_key)

        return values(batch), values(get_entry(batch, NEXT))


class GAE(Advantages):
    """Compute generalized advantage estimates, and value targets, from the values of states.

    See `datasets_rl.returns.generalized_advantage_estimate`.

    step            0                            1               2          slice of 3 steps, g = gamma, l = lmbda
    error           d_0 = r_0 + g V_1 - V_0      d_1             d_2        V_1: next.state_value of step 0
    advantage       d_0 + g l d_1 + (g l)^2 d_2  d_1 + g l d_2   d_2
    value_target    advantage + V_0              ...             ...

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import GAE
        >>> ends = torch.tensor([[False], [False], [True]])
        >>> steps = {"reward": torch.ones(3, 1), "terminated": ends, "done": ends, "state_value": torch.zeros(3, 1)}
        >>> batch = TensorDict({"state_value": torch.zeros(3, 1), "next": steps}, [3])
        >>> GAE(gamma=0.5, lmbda=1.0)(batch)["advantage"].flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """

    in_recipes = True

    @override
    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        return vec_generalized_advantage_estimate(
            self.gamma, self.lmbda, value, next_value, reward, done, terminated, time_dim=time_dim
        )


class TDLambda(Advantages):
    """Compute lambda-returns as value targets, and advantages, from the values of states.

    See `datasets_rl.returns.td_lambda_return_estimate`.

    step            0                                1               2               slice of 3 steps
    value_target    r_0 + g ((1 - l) V_1 + l G_1)    G_1 = ...       r_2 + g V_3     g = gamma, l = lmbda
    advantage       value_target - V_0               ...             ...             V_1: next.state_value of step 0

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import TDLambda
        >>> ends = torch.tensor([[False], [False], [True]])
        >>> steps = {"reward": torch.ones(3, 1), "terminated": ends, "done": ends, "state_value": torch.zeros(3, 1)}
        >>> batch = TensorDict({"state_value": torch.zeros(3, 1), "next": steps}, [3])
        >>> TDLambda(gamma=0.5, lmbda=1.0)(batch)["value_target"].flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """

    in_recipes = True

    @override
    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        target = vec_td_lambda_return_estimate(
            self.gamma, self.lmbda, next_value, reward, done, terminated, time_dim=time_dim
        )
        return target - value, target
