"""The base class of the agents of training programs, and shared parts of agents."""

from __future__ import annotations

import argparse
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from datasets_rl.datasets.loading import load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import RandomSampler
from datasets_rl.training.data import name_of
from datasets_rl.training.evaluation import Policy
from datasets_rl.transforms import DoubleToFloat
from datasets_rl.transforms.normalizer import Normalizer


class Learner(nn.Module):
    """The networks and the optimizers of an algorithm, and the update.

    A program derives an agent from this class, with `optimizers`, `act` and `update`. `descend` minimizes losses, and
    `follow` moves target networks. While `learning` is False, both do nothing, so that `update` returns the losses of
    held-out batches.
    """

    optimizers: Mapping[str, torch.optim.Optimizer]
    """The optimizers by name, which are saved in checkpoints."""
    selected_by: str = ""
    """The loss with the lowest validation value in the best checkpoint, or empty if no loss measures the policy."""
    choices: Mapping[str, Any] = {}
    """Settings from the data, such as the scale of rewards, which are printed first, and are part of the result."""
    learning: bool = True

    @abstractmethod
    def update(self, batch: Any, step: int) -> Mapping[str, Tensor]:
        """Take a step of the algorithm, and return the losses.

        Args:
            batch: A batch of the dataset.
            step: Number of the update, from 1.
        """

    def act(self, observation: Tensor) -> Tensor:
        """Return the actions [B, ...] for observations [B, ...], in the units of the environment."""
        raise NotImplementedError

    def start_policy(self) -> Policy:
        """Return the policy for new episodes. Override this method for a policy with a memory."""
        return lambda observations, *_: self.act(self.as_batch(observations)).cpu().numpy()

    def as_batch(self, values: Any) -> Any:
        """Return an array or nested arrays of the environment as float32 on the device of the networks."""
        if isinstance(values, Mapping):
            return {name: self.as_batch(value) for name, value in values.items()}
        return torch.as_tensor(values, dtype=torch.float32, device=next(self.parameters()).device)

    def descend(self, name: str, loss: Tensor, *, rate: float | None = None, max_norm: float | None = None) -> None:
        """Take a step of an optimizer.

        Args:
            name: The name of the optimizer.
            loss: The loss, a scalar.
            rate: The new learning rate, by default unchanged.
            max_norm: The norm to which the gradient is clipped.
        """
        if not self.learning:
            return
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for this method
        for group in optimizer.param_groups:
            if rate is not None:
                group["lr"] = rate
            if max_norm is not None:
                nn.utils.clip_grad_norm_(group["params"], max_norm)
        optimizer.step()

    @torch.no_grad()
    def follow(self, target: nn.Module, network: nn.Module, share: float) -> None:
        """Move a target network towards a network by a share of the difference."""
        if self.learning:
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow.lerp_(fast, share)


def load_transitions(
    args: argparse.Namespace, keys: Sequence[str], *transforms: Any, final_unknown: str = "drop", **selection: Any
) -> Any:
    """Return the transitions of the dataset as float32, drawn with replacement, on the device of the run.

    Args:
        args: The arguments of a `Parser`.
        keys: The fields of a batch.
        transforms: Transforms of batches before the conversion to float32.
        final_unknown: Treatment of transitions with an unknown next observation, as in `load`.
        selection: Further arguments of `load`.
    """
    sampler = RandomSampler(generator=torch.Generator(args.device).manual_seed(args.seed))
    steps = [*transforms, DoubleToFloat()]
    data = load(args.dataset, sampler=sampler, transform=steps, final_unknown=final_unknown, **selection).select(keys)
    return data if args.device == "cpu" else data.to(args.device)


def _relu(_: int) -> list[nn.Module]:
    return [nn.ReLU()]


