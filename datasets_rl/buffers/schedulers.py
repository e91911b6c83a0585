"""Schedulers: objects that change a parameter of a sampler during training, such as the exponents of priorities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from datasets_rl.arguments import check, choice_problems, size_problems
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler


class ParameterScheduler(ABC):
    """Base class of schedulers, which set a parameter of a sampler anew with every call of `step`.

    A subclass implements `_step`, which returns the next value, and may use `initial_val`, the value when the scheduler
    was created, and `_step_cnt`, the number of calls of `step`, from 1.

    Args:
        obj: A sampler, or a buffer, for its sampler.
        param_name: Name of the parameter: "alpha" or "beta" of a prioritized sampler, "offline_fraction" of an
            `OfflineToOnlineReplayBuffer`, "p" of an ensemble, or any other attribute that is a number or a tensor.
        min_value: Lower bound of the values. None for no bound.
        max_value: Upper bound of the values. None for no bound.

    Raises:
        InvalidArgumentError: If `obj` is neither a sampler nor a buffer, or its sampler lacks the parameter.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        if not isinstance(obj, (ReplayBuffer, Sampler)):
            raise InvalidArgumentError(f"obj is a {type(obj).__name__}, expected a ReplayBuffer or a Sampler")
        self.sampler: Any = obj.sampler if isinstance(obj, ReplayBuffer) else obj
        self.param_name = param_name
        initial = getattr(self.sampler, param_name, None)
        if not isinstance(initial, (int, float, Tensor)):
            raise InvalidArgumentError(
                f"{param_name} of {type(self.sampler).__name__} is {initial!r}, expected a number or a tensor to change"
            )
        self.initial_val: Any = initial.clone() if isinstance(initial, Tensor) else initial
        self.min_value = min_value
        self.max_value = max_value
        self._step_cnt = 0

    def step(self) -> None:
        """Set the parameter to its next value, within the bounds."""
        self._step_cnt += 1
        value = self._step()
        if isinstance(value, Tensor):
            value = (
                value
                if self.min_value is None and self.max_value is None
                else value.clip(self.min_value, self.max_value)
            )
        else:
            value = value if self.min_value is None else max(value, self.min_value)
            value = value if self.max_value is None else min(value, self.max_value)
        setattr(self.sampler, self.param_name, value)

    @abstractmethod
    def _step(self) -> Any:
        """Return the next value: a hook for subclasses."""

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the initial value. The current value is in the state of the sampler."""
        return {"step_count": self._step_cnt, "initial_value": self.initial_val}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._step_cnt, self.initial_val = state_dict["step_count"], state_dict["initial_value"]


class LambdaScheduler(ParameterScheduler):
    """Set a parameter to its initial value times a factor.

        >>> LambdaScheduler(rb, "beta", lambda step: 1.01**step, max_value=1.0)

    Args:
        obj: A sampler or a buffer, see `ParameterScheduler`.
        param_name: Name of the parameter.
        lambda_fn: Maps the number of steps, from 1, to the factor.
        min_value: Lower bound of the values.
        max_value: Upper bound of the values.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def _step(self) -> Any:
        return self.initial_val * self.lambda_fn(self._step_cnt)


class LinearScheduler(ParameterScheduler):
    """Change a parameter linearly from its initial value to another value, and keep that value.

        beta 0.6, final_value 1.0, num_steps 4       step    0    1    2    3    4    5
                                                     beta    0.6  0.7  0.8  0.9  1.0  1.0

        >>> from datasets_rl import LinearScheduler, PrioritizedSampler
        >>> sampler = PrioritizedSampler(100, alpha=0.7, beta=0.4)
        >>> scheduler = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2)
        >>> scheduler.step()
        >>> round(float(sampler.beta), 2)
        0.7

    Args:
        obj: A sampler or a buffer, see `ParameterScheduler`.
        param_name: Name of the parameter.
        final_value: The value after `num_steps` steps.
        num_steps: Number of steps, at least 1.
    """

    def __init__(
        self, obj: ReplayBuffer | Sampler, param_name: str, final_value: float | Tensor, num_steps: int
    ) -> None:
        super().__init__(obj, param_name)
        check(size_problems(num_steps=num_steps))
        self.final_val: Any = (
            torch.as_tensor(final_value).to(self.initial_val) if isinstance(self.initial_val, Tensor) else final_value
        )
        self.num_steps = num_steps

    def _step(self) -> Any:
        if self._step_cnt >= self.num_steps:
            return self.final_val
        return self.initial_val + (self.final_val - self.initial_val) / self.num_steps * self._step_cnt


class StepScheduler(ParameterScheduler):
    """Multiply a parameter by a factor, or add a number, every `n_steps` steps.

        beta 0.6, gamma 0.1, mode "additive", n_steps 2, max_value 0.8     step    0    1    2    3    4    5    6
                                                                           beta    0.6  0.6  0.7  0.7  0.8  0.8  0.8

        >>> from datasets_rl import PrioritizedSampler, StepScheduler
        >>> sampler = PrioritizedSampler(100, alpha=0.8, beta=0.4)
        >>> scheduler = StepScheduler(sampler, "alpha", gamma=0.5, n_steps=1)
        >>> scheduler.step()
        >>> float(sampler.alpha)
        0.4

    Args:
        obj: A sampler or a buffer, see `ParameterScheduler`.
        param_name: Name of the parameter.
        gamma: The factor, or the number to add.
        n_steps: Number of steps between changes, at least 1.
        mode: "multiplicative" or "additive".
        min_value: Lower bound of the values.
        max_value: Upper bound of the values.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        check(size_problems(n_steps=n_steps), choice_problems("multiplicative", "additive", mode=mode))
        self.gamma = gamma
        self.n_steps = n_steps
        self.mode = mode

    def _step(self) -> Any:
        value = getattr(self.sampler, self.param_name)
        if self._step_cnt % self.n_steps:
            return value
        return value * self.gamma if self.mode == "multiplicative" else value + self.gamma


class SchedulerList:
    """Several schedulers that step together.

    Args:
        schedulers: A scheduler, or a sequence of schedulers.
    """

    def __init__(self, schedulers: ParameterScheduler | Sequence[ParameterScheduler]) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Add a scheduler."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Set every parameter to its next value."""
        for scheduler in self.schedulers:
            scheduler.step()
