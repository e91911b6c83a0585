"""Replay buffers that choose by priority: a shorthand for a buffer with a `PrioritizedSampler`."""

from __future__ import annotations

from typing import Any

import torch

from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.prioritized import PrioritizedSampler
from datasets_rl.storages.base import Storage
from datasets_rl.storages.list import ListStorage

__all__ = ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"]

_DEFAULT_SIZE = 1_000


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer in which steps of high priority come more often (Schaul et al., 2015, arXiv 1511.05952).

        >>> rb = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(100_000), batch_size=256)
        >>> index = rb.extend(data)
        >>> batch, info = rb.sample(return_info=True)
        >>> rb.update_priority(info["index"], td_error.abs())

    Args:
        alpha: How much priorities matter: 0 is uniform.
        beta: How far importance weights make up for it: 1 is fully.
        eps: Added to every priority, so that none is zero.
        dtype: Of the weights.
        storage: Holds the steps; a `ListStorage` of 1,000 by default. It must have a `max_size`.
        **kwargs: Those of `ReplayBuffer`, without `sampler`.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Storage | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**_by_priority(kwargs, storage, alpha=alpha, beta=beta, eps=eps, dtype=dtype))


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A replay buffer of TensorDicts in which steps of high priority come more often, see `PrioritizedReplayBuffer`.

        >>> rb = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(100_000), batch_size=256)
        >>> rb.extend(data)
        >>> batch = rb.sample()                       # batch["priority_weight"]: multiply the loss by it
        >>> batch["td_error"] = ...
        >>> rb.update_tensordict_priority(batch)

    Args:
        alpha: How much priorities matter: 0 is uniform.
        beta: How far importance weights make up for it: 1 is fully.
        priority_key: Where the priorities of a batch, and of what is written, are found.
        eps: Added to every priority, so that none is zero.
        dtype: Of the weights.
        storage: Holds the steps; a `ListStorage` of 1,000 by default. It must have a `max_size`.
        reduction: What becomes of several priorities of one step: "max", "min", "mean" or "median".
        **kwargs: Those of `ReplayBuffer`, without `sampler`.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: str = "td_error",
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Storage | None = None,
        reduction: str = "max",
        **kwargs: Any,
    ) -> None:
        parts = _by_priority(kwargs, storage, alpha=alpha, beta=beta, eps=eps, dtype=dtype, reduction=reduction)
        super().__init__(priority_key=priority_key, **parts)


def _by_priority(kwargs: dict[str, Any], storage: Storage | None, **priorities: Any) -> dict[str, Any]:
    if "sampler" in kwargs:
        raise InvalidArgumentError(
            "sampler was given to a prioritised buffer, which makes its own", hint="use ReplayBuffer(sampler=...)"
        )
    storage = storage if storage is not None else ListStorage(_DEFAULT_SIZE)
    return kwargs | {"storage": storage, "sampler": PrioritizedSampler(storage.max_size, **priorities)}