def make_mlp(*widths: int, between: Callable[[int], list[nn.Module]] = _relu) -> nn.Sequential:
    """Return linear layers with other modules between the layers.

        >>> make_mlp(3, 64, 1, between=lambda width: [nn.LayerNorm(width), nn.ReLU()])

    Args:
        widths: The widths of input, hidden layers and output.
        between: Returns the modules after a hidden layer of a given width, by default a ReLU.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), *between(after)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def observation_normalizer(
    dataset: Any, kind: Literal["standard", "limits"] = "standard", key: str = "observation"
) -> Normalizer:
    """Return the normalization of observation vectors [O] by the statistics of the dataset.

    Raises:
        InvalidArgumentError: If observations are not vectors of numbers.
    """
    statistics, shapes = dataset.statistics.get(key), _shapes(dataset.specs)
    if statistics is None or len(shapes.get(key, ())) != 1:
        shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if not name.startswith("next"))
        raise InvalidArgumentError(
            f"the program needs {key} as a vector of numbers, and {name_of(dataset)} has {shown}",
            hint="the recipe flat_observation joins nested vectors, and images need your own network",
        )
    return Normalizer.from_statistics(statistics, kind)


def _shapes(specs: Any) -> dict[str, list[int]]:
    keys = specs.keys(include_nested=True, leaves_only=True)
    return {".".join(key) if isinstance(key, tuple) else key: [*specs[key].shape] for key in keys}


def action_normalizer(
    name: str, dataset: Any, space: Any, kind: Literal["bounds", "limits", "standard"] = "bounds"
) -> Normalizer:
    """Return the normalization of continuous actions [A], by the bounds of the space, or by the statistics of the data.

    Args:
        name: The name of the program, for the message.
        dataset: The dataset.
        space: The action space.
        kind: "bounds" normalizes the bounds of the space to [-1, 1], or, if the bounds are infinite, acts as "limits".
            "limits" normalizes the lowest and highest actions of the dataset to [-1, 1]. "standard" normalizes to mean 0
            and standard deviation 1.

    Raises:
        InvalidArgumentError: If actions are not continuous vectors.
    """
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or np.ndim(low) != 1 or not np.issubdtype(space.dtype, np.floating):
        raise InvalidArgumentError(
            f"{name} needs continuous actions, and the actions of {name_of(dataset)} are {space}"
        )
    if kind != "bounds" or not has_bounds(low, high):
        return Normalizer.from_statistics(dataset.statistics["action"], "limits" if kind == "bounds" else kind)
    low, high = torch.from_numpy(low), torch.from_numpy(high)
    return Normalizer((low + high) / 2, (high - low) / 2)


def has_bounds(low: Any, high: Any) -> bool:
    """Return whether a space is bounded. The specs of an unbounded space state the largest float."""
    return bool((np.abs(np.stack([low, high])) < np.finfo(np.float32).max / 2).all())


class RewardScaling(NamedTuple):
    """An affine map of rewards, ``scale * reward + shift``, with a reason."""

    scale: float
    shift: float
    reason: str

    def __call__(self, reward: Tensor) -> Tensor:
        """Return scaled rewards."""
        return self.scale * reward + self.shift


def reward_scaling(dataset: Any, scale: float | None = None, shift: float | None = None) -> RewardScaling:
    """Return the scaling of rewards of IQL (Kostrikov et al. 2021, arXiv:2110.06169), by the type of the rewards.

        sparse: all are 0 or 1, most are 0      r - 1                                  AntMaze in the paper
        others                                  1000 r / (highest - lowest return)     locomotion in the paper

    A given `scale` or `shift` replaces both numbers. The other number is then 1 or 0 by default.

    Args:
        dataset: The dataset.
        scale: The scale.
        shift: The shift.
    """
    if scale is not None or shift is not None:
        return RewardScaling(1.0 if scale is None else scale, shift or 0.0, "given")
    reward, returns = dataset.statistics["next.reward"], dataset.statistics["return"]
    low, high, mean, std = (float(np.ravel(reward[name])[0]) for name in ("min", "max", "mean", "std"))
    # For numbers in [0, 1], the mean of r - r^2 is 0 if and only if all numbers are 0 or 1.
    if (low, high) == (0.0, 1.0) and mean <= 0.5 and mean - (std**2 + mean**2) < 1e-3 * mean:
        return RewardScaling(1.0, -1.0, "rewards are 0 or 1")
    span = returns["max"] - returns["min"]
    if not span:
        return RewardScaling(1.0, 0.0, "all returns are equal")
    return RewardScaling(1_000 / span, 0.0, "1000 / (highest - lowest return)")


def best_return(dataset: Any) -> float:
    """Return the return of an expert, with the score 100, or without scores the highest return of the dataset.

    Args:
        dataset: The dataset, or the data of a run. Members of a mixture with different scores have no score.
    """
    experts = {member.manifest.score.get("high") for member in getattr(dataset, "members", (dataset,))}
    expert = experts.pop() if len(experts) == 1 else None
    return float(dataset.statistics["return"]["max"] if expert is None else expert)


def cosine_decay(step: int, steps: int) -> float:
    """Return the factor of a learning rate that falls from 1 to 0 over `steps` updates, or 1 if `steps` is 0."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - 1) / steps))) if steps else 1.0


def warm_up(step: int, steps: int) -> float:
    """Return the factor of a learning rate that rises linearly to 1 over `steps` updates, or 1 if `steps` is 0."""
    return min(1.0, step / steps) if steps else 1.0
