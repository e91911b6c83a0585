"""Controllers of the coefficient of the KL penalty."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from datasets_rl.arguments import check
from datasets_rl.errors import InvalidArgumentError

_MAX_ERROR = 0.2


class KLControllerBase(ABC):
    """Controller of the coefficient by which the KL divergence from the reference model is subtracted from rewards.

    Args:
        coef: The initial coefficient.
        model: An object. Its attribute `kl_coef` is set to the coefficient after each change.
    """

    def __init__(self, coef: Any, model: Any = None) -> None:
        self.model = model
        self._assign(coef)

    @abstractmethod
    def update(self, kl_values: Sequence[Any]) -> Any:
        """Return the coefficient for the next steps.

        Args:
            kl_values: The mean of the KL term of the reward, ``-coef * KL``, at each of the last n steps.
        """

    def _assign(self, coef: Any) -> Any:
        self.coef = coef
        if self.model is not None:
            self.model.kl_coef = coef
        return coef


class ConstantKLController(KLControllerBase):
    """Controller that keeps the coefficient constant.

    Args:
        kl_coef: The coefficient.
        model: An object with an attribute `kl_coef`, which is set to the coefficient.

    Raises:
        AttributeError: If the model has no such attribute.
    """

    def __init__(self, *, kl_coef: float | None = None, model: Any = None) -> None:
        if model is not None and not hasattr(model, "kl_coef"):
            raise AttributeError(f"{type(model).__name__} has no attribute 'kl_coef' for ConstantKLController to set")
        super().__init__(kl_coef, model)

    def update(self, kl_values: Sequence[Any] | None = None) -> float | None:
        """Return the constant coefficient."""
        del kl_values
        coef: float | None = self._assign(self.coef)
        return coef


class AdaptiveKLController(KLControllerBase):
    """Controller that keeps the KL divergence close to a target.

    In each update, e = clip(KL / target - 1, -0.2, 0.2), and the coefficient is multiplied by 1 + e * n / horizon. This
    is the rule of Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (arXiv:1909.08593), section 2.2.

    Args:
        init_kl_coef: The initial coefficient, above 0.
        target: The target of the KL divergence, above 0. Below the target, the coefficient falls, and above the target,
            it rises.
        horizon: Number of steps in which the coefficient changes by a factor of about 1 + e.
        model: An object. Its attribute `kl_coef` is set to the coefficient.

    Raises:
        InvalidArgumentError: If a number is not above 0.
    """

    def __init__(self, *, init_kl_coef: float, target: float, horizon: int, model: Any = None) -> None:
        numbers = {"init_kl_coef": init_kl_coef, "target": target, "horizon": horizon}
        check(f"{name} is {value!r}, expected a number above 0" for name, value in numbers.items() if not value > 0)
        self.target = target
        self.horizon = horizon
        super().__init__(init_kl_coef, model)

    def update(self, kl_values: Sequence[Any]) -> float:
        """Return the coefficient for the next steps, see `KLControllerBase.update`.

        Raises:
            InvalidArgumentError: If `kl_values` is empty.
        """
        if kl_values is None or not len(kl_values):  # type: ignore[redundant-expr]  # untyped callers pass None
            raise InvalidArgumentError(
                "kl_values is empty, expected the KL term of at least 1 rollout",
                hint="make a rollout before each update",
            )
        divergence = -torch.as_tensor(list(map(float, kl_values))).mean().item() / self.coef
        error = min(max(divergence / self.target - 1, -_MAX_ERROR), _MAX_ERROR)
        coef: float = self._assign(self.coef * (1 + error * len(kl_values) / self.horizon))
        return coef
