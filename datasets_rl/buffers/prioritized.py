"""Prioritized replay buffers: a shorthand for a buffer with a `PrioritizedSampler`."""

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
    """Replay buffer that samples steps in proportion to their priorities (Schaul et al., 2015, arXiv 1511.05952).

        >>> rb = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(100_000), batch_size=256)
        >>> index = rb.extend(data)
        >>> batch, info = rb.sample(return_info=True)
        >>> rb.update_priority(info["index"], td_error.abs())

    Args:
        alpha: Exponent of the priorities; 0 gives uniform sampling.
        beta: Exponent of the importance weights; 1 corrects the bias fully.
        eps: Constant added to every priority, so that no priority is 0.
        dtype: Dtype of the weights.
        storage: Storage of the steps, with a `max_size`; by default a `ListStorage` of 1,000.
        **kwargs: Other arguments of `ReplayBuffer`, except `sampler`.

    Raises:
        InvalidArgumentError: If an argument is out of range, or a sampler is given.
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
        super().__init__(**_with_sampler(kwargs, storage, alpha=alpha, beta=beta, eps=eps, dtype=dtype))


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """Replay buffer of TensorDicts that samples in proportion to priorities, see `PrioritizedReplayBuffer`.

        >>> rb = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(100_000), batch_size=256)
        >>> rb.extend(data)
        >>> batch = rb.sample()                       # batch["priority_weight"]: multiply the loss by it
        >>> batch["td_error"] = ...
        >>> rb.update_tensordict_priority(batch)

    Args:
        alpha: Exponent of the priorities; 0 gives uniform sampling.
        beta: Exponent of the importance weights; 1 corrects the bias fully.
        priority_key: Key of the priorities in batches and in written data.
        eps: Constant added to every priority, so that no priority is 0.
        dtype: Dtype of the weights.
        storage: Storage of the steps, with a `max_size`; by default a `ListStorage` of 1,000.
        reduction: Reduction of several priorities of one step to one: "max", "min", "mean" or "median".
        **kwargs: Other arguments of `ReplayBuffer`, except `sampler`.

    Raises:
        InvalidArgumentError: If an argument is out of range, or a sampler is given.
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
        parts = _with_sampler(kwargs, storage, alpha=alpha, beta=beta, eps=eps, dtype=dtype, reduction=reduction)
        super().__init__(priority_key=priority_key, **parts)


def _with_sampler(kwargs: dict[str, Any], storage: Storage | None, **priorities: Any) -> dict[str, Any]:
    if "sampler" in kwargs:
        raise InvalidArgumentError(
            "sampler was passed to a prioritized buffer, which creates its own", hint="use ReplayBuffer(sampler=...)"
        )
    storage = storage if storage is not None else ListStorage(_DEFAULT_SIZE)
    return kwargs | {"storage": storage, "sampler": PrioritizedSampler(storage.max_size, **priorities)}
