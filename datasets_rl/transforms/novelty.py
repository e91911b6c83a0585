"""Intrinsic rewards for exploration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import Keys, Transform, any_like, get_entry
from datasets_rl.transforms.running_norms import merge_moments

_MIN_VARIANCE = 1e-8


class RunningMeanStd(nn.Module):
    """Running mean and variance of samples, by the parallel algorithm of Chan et al. (1982).

    Args:
        shape: Shape of a sample.
        epsilon: Initial number of samples, which have mean 0 and variance 1.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = (), epsilon: float = 1e-4) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.tensor(epsilon))

    def update(self, x: Tensor) -> None:
        """Add samples, [..., *shape]."""
        samples = x.detach().float().reshape(-1, *self.mean.shape)
        added = torch.tensor(len(samples), device=self.mean.device), samples.mean(0), samples.var(0, correction=0)
        count, mean, var = merge_moments((self.count, self.mean, self.var), added)
        self.count.copy_(count)
        self.mean.copy_(mean)
        self.var.copy_(var)

    def normalize(self, x: Tensor) -> Tensor:
        """Return samples with about mean 0 and variance 1."""
        return (x.float() - self.mean) / self.var.clamp(min=_MIN_VARIANCE).sqrt()

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.normalize(x)


class RNDTransform(Transform):
    """Compute the intrinsic reward of random network distillation (Burda et al., 2018, arXiv:1810.12894).

        reward = mean((predictor(o) - target(o))^2)        o: the normalized observation

    Observations and rewards are normalized by running statistics, which batches update in training mode. The networks
    run without gradients.

    Args:
        target_network: Network with fixed random parameters, from observations to features [..., F]. Gradients of its
            parameters are turned off.
        predictor_network: Network that is trained to predict these features.
        in_keys: Key of the observation, ``("next", "observation")`` by default.
        out_keys: Key of the reward, [..., 1], ``("next", "intrinsic_reward")`` by default.
        normalize_obs: Whether to normalize observations.
        normalize_reward: Whether to divide rewards by their running standard deviation.
        obs_clip: Maximum absolute value of a normalized observation.
        reward_clip: Maximum absolute value of a normalized reward.
    """

    shown = ("normalize_obs", "normalize_reward")

    def __init__(
        self,
        target_network: nn.Module,
        predictor_network: nn.Module,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        normalize_obs: bool = True,
        normalize_reward: bool = True,
        obs_clip: float = 5.0,
        reward_clip: float = 5.0,
    ) -> None:
        super().__init__(
            [(NEXT, "observation")] if in_keys is None else in_keys,
            [(NEXT, "intrinsic_reward")] if out_keys is None else out_keys,
        )
        self.target_network = target_network.requires_grad_(requires_grad=False)
        self.predictor_network = predictor_network
        self.normalize_obs, self.normalize_reward = normalize_obs, normalize_reward
        self.obs_clip, self.reward_clip = obs_clip, reward_clip
        self._obs_rms: RunningMeanStd | None = None
        self._reward_rms = RunningMeanStd() if normalize_reward else None

    @property
    def obs_rms(self) -> RunningMeanStd | None:
        """Running statistics of the observations, or `None` before the first batch."""
        return self._obs_rms

    @property
    def reward_rms(self) -> RunningMeanStd | None:
        """Running statistics of the rewards."""
        return self._reward_rms

    @override
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        mean = state_dict.get(f"{prefix}_obs_rms.mean")
        if mean is not None and self._obs_rms is None:
            self._obs_rms = RunningMeanStd(tuple(mean.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @override
    @torch.no_grad()
    def transform_value(self, value: Tensor) -> Tensor:
        observation = value.float()
        if self.normalize_obs:
            if self._obs_rms is None:
                self._obs_rms = RunningMeanStd(tuple(observation.shape[-1:])).to(observation.device)
            if self.training:
                self._obs_rms.update(observation)
            observation = self._obs_rms.normalize(observation).clamp_(-self.obs_clip, self.obs_clip)
        error = self.predictor_network(observation) - self.target_network(observation)
        reward: Tensor = error.pow(2).mean(-1, keepdim=True)
        if self._reward_rms is not None:
            if self.training:
                self._reward_rms.update(reward)
            scale = self._reward_rms.var.clamp(min=_MIN_VARIANCE).sqrt()
            reward = (reward / scale).clamp_(-self.reward_clip, self.reward_clip)
        return reward

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        shape = get_entry(spec.zero(), self.in_keys[0]).shape[:-1]
        spec.set(self.out_keys[0], any_like(torch.zeros(*shape, 1)))
